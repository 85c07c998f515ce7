"""The index of an archive: reading begins anywhere, expands no more than it needs, and believes nothing."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from bus import archive_writer
from bus.archive import export
from bus.archive_file import ArchiveError, read_lines, summary
from bus.archive_frames import extents
from bus.archive_index import Index, read_index, write_index
from bus.archive_log import open_archive
from bus.blobs import BlobError, Blobs
from schemas.refs import BlobRef
from tests.bus.test_archive import Kept, a_run

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
async def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive in many frames."""
    monkeypatch.setattr(archive_writer, "_FRAME_BYTES", 4096)
    blobs = Blobs(tmp_path / "run" / "blobs")
    ev, calls, _ = a_run(blobs)
    await export(tmp_path / "r.jsonl.zst", "r", ev, calls, blobs)
    return tmp_path / "r.jsonl.zst"


def index_of(path: Path) -> Index:
    index = read_index(path)
    assert index is not None
    return index


def with_index(path: Path, change: Change) -> None:
    """Replace the index by one that says something else."""
    said = json.loads(index_of(path).model_dump_json())
    with path.open("rb") as file:
        end = list(extents(file))[-1].offset
    change(said)
    with path.open("r+b") as file:
        file.truncate(end)
        file.seek(end)
        write_index(file, Index.model_construct(**said))


def test_it_names_every_frame_and_says_what_reading_all_of_it_finds(path: Path) -> None:
    index = index_of(path)
    assert [frame.part for frame in index.frames].count("CALL") > 5
    assert (index.run, index.footer.ev, index.footer.call, index.footer.blobs) == ("r", 5, 1200, 3)
    *_, footer = read_lines(path)
    assert footer == index.footer
    found = summary(path)
    assert (found.run, found.ev, found.call, found.digest) == ("r", 5, 1200, index.footer.digest)


def test_other_tools_see_the_lines_alone(path: Path) -> None:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as source:
        lines = source.read().splitlines()
    assert len(lines) == 1 + 5 + 1200 + 3 + 1
    assert json.loads(lines[-1])["kind"] == "footer"


async def test_a_message_is_read_without_the_frames_before_it(path: Path) -> None:
    index = index_of(path)
    spoilt = next(frame for frame in index.frames if frame.part == "CALL")
    body = bytearray(path.read_bytes())
    body[spoilt.offset : spoilt.offset + spoilt.size] = bytes(spoilt.size)
    path.write_bytes(body)
    with open_archive(path) as archive:
        found = await archive.calls.get(1100)
        assert found is not None
        assert found.sequence == 1100
        chunks = [chunk async for chunk in archive.calls.chunks(1150)]
        assert [raw[0] for chunk in chunks for raw in chunk] == list(range(1151, 1201))
        with pytest.raises(ArchiveError, match="damaged"):
            await archive.calls.get(1)


async def test_random_reading_finds_what_reading_in_order_does(path: Path) -> None:
    with open_archive(path) as archive:
        all_of_it = [raw async for raw in archive.calls.raw()]
        for after in random.Random(3).sample(range(1200), 12):
            stream = archive.calls.chunks(after)
            assert (await anext(stream))[0] == all_of_it[after]
            await stream.aclose()


async def test_blobs_are_unpacked_when_they_are_asked_for(path: Path, tmp_path: Path) -> None:
    digests = list(Blobs(tmp_path / "run" / "blobs").digests())
    with open_archive(path) as archive:
        assert not archive.blobs.folder.exists()
        listed = list(archive.blobs.digests())
        assert set(listed) < set(digests)
        reference = BlobRef(digest=listed[0], size=archive.blobs.path(listed[0]).stat().st_size, address="blob:x")
        assert archive.blobs.get(reference)
        with pytest.raises(BlobError):
            archive.blobs.get(reference.model_copy(update={"digest": "0" * 64}))


def frame(part: str, **change: Any) -> Change:
    def changed(said: dict[str, Any]) -> None:
        next(each for each in said["frames"] if each["part"] == part).update(change)

    return changed


def swapped(said: dict[str, Any]) -> None:
    calls = [each for each in said["frames"] if each["part"] == "CALL"]
    for name in ("lines", "first"):
        calls[0][name], calls[1][name] = calls[1][name], calls[0][name]


WRONG = {
    "a frame elsewhere": frame("CALL", offset=0),
    "a frame that is shorter": frame("EV", size=3),
    "messages that are not there": frame("CALL", lines=1_000_000),
    "sequences out of order": swapped,
    "a first sequence": frame("CALL", first=7),
    "another run": lambda said: said.update(run="../../etc"),
    "a footer with more": lambda said: said["footer"].update(ev=10**12),
    "blobs that are not there": frame("blob", blobs=["0" * 64] * 4),
    "no frames": lambda said: said.update(frames=[]),
}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_an_index_that_cannot_be_is_refused_before_anything_is_read(path: Path, change: Change) -> None:
    with_index(path, change)
    with pytest.raises(ArchiveError, match=path.name), open_archive(path):
        pass
    with pytest.raises(ArchiveError, match=path.name):
        list(read_lines(path))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("change", [frame("CALL", data=1), frame("blob", blobs=["0" * 64])], ids=["data", "blobs"])
async def test_a_frame_that_is_not_what_the_index_says_is_refused_when_it_is_read(path: Path, change: Change) -> None:
    """Of blobs, one digest a frame is the last one's too, so that the footer's count still holds."""
    with_index(path, change)
    with pytest.raises(ArchiveError, match="index"):
        list(read_lines(path))
    with pytest.raises(ArchiveError, match="index"):
        await whole(path)


async def whole(path: Path) -> None:
    """Read all of it by its index."""
    with open_archive(path) as archive:
        for log in (archive.ev, archive.calls):
            assert [raw async for raw in log.raw()]
        for digest in archive.blobs.digests():
            archive.blobs.path(digest)


def test_an_archive_that_lost_its_index_is_truncated(path: Path) -> None:
    with path.open("rb") as file:
        end = list(extents(file))[-1].offset
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(ArchiveError, match="no index"):
        list(read_lines(path))


async def test_an_archive_of_the_first_version_is_read_still(tmp_path: Path) -> None:
    header = b'{"kind":"header","format":"gyre-archive","v":1,"run":"r"}\n'
    digest = hashlib.sha256(header).hexdigest()
    footer = f'{{"kind":"footer","ev":0,"call":0,"blobs":0,"missing":[],"digest":"{digest}"}}\n'.encode()
    (tmp_path / "a").write_bytes(zstandard.compress(header + footer))
    assert summary(tmp_path / "a").digest == digest
    with open_archive(tmp_path / "a") as archive:
        assert (archive.run, await archive.ev.head()) == ("r", 0)


async def test_an_empty_stream_has_no_messages(tmp_path: Path) -> None:
    await export(tmp_path / "a", "r", Kept(), Kept([("call.r.x", b"{}")]), Blobs(tmp_path / "blobs"))
    with open_archive(tmp_path / "a") as archive:
        assert await archive.ev.get(1) is None
        assert await archive.ev.last("") is None
        assert [chunk async for chunk in archive.ev.chunks()] == []
        assert [chunk async for chunk in archive.calls.chunks(1)] == []
