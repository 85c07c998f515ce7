"""An archive's index: which of its frames holds which messages and blobs, so that reading may begin anywhere.

It is the last frame of the file, one that decompressors pass over: `zstd -dc` gives the lines as if it were not there.
Its content is the index as JSON, compressed, then the length of that and a mark. Reading by the index checks the frames
it reads; reading all lines (`archive_file.read_lines`) also checks that the index is theirs.
"""

import io
import struct
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import zstandard
from pydantic import Field, NonNegativeInt, ValidationError

from bus.archive_frames import SKIPPABLE, ArchiveError, Extent, expanded
from schemas.base import Digest, Model, Token
from schemas.speakers import Stream
from schemas.upcast import first_line

Part = Literal["header", "EV", "CALL", "blob", "footer"]
_MARK = b"gyreidx1"
_TRAILER = struct.Struct("<I8s")
_MOST_BYTES = 512 << 20
"""What an index may expand to."""


class Footer(Model):
    """The last line: what the lines before it are."""

    kind: Literal["footer"] = "footer"
    ev: NonNegativeInt
    """Messages of EV: also its last sequence."""
    call: NonNegativeInt
    blobs: NonNegativeInt
    missing: tuple[Digest, ...]
    """Blobs that the log refers to and the run's store did not have, or had damaged."""
    digest: Digest


class Frame(Model):
    """A frame with lines of one part."""

    part: Part
    offset: NonNegativeInt
    size: NonNegativeInt
    """Bytes in the file."""
    lines: Annotated[int, Field(ge=1)]
    first: NonNegativeInt = 0
    """Sequence of its first message; 0 in other parts."""
    data: NonNegativeInt = 0
    """Bytes of its messages as they were stored."""
    blobs: tuple[Digest, ...] = ()
    """Its blobs, in order."""

    @property
    def extent(self) -> Extent:
        """Where it lies."""
        return Extent(self.offset, self.size, skippable=False)


class Index(Model):
    """All frames of an archive, in order, and its footer."""

    v: Literal[1] = 1
    run: Token
    frames: tuple[Frame, ...]
    footer: Footer

    def of(self, part: Part) -> tuple[Frame, ...]:
        """The frames of one part."""
        return tuple(frame for frame in self.frames if frame.part == part)


def frame_of(frames: tuple[Frame, ...], sequence: int) -> int:
    """Which of a stream's frames holds a sequence; the last one for any beyond."""
    return max(0, bisect_right(frames, sequence, key=lambda frame: frame.first) - 1)


def write_index(file: BinaryIO, index: Index) -> None:
    """Append it."""
    body = zstandard.ZstdCompressor(level=6).compress(index.model_dump_json().encode())
    file.write(struct.pack("<II", SKIPPABLE, len(body) + _TRAILER.size) + body + _TRAILER.pack(len(body), _MARK))


def read_index(path: Path) -> Index | None:
    """The index at a file's end; None where it has none. Raises `ArchiveError`: it is no index of that file."""
    try:
        with path.open("rb") as file:
            place = _place(file)
            if place is None:
                return None
            text = bytearray()
            for piece in expanded(file, place):
                text += piece
                if len(text) > _MOST_BYTES:
                    raise ArchiveError(path, f"its index expands to more than {_MOST_BYTES} bytes")
        index = Index.model_validate_json(bytes(text))
    except OSError as error:
        raise ArchiveError(path, f"cannot be read ({error.strerror or error})") from error
    except ValidationError as error:
        raise ArchiveError(path, f"its index is none ({first_line(error)})") from None
    except (ValueError, zstandard.ZstdError) as error:
        raise ArchiveError(path, f"its index is damaged ({error})") from error
    if problem := _problem(index, place.offset - 8):
        raise ArchiveError(path, f"its index is wrong: {problem}")
    return index


def _place(file: BinaryIO) -> Extent | None:
    """Where the compressed index lies; None: there is none."""
    end = file.seek(0, io.SEEK_END)
    if end < _TRAILER.size + 8:
        return None
    file.seek(end - _TRAILER.size)
    size, mark = _TRAILER.unpack(file.read(_TRAILER.size))
    if mark != _MARK:
        return None
    begin = end - _TRAILER.size - size
    file.seek(max(0, begin - 8))
    if begin < 8 or struct.unpack("<II", file.read(8)) != (SKIPPABLE, size + _TRAILER.size):  # noqa: PLR2004
        raise ValueError("its frame has another length")
    return Extent(begin, size, skippable=False)


def _problem(index: Index, end: int) -> str:
    """What cannot be of an index of a file whose lines end at an offset; "" if nothing."""
    place = 0
    for frame in index.frames:
        if frame.offset != place:
            return f"a frame is said to lie at {frame.offset}, the one before it ends at {place}"
        place += frame.size
    if place != end:
        return f"the frames are said to end at {place}, they end at {end}"
    if [frame.part for frame in index.frames] != _ordered(frame.part for frame in index.frames):
        return "its parts stand in no order"
    footer = index.footer
    for part, count in (("EV", footer.ev), ("CALL", footer.call)):
        if (found := _count(index, part)) != count:  # type: ignore[arg-type]
            return f"{part} is said to have {count} messages, its frames {found}"
    if sum(len(frame.blobs) for frame in index.frames) != footer.blobs:
        return "its blobs are not as many as the footer says"
    return ""


def _ordered(parts: Iterable[Part]) -> list[Part]:
    order: tuple[Part, ...] = ("header", "EV", "CALL", "blob", "footer")
    return sorted(parts, key=order.index)


def _count(index: Index, part: Stream) -> int:
    """Messages of a stream's frames, where they follow each other; -1 where not."""
    count = 0
    for frame in index.of(part):
        if frame.first != count + 1:
            return -1
        count += frame.lines
    return count
