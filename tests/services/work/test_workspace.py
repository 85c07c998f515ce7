import contextlib
import ctypes
import io
import os
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

from gyre.tasks.folder import Task
from services.workspace import WorkspaceError, clear, preserve, restore

AT_CWD, EXCHANGE = -100, 2


def filled(folder: Path) -> Path:
    (folder / "deep/er").mkdir(parents=True)
    (folder / "b.txt").write_text("b")
    (folder / "deep/er/a.sh").write_text("a")
    (folder / "deep/er/a.sh").chmod(0o750)
    (folder / "deep/inner").symlink_to("../b.txt")
    (folder / "empty").mkdir(mode=0o500)
    return folder


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = filled(tmp_path / "one"), filled(tmp_path / "two")
    os.utime(two / "b.txt", (1, 1))
    assert preserve(one) == preserve(two)


def test_what_is_restored_is_what_was_preserved(tmp_path: Path) -> None:
    archive = preserve(filled(tmp_path / "one"))
    restore(archive, tmp_path / "two")
    assert preserve(tmp_path / "two") == archive
    assert (tmp_path / "two/deep/inner").read_text() == "b"
    assert (tmp_path / "two/deep/er/a.sh").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "two/empty").stat().st_mode & 0o777 == 0o500


def test_links_that_lead_out_pipes_and_sockets_are_left_behind(tmp_path: Path) -> None:
    place = tmp_path / "ws"
    place.mkdir()
    (place / "absolute").symlink_to("/etc/passwd")
    (place / "upwards").symlink_to("../secret")
    os.mkfifo(place / "pipe")
    (place / "kept").write_text("kept")
    with tarfile.open(fileobj=io.BytesIO(preserve(place))) as archive:
        assert archive.getnames() == ["kept"]


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("/app/releases/v2", "releases/v2"),
        ("/app//releases/", "releases"),
        ("/app", "."),
        ("/app/sub/../releases/v2", "sub/../releases/v2"),
        ("{ws}/releases/v2", "releases/v2"),
        ("/app/../etc/passwd", None),
        ("/application/v2", None),
        ("/etc/passwd", None),
    ],
)
def test_a_link_into_the_workspace_by_its_absolute_name_is_kept(tmp_path: Path, target: str, kept: str | None) -> None:
    (tmp_path / "ws/sub/deep").mkdir(parents=True)
    for name, up in (("current", ""), ("sub/deep/current", "../../")):
        (tmp_path / "ws" / name).symlink_to(target.format(ws=tmp_path / "ws"))
        restored = tmp_path / f"restored-{len(up)}"
        restore(preserve(tmp_path / "ws", task=placed(tmp_path, "/app")), restored)
        found = str((restored / name).readlink()) if (restored / name).is_symlink() else None
        assert found == (kept and str(PurePath(up + kept)))


def test_a_link_by_the_name_of_another_tasks_workspace_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/current").symlink_to("/app/out")
    for task in (None, placed(tmp_path, "/testbed"), placed(tmp_path, "")):
        with tarfile.open(fileobj=io.BytesIO(preserve(tmp_path / "ws", task=task))) as archive:
            assert archive.getnames() == []


def placed(folder: Path, workdir: str) -> Task:
    """A task whose workspace has this name."""
    return Task(
        name="job", path=folder, instruction="", difficulty="", tags=(), setup_timeout=1.0, agent_timeout=1.0,
        verifier_timeout=1.0, kind="harbor" if workdir == "/app" else "folder", workdir=workdir,
    )  # fmt: skip


