"""The zstd frames of a file: where each begins and ends, and what one expands to, within limits.

Frames are found by walking over their block headers (RFC 8878, 3.1.1), without expanding anything. A skippable frame
holds what decompressors pass over.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import zstandard

from bus.errors import Refused

SKIPPABLE = 0x184D2A5E
"""Magic number of a skippable frame as we write it; sixteen of them exist, up to ...5F."""
_MAGIC, _FIRST_SKIPPABLE = 0xFD2FB528, 0x184D2A50
_READ_BYTES = 1 << 18
_WINDOW_BYTES = 1 << 27
_RLE, _RESERVED = 1, 3


class ArchiveError(Refused):
    """The file is no archive, is damaged, or is more than it may be; nothing of it was taken over."""

    def __init__(self, path: Path, problem: str) -> None:
        """Name the file and what is wrong with it."""
        super().__init__(f"archive {path}: {problem}")
        self.path, self.problem = path, problem


class Extent(NamedTuple):
    """One frame in a file."""

    offset: int
    size: int
    """Bytes, as they lie there."""
    skippable: bool


def extents(file: BinaryIO) -> Iterator[Extent]:
    """Every frame of a file in order. Raises `ValueError` where there is none, or one is cut short."""
    end = file.seek(0, 2)
    offset = 0
    while offset < end:
        file.seek(offset)
        magic, size = struct.unpack("<II", _exactly(file, 8))
        if magic & 0xFFFFFFF0 == _FIRST_SKIPPABLE:
            after, skippable = offset + 8 + size, True
        elif magic == _MAGIC:
            after, skippable = _frame_end(file, offset + 4), False
        else:
            raise ValueError("a frame begins with an unknown number")
        if after > end:
            raise ValueError("a frame is cut short")
        yield Extent(offset, after - offset, skippable)
        offset = after


def expanded(file: BinaryIO, extent: Extent) -> Iterator[bytes]:
    """What a frame expands to, a piece at a time. Raises `zstandard.ZstdError`."""
    file.seek(extent.offset)
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    source = _Slice(file, extent.size)
    with decompressor.stream_reader(source, read_size=_READ_BYTES) as stream:  # type: ignore[arg-type]
        while piece := stream.read(_READ_BYTES):
            yield piece


class _Slice:
    """The next bytes of a file and no more."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left, self._place = file, size, file.tell()

    def read(self, size: int = -1) -> bytes:
        """Whoever else moves in the file meanwhile does not matter."""
        self._file.seek(self._place)
        found = self._file.read(min(self._left, size if size >= 0 else self._left))
        self._left -= len(found)
        self._place += len(found)
        return found


def _frame_end(file: BinaryIO, offset: int) -> int:
    """Where a frame ends whose header begins here, behind its magic number."""
    file.seek(offset)
    (descriptor,) = _exactly(file, 1)
    single = descriptor >> 5 & 1
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    content = ((1 if single else 0), 2, 4, 8)[descriptor >> 6]
    place = offset + 1 + (1 - single) + dictionary + content
    last = 0
    while not last:
        file.seek(place)
        header = int.from_bytes(_exactly(file, 3), "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            raise ValueError("a block is of no known kind")
        place += 3 + (1 if kind == _RLE else size)
    return place + (4 if descriptor >> 2 & 1 else 0)


def _exactly(file: BinaryIO, size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise ValueError("a frame is cut short")
    return found
