"""Where the messages and blobs of an opened archive are: unpacked into files, or in the archive's own frames."""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from bus.archive_file import ArchiveLimits, read_frame
from bus.archive_index import Frame, Index, frame_of
from bus.archive_lines import Body, Line, Message
from bus.blobs import Blobs
from bus.log import Raw
from schemas.speakers import Stream

_CHUNK = 256
_FRAMES_KEPT = 16
"""Expanded frames that are kept in memory: a mebibyte or two each."""


class Store(Protocol):
    """The messages of one stream; their sequences begin at 1 and have no gap."""

    @property
    def count(self) -> int:
        """Messages."""

    @property
    def size(self) -> int:
        """Bytes of all messages."""

    def get(self, sequence: int) -> Raw:
        """One that is there."""

    def after(self, sequence: int) -> Iterator[list[Raw]]:
        """Those that follow a sequence, some at a time."""

    def backwards(self) -> Iterator[Raw]:
        """All, the last one first."""

    def close(self) -> None:
        """Let go of the file."""


class Unpacked:
    """Messages in a file of their own; memory holds an index of a few dozen bytes a message."""

    def __init__(self, path: Path) -> None:
        """Begin empty."""
        self._subjects: list[str] = []
        self._ends = array("Q", [0])
        self._file = path.open("w+b")

    def add(self, subject: str, data: bytes) -> None:
        """Unpack the next message."""
        self._file.write(data)
        self._subjects.append(subject)
        self._ends.append(self._ends[-1] + len(data))

    @property
    def count(self) -> int:
        """Messages."""
        return len(self._subjects)

    @property
    def size(self) -> int:
        """See `Store`."""
        return self._ends[-1]

    def get(self, sequence: int) -> Raw:
        """See `Store`."""
        start, end = self._ends[sequence - 1], self._ends[sequence]
        self._file.seek(start)
        return sequence, self._subjects[sequence - 1], self._file.read(end - start)

    def after(self, sequence: int) -> Iterator[list[Raw]]:
        """See `Store`."""
        for first in range(sequence + 1, self.count + 1, _CHUNK):
            yield [self.get(each) for each in range(first, min(first + _CHUNK, self.count + 1))]

    def backwards(self) -> Iterator[Raw]:
        """See `Store`."""
        return (self.get(sequence) for sequence in range(self.count, 0, -1))

    def close(self) -> None:
        """See `Store`."""
        self._file.close()


class Frames:
    """The frames of an archive with an index, expanded when they are asked for; the last few are kept."""

    def __init__(self, path: Path, index: Index, limits: ArchiveLimits) -> None:
        """Of an archive whose index was read."""
        self.index = index
        self._path, self._limits = path, limits
        self._file = path.open("rb")
        self._kept: OrderedDict[int, list[Line]] = OrderedDict()

    def lines(self, frame: Frame) -> list[Line]:
        """Raises `ArchiveError`: it is not what the index says."""
        found = self._kept.get(frame.offset)
        if found is None:
            found = read_frame(self._path, self._file, frame, self.index.run, self._limits)
            self._kept[frame.offset] = found
            if len(self._kept) > _FRAMES_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(frame.offset)
        return found

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class Framed:
    """Messages in an archive's own frames."""

    def __init__(self, frames: Frames, stream: Stream) -> None:
        """One stream of it."""
        self._frames, self._own = frames, frames.index.of(stream)
        self._stream = stream

    @property
    def count(self) -> int:
        """See `Store`."""
        footer = self._frames.index.footer
        return footer.ev if self._stream == "EV" else footer.call

    @property
    def size(self) -> int:
        """See `Store`."""
        return sum(frame.data for frame in self._own)

    def get(self, sequence: int) -> Raw:
        """See `Store`."""
        frame = self._own[frame_of(self._own, sequence)]
        return self._raw(frame)[sequence - frame.first]

    def after(self, sequence: int) -> Iterator[list[Raw]]:
        """See `Store`."""
        if sequence >= self.count:
            return
        for frame in self._own[frame_of(self._own, sequence + 1) :]:
            yield self._raw(frame)[max(0, sequence + 1 - frame.first) :]

    def backwards(self) -> Iterator[Raw]:
        """See `Store`."""
        return (message for frame in reversed(self._own) for message in reversed(self._raw(frame)))

    def close(self) -> None:
        """See `Store`."""

    def _raw(self, frame: Frame) -> list[Raw]:
        lines = self._frames.lines(frame)
        return [(line.sequence, line.subject, line.data) for line in lines if isinstance(line, Message)]


class FramedBlobs(Blobs):
    """Blobs in an archive's own frames, put into a folder when they are asked for."""

    def __init__(self, folder: Path, frames: Frames) -> None:
        """`folder` is private and goes with the archive."""
        super().__init__(folder, durable=False)
        self._frames = frames
        self._place = {digest: frame for frame in frames.index.of("blob") for digest in frame.blobs}

    def path(self, digest: str) -> Path:
        """See `Blobs`; a blob of the archive is there afterwards."""
        path = super().path(digest)
        frame = self._place.get(digest)
        if frame is not None and not path.is_file():
            self._unpack(path, digest, frame)
        return path

    def digests(self) -> Iterator[str]:
        """See `Blobs`."""
        return iter(sorted(self._place))

    def _unpack(self, path: Path, digest: str, frame: Frame) -> None:
        bodies = (line.body for line in self._frames.lines(frame) if isinstance(line, Body) and line.digest == digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(next(bodies))