@pytest.mark.parametrize("leads", ["/etc", "../tests", "nowhere", "ws"])
def test_a_link_in_the_place_of_a_workspace_is_not_followed(tmp_path: Path, leads: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/solution").write_text("of the host")
    (tmp_path / "box").mkdir()
    (tmp_path / "box/ws").symlink_to(leads)
    with pytest.raises(WorkspaceError, match="something else lies in its place"):
        preserve(tmp_path / "box/ws")


def test_what_lies_deeper_than_paths_go_is_left_behind_and_the_rest_kept(tmp_path: Path) -> None:
    place = tmp_path / "ws"
    place.mkdir()
    (place / "kept").write_text("kept")
    here = os.open(place, os.O_PATH)
    for _ in range(20):
        os.mkdir("n" * 250, dir_fd=here)
        below = os.open("n" * 250, os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    restore(preserve(place), tmp_path / "again")
    assert (tmp_path / "again/kept").read_text() == "kept"
    assert (tmp_path / "again" / "/".join(["n" * 250] * 10)).is_dir()
    clear(place)


def test_folders_that_may_be_listed_and_not_entered_are_kept_by_any_user() -> None:
    with tempfile.TemporaryDirectory() as name, without_root(Path(name)):
        place = Path(name, "ws")
        (place / "half").mkdir(parents=True)
        (place / "half/inside").write_text("kept")
        (place / "half").chmod(0o400)
        with tarfile.open(fileobj=io.BytesIO(preserve(place))) as tar:
            assert tar.getnames() == ["half", "half/inside"]
            assert tar.getmember("half").mode == 0o400
        clear(place)


@contextlib.contextmanager
def without_root(folder: Path) -> Iterator[None]:
    """As a user whom modes of files bind, and who owns this folder."""
    before = os.geteuid()
    user = before or 65534
    os.chown(folder, user, -1)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(before)


def test_nothing_is_touched_where_somebody_works() -> None:
    with tempfile.TemporaryDirectory() as name, without_root(Path(name)):
        place = Path(name, "ws")
        place.mkdir()
        (place / "closed").write_text("kept")
        (place / "closed").chmod(0)
        with pytest.raises(PermissionError, match="'closed'"):
            preserve(place, worked_in=True)
        assert (place / "closed").stat().st_mode & 0o777 == 0
        preserve(place)
        assert (place / "closed").stat().st_mode & 0o777 == 0o400


def test_no_file_of_the_hosts_gets_in_while_a_folder_is_swapped_for_a_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "host/keys").mkdir(parents=True)
    (tmp_path / "host/keys/proxy.key").write_text("secret")
    (tmp_path / "ws/one").mkdir(parents=True)
    (tmp_path / "ws/other").symlink_to(tmp_path / "host")
    one, other = os.fsencode(tmp_path / "ws/one"), os.fsencode(tmp_path / "ws/other")
    libc = ctypes.CDLL(None, use_errno=True)
    begun, over, said = threading.Event(), threading.Event(), set[int]()
    if libc.renameat2(AT_CWD, one, AT_CWD, other, EXCHANGE):
        pytest.skip(f"two names cannot be exchanged here: {os.strerror(ctypes.get_errno())}")

    def swap() -> None:
        while not over.is_set():
            said.add(libc.renameat2(AT_CWD, one, AT_CWD, other, EXCHANGE))
            begun.set()

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        begun.wait()
        found = {name for _ in range(400) for name in members(preserve(tmp_path / "ws", worked_in=True))}
    finally:
        over.set()
        swapping.join()
    assert said == {0}  # every exchange was one
    assert found <= {"one", "other"}


def members(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


def test_a_workspace_that_is_too_large_is_refused_with_its_limit(tmp_path: Path) -> None:
    place = tmp_path / "ws"
    place.mkdir()
    with (place / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(WorkspaceError, match="more than 4096 bytes"):
        preserve(place, 4096)


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "a//b"])
def test_no_entry_is_unpacked_outside(tmp_path: Path, name: str) -> None:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(WorkspaceError):
        restore(body.getvalue(), tmp_path / "ws")
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    link, file = tarfile.TarInfo("a"), tarfile.TarInfo("a/b")
    link.type, link.linkname = tarfile.SYMTYPE, "."
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        archive.addfile(link)
        archive.addfile(file, io.BytesIO())
    with pytest.raises(WorkspaceError):
        restore(body.getvalue(), tmp_path / "ws")


def test_a_box_goes_whatever_modes_it_has(tmp_path: Path) -> None:
    box = tmp_path / "box"
    (box / "ws/locked/in").mkdir(parents=True)
    (box / "ws/locked").chmod(0)
    clear(box)
    assert not box.exists()
