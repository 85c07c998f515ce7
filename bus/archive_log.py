"""A run's logs read from an archive, with no server: the read side of `bus.log.Log`.

An archive with an index is read where it lies: opening it costs the index, reading costs the frames that are read, each
checked when it is. One without an index is checked whole and unpacked into a private folder.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bus import codec, subjects
from bus.archive_file import ArchiveLimits, Footer, read_lines
from bus.archive_index import read_index
from bus.archive_lines import Body, Header, Message
from bus.archive_store import Framed, FramedBlobs, Frames, Store, Unpacked
from bus.blobs import Blobs
from bus.log import Raw, Stored
from schemas.speakers import Stream


class ArchiveLog:
    """One stream of an archive; it never grows, so that reading it ends."""

    def __init__(self, store: Store, blobs: Blobs) -> None:
        """The messages, and the blobs that they refer to."""
        self._store, self._blobs = store, blobs

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return self._store.size

    async def read(self, after: int = 0, *filters: str) -> AsyncGenerator[Stored, None]:
        """Everything stored after a sequence, in order; ends with the archive. See `Log`."""
        wanted = subjects.wanted(filters)
        for chunk in self._store.after(after):
            await asyncio.sleep(0)
            for raw in chunk:
                if subjects.under(wanted, raw[1]):
                    yield codec.decode(*raw, self._blobs)

    async def chunks(self, after: int = 0) -> AsyncGenerator[list[Raw], None]:
        """See `Log`."""
        for chunk in self._store.after(after):
            await asyncio.sleep(0)
            yield chunk

    async def last(self, filter: str) -> Stored | None:  # noqa: A002
        """The last message under a filter ("" for any)."""
        found = (raw for raw in self._store.backwards() if not filter or subjects.matches(filter, raw[1]))
        raw = next(found, None)
        return codec.decode(*raw, self._blobs) if raw else None

    async def get(self, sequence: int) -> Stored | None:
        """The message with this sequence."""
        there = 0 < sequence <= self._store.count
        return codec.decode(*self._store.get(sequence), self._blobs) if there else None

    async def head(self) -> int:
        """The last sequence; 0 for an empty log."""
        return self._store.count

    async def raw(self) -> AsyncGenerator[Raw, None]:
        """(sequence, subject, stored bytes) of every message."""
        for chunk in self._store.after(0):
            for raw in chunk:
                yield raw


@dataclass(frozen=True, slots=True)
class Archive:
    """An opened archive."""

    run: str
    ev: ArchiveLog
    calls: ArchiveLog
    blobs: Blobs
    footer: Footer
    """What it holds, and which blobs the run's store did not have when it was exported."""


@contextmanager
def open_archive(path: Path, limits: ArchiveLimits | None = None) -> Iterator[Archive]:
    """Open an archive to be read: by its index, or unpacked into a private folder, which goes when the context ends.

    By its index, what is wrong with a frame is an `ArchiveError` of whoever reads it.

    Raises:
        ArchiveError: it is not what it should be; one line.
    """
    limits = limits or ArchiveLimits()
    index = read_index(path)
    with tempfile.TemporaryDirectory(prefix="gyre-archive-") as name:
        folder = Path(name)
        if index is None:
            with _unpacked(path, limits, folder) as archive:
                yield archive
            return
        with closing(Frames(path, index, limits)) as frames:
            blobs = FramedBlobs(folder / "blobs", frames)
            ev, calls = ArchiveLog(Framed(frames, "EV"), blobs), ArchiveLog(Framed(frames, "CALL"), blobs)
            yield Archive(index.run, ev, calls, blobs, index.footer)


@contextmanager
def _unpacked(path: Path, limits: ArchiveLimits, folder: Path) -> Iterator[Archive]:
    blobs = Blobs(folder / "blobs", durable=False)
    stores: dict[Stream, Unpacked] = {"EV": Unpacked(folder / "ev"), "CALL": Unpacked(folder / "call")}
    try:
        run, footer = _unpack(path, limits, stores, blobs)
        ev, calls = ArchiveLog(stores["EV"], blobs), ArchiveLog(stores["CALL"], blobs)
        yield Archive(run, ev, calls, blobs, footer)
    finally:
        for store in stores.values():
            store.close()


def _unpack(path: Path, limits: ArchiveLimits, stores: dict[Stream, Unpacked], blobs: Blobs) -> tuple[str, Footer]:
    run, footer = "", None
    for line in read_lines(path, limits):
        match line:
            case Header():
                run = line.run
            case Message():
                stores[line.stream].add(line.subject, line.data)
            case Body():
                blobs.put(line.body)
            case Footer():
                footer = line
    assert footer is not None, "read_lines ends with a footer or an error"
    return run, footer
