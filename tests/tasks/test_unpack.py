"""Archives of strangers: nothing lands outside, and what could is refused by name."""

import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.tasks.task_file import TaskError
from gyre.tasks.unpack import unpack

Member = Callable[[tarfile.TarFile], None]


def entry(name: str, body: bytes = b"x", **fields: object) -> Member:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        for key, value in fields.items():
            setattr(info, key, value)
        if info.isreg():
            info.size = len(body)
        tar.addfile(info, io.BytesIO(body) if info.isreg() else None)

    return add


def tarred(path: Path, *members: Member, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for add in members:
            add(tar)
    return path


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.xz", "tar.bz2"])
def test_files_folders_and_inner_links_come_out(tmp_path: Path, ending: str) -> None:
    mode = "w:" + ending.removeprefix("tar").removeprefix(".")
    link = entry("a/link", type=tarfile.SYMTYPE, linkname="../b")
    archive = tarred(tmp_path / f"a.{ending}", entry("a/f", b"body", mode=0o755), entry("b"), link, mode=mode)
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/a/f").read_bytes() == b"body"
    assert (tmp_path / "out/a/f").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/a/link").read_bytes() == b"x"


@pytest.mark.parametrize(
    "hostile",
    [
        entry("../out-of-it"),
        entry("a/../../out-of-it"),
        entry("/etc/out-of-it"),
        entry("back\\slash"),
        entry("link", type=tarfile.SYMTYPE, linkname="/etc"),
        entry("a/link", type=tarfile.SYMTYPE, linkname="../../.."),
        entry("hard", type=tarfile.LNKTYPE, linkname="first"),
        entry("device", type=tarfile.CHRTYPE),
        entry("block", type=tarfile.BLKTYPE),
        entry("pipe", type=tarfile.FIFOTYPE),
        entry("first"),
        entry("first/below-a-file"),
    ],
)
def test_a_hostile_entry_refuses_the_whole_archive(tmp_path: Path, hostile: Member) -> None:
    with pytest.raises(TaskError) as refused:
        unpack(tarred(tmp_path / "bad.tar.gz", entry("first"), hostile), tmp_path / "out")
    assert "bad.tar.gz" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tar.gz"]


def test_nothing_is_written_through_a_link_of_the_same_archive(tmp_path: Path) -> None:
    link = entry("a", type=tarfile.SYMTYPE, linkname="b")
    with pytest.raises(TaskError):
        unpack(tarred(tmp_path / "bad.tar", link, entry("a/f"), mode="w"), tmp_path / "out")


def test_links_that_lead_out_together_are_refused(tmp_path: Path) -> None:
    up = entry("d/up", type=tarfile.SYMTYPE, linkname="..")
    out = entry("out", type=tarfile.SYMTYPE, linkname="d/up/..")
    with pytest.raises(TaskError, match="'out' leads out of it"):
        unpack(tarred(tmp_path / "bad.tar", entry("d/f"), up, out, mode="w"), tmp_path / "out")


def test_a_bomb_is_refused_by_what_comes_out_of_it(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "bomb.tar.gz", entry("zeros", bytes(4 << 20)))
    assert archive.stat().st_size < 8192
    with pytest.raises(TaskError, match="'zeros' is beyond the limit"):
        unpack(archive, tmp_path / "out", most_bytes=1 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("zeros", bytes(4 << 20))
    with pytest.raises(TaskError, match="'zeros' is beyond the limit"):
        unpack(tmp_path / "bomb.zip", tmp_path / "out", most_bytes=1 << 20)
    assert not (tmp_path / "out").exists()


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "many.tar", *(entry(str(number)) for number in range(12)), mode="w")
    with pytest.raises(TaskError, match="more than 10 entries"):
        unpack(archive, tmp_path / "out", most_entries=10)


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as zipped:
        zipped.writestr(info, "/etc/passwd")
    with pytest.raises(TaskError, match="neither file nor folder"):
        unpack(tmp_path / "bad.zip", tmp_path / "out")


@pytest.mark.parametrize("body", [b"", b"no archive", b"\x1f\x8b\x08\x00broken", b"PK\x03\x04broken"])
def test_what_is_no_archive_is_refused_in_one_line(tmp_path: Path, body: bytes) -> None:
    for name in ("a.tar.gz", "a.zip"):
        (tmp_path / name).write_bytes(body)
        with pytest.raises(TaskError, match="cannot be unpacked") as refused:
            unpack(tmp_path / name, tmp_path / "out")
        assert "\n" not in str(refused.value)


NAMES = st.text(st.sampled_from("ab./\\\0 "), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, max_size=4), links=st.lists(st.tuples(NAMES, NAMES), max_size=2))
def test_whatever_the_names_nothing_lands_outside(
    tmp_path: Path, names: list[str], links: list[tuple[str, str]]
) -> None:
    place = tmp_path / "deep/deeper"
    place.mkdir(parents=True, exist_ok=True)
    members = [entry(name) for name in names]
    members += [entry(name, type=tarfile.SYMTYPE, linkname=to) for name, to in links]
    archive = tarred(tmp_path / "any.tar", *members, mode="w")
    try:
        unpack(archive, place / "out")
    except TaskError:
        assert not (place / "out").exists()
    else:
        inside = (place / "out").resolve()
        assert all(Path(os.path.realpath(path)).is_relative_to(inside) for path in inside.rglob("*"))
        shutil.rmtree(place / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["any.tar", "deep"]
    assert list(place.iterdir()) == []
