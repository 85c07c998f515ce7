"""The file format of a run archive: one zstd-compressed JSON line each, header first, footer last.

    {"kind":"header","format":"gyre-archive","v":2,"run":"demo"}
    {"kind":"message","stream":"EV","sequence":1,"subject":"ev.demo.control.run","text":"{...}","base64":null}
    {"kind":"blob","digest":"9f86...","body":"..."}
    {"kind":"footer","ev":812,"call":4410,"blobs":96,"missing":[],"digest":"..."}

It is cut into frames of a mebibyte, none with lines of two kinds, and an index of them stands at the end
(`bus.archive_index`). Messages stand in order, EV first, each with exactly the stored bytes (`text` where
they are UTF-8, `base64` where not); a commit carries its own time. Blobs follow, in order of their digests. The
footer's digest is over all lines before it.
Nothing in an archive is trusted: names, order, digests and sizes are checked before a line is given to anyone, and what
it may expand to is limited.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from bus.archive_check import Check
from bus.archive_frames import ArchiveError, Extent, expanded, extents
from bus.archive_index import Footer, Frame, read_index
from bus.archive_lines import Header, Line

__all__ = ["ArchiveError", "ArchiveLimits", "Footer", "Summary", "read_frame", "read_lines", "summary"]
_RATIO_FROM_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What an archive may expand to before it is refused."""

    line_bytes: int = 512 << 20
    """One line: memory that reading takes."""
    total_bytes: int = 64 << 30
    """All lines: disk that reading without a server takes."""
    ratio: int = 1000
    """Expanded to compressed, looked at beyond 64 MiB expanded."""


def read_lines(path: Path, limits: ArchiveLimits | None = None) -> Generator[Line, None, None]:
    """Every line of an archive, checked; the footer, which vouches for the rest, comes last.

    Raises:
        ArchiveError: at the first thing that is wrong; what was given before it is not to be used.
    """
    check = Check(path)
    try:
        with path.open("rb") as file:
            for extent in extents(file):
                if extent.skippable:
                    continue
                yield from check.frame(extent, _split(path, file, extent, limits or ArchiveLimits(), check))
    except OSError as error:
        raise ArchiveError(path, f"cannot be read ({error.strerror or error})") from error
    except (ValueError, zstandard.ZstdError) as error:
        raise ArchiveError(path, f"is damaged or no .jsonl.zst file ({error})") from error
    check.end()


@dataclass(frozen=True, slots=True)
class Summary:
    """What an archive says it is."""

    run: str
    digest: str
    """Over all of its lines but the last."""
    ev: int
    """Last sequence of EV."""
    call: int


def summary(path: Path, limits: ArchiveLimits | None = None) -> Summary:
    """Of its index, if it has one; else all of it is read. Raises `ArchiveError`."""
    index = read_index(path)
    if index is not None:
        return Summary(index.run, index.footer.digest, index.footer.ev, index.footer.call)
    run = ""
    for line in read_lines(path, limits):
        if isinstance(line, Header):
            run = line.run
        if isinstance(line, Footer):
            return Summary(run, line.digest, line.ev, line.call)
    raise ArchiveError(path, "is truncated: it has no footer")


def read_frame(path: Path, file: BinaryIO, frame: Frame, run: str, limits: ArchiveLimits) -> list[Line]:
    """The lines of one frame, checked to be what the index says. Raises `ArchiveError`."""
    check = Check(path)
    check.begin(run, frame)
    try:
        return list(check.frame(frame.extent, _split(path, file, frame.extent, limits, check)))
    except OSError as error:
        raise ArchiveError(path, f"cannot be read ({error.strerror or error})") from error
    except zstandard.ZstdError as error:
        raise ArchiveError(path, f"is damaged ({error})") from error


def _split(path: Path, file: BinaryIO, extent: Extent, limits: ArchiveLimits, check: Check) -> Iterator[bytes]:
    """Lines of a frame without their ends, expanded no further than the limits allow; the rest of one stays."""
    parts, waiting = [check.rest], len(check.rest)
    for chunk in expanded(file, extent):
        check.total += len(chunk)
        waiting += len(chunk)
        _check_size(path, limits, waiting, check.total, extent.offset + extent.size)
        parts.append(chunk)
        if b"\n" in chunk:
            *whole, rest = b"".join(parts).split(b"\n")
            parts, waiting = [rest], len(rest)
            yield from whole
    check.rest = b"".join(parts)


def _check_size(path: Path, limits: ArchiveLimits, line: int, total: int, compressed: int) -> None:
    if line > limits.line_bytes:
        raise ArchiveError(path, f"a line is longer than {limits.line_bytes} bytes")
    if total > limits.total_bytes:
        raise ArchiveError(path, f"it expands to more than {limits.total_bytes} bytes")
    if total > _RATIO_FROM_BYTES and total > limits.ratio * compressed:
        raise ArchiveError(path, f"it expands more than {limits.ratio}-fold")
