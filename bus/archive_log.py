"""A run's logs read from an archive, with no server: the read side of `bus.log.Log`.

The archive is checked whole and unpacked into a private folder; memory holds an index of a few dozen bytes a message.
"""

import asyncio
import tempfile
from array import array
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bus import codec, subjects
from bus.archive_file import ArchiveLimits, Body, Footer, Header, Message, read_lines
from bus.blobs import Blobs
from bus.log import Stored

_YIELD_EVERY = 256


class ArchiveLog:
    """One stream of an archive; it never grows, so that reading it ends."""

    def __init__(self, path: Path, blobs: Blobs) -> None:
        """Begin empty; unpack into this file."""
        self._blobs = blobs
        self._subjects: list[str] = []
        self._ends = array("Q", [0])
        self._file = path.open("w+b")

    def add(self, subject: str, data: bytes) -> None:
        """Unpack the next message."""
        self._file.write(data)
        self._subjects.append(subject)
        self._ends.append(self._ends[-1] + len(data))

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return self._ends[-1]

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    async def read(self, after: int = 0, *filters: str) -> AsyncGenerator[Stored, None]:
        """Everything stored after a sequence, in order; ends with the archive. See `Log`."""
        wanted = subjects.wanted(filters)
        for sequence in range(after + 1, len(self._subjects) + 1):
            if sequence % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
            if subjects.under(wanted, self._subjects[sequence - 1]):
                yield self._stored(sequence)

    async def last(self, filter: str) -> Stored | None:  # noqa: A002
        """The last message under a filter ("" for any)."""
        for sequence in range(len(self._subjects), 0, -1):
            if not filter or subjects.matches(filter, self._subjects[sequence - 1]):
                return self._stored(sequence)
        return None

    async def get(self, sequence: int) -> Stored | None:
        """The message with this sequence."""
        return self._stored(sequence) if 0 < sequence <= len(self._subjects) else None

    async def head(self) -> int:
        """The last sequence; 0 for an empty log."""
        return len(self._subjects)

    async def raw(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        """(sequence, subject, stored bytes) of every message."""
        for sequence, subject in enumerate(self._subjects, start=1):
            yield sequence, subject, self._data(sequence)

    def _stored(self, sequence: int) -> Stored:
        return codec.decode(sequence, self._subjects[sequence - 1], self._data(sequence), self._blobs)

    def _data(self, sequence: int) -> bytes:
        start, end = self._ends[sequence - 1], self._ends[sequence]
        self._file.seek(start)
        return self._file.read(end - start)


@dataclass(frozen=True, slots=True)
class Archive:
    """An unpacked archive."""

    run: str
    ev: ArchiveLog
    calls: ArchiveLog
    blobs: Blobs
    footer: Footer
    """What it holds, and which blobs the run's store did not have when it was exported."""


@contextmanager
def open_archive(path: Path, limits: ArchiveLimits | None = None) -> Iterator[Archive]:
    """Check an archive whole and unpack it into a private folder, which goes when the context ends.

    Raises:
        ArchiveError: it is not what it should be; one line.
    """
    with tempfile.TemporaryDirectory(prefix="gyre-archive-") as folder:
        blobs = Blobs(Path(folder) / "blobs", durable=False)
        logs = {"EV": ArchiveLog(Path(folder) / "ev", blobs), "CALL": ArchiveLog(Path(folder) / "call", blobs)}
        try:
            run, footer = _unpack(path, limits, logs, blobs)
            yield Archive(run, logs["EV"], logs["CALL"], blobs, footer)
        finally:
            for log in logs.values():
                log.close()


def _unpack(path: Path, limits: ArchiveLimits | None, logs: dict[str, ArchiveLog], blobs: Blobs) -> tuple[str, Footer]:
    run, footer = "", None
    for line in read_lines(path, limits):
        match line:
            case Header():
                run = line.run
            case Message():
                logs[line.stream].add(line.subject, line.data)
            case Body():
                blobs.put(line.body)
            case Footer():
                footer = line
    assert footer is not None, "read_lines ends with a footer or an error"
    return run, footer
