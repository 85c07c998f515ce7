"""The file format of a run archive: one zstd-compressed JSON line each, header first, footer last.

    {"kind":"header","format":"gyre-archive","v":1,"run":"demo"}
    {"kind":"message","stream":"EV","sequence":1,"subject":"ev.demo.control.run","text":"{...}","base64":null}
    {"kind":"blob","digest":"9f86...","body":"..."}
    {"kind":"footer","ev":812,"call":4410,"blobs":96,"missing":[],"digest":"..."}

Messages stand in order, EV first, each with exactly the stored bytes (`text` where they are UTF-8, `base64` where not);
a commit carries its own time. Blobs follow, in order of their digests. The footer's digest is over all lines before it.
Nothing in an archive is trusted: names, order, digests and sizes are checked before a line is given to anyone, and what
it may expand to is limited.
"""

import hashlib
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import zstandard
from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from bus import subjects
from bus.blobs import sync_folder
from bus.errors import Refused
from schemas.base import Digest, Model, Token
from schemas.speakers import Stream
from schemas.upcast import first_line

_LEVEL = 6
_READ_BYTES = 1 << 18
_RATIO_FROM_BYTES = 64 << 20
_WINDOW_BYTES = 1 << 27


class ArchiveError(Refused):
    """The file is no archive, is damaged, or is more than it may be; nothing of it was taken over."""

    def __init__(self, path: Path, problem: str) -> None:
        """Name the file and what is wrong with it."""
        super().__init__(f"archive {path}: {problem}")
        self.path, self.problem = path, problem


class Header(Model):
    """The first line."""

    kind: Literal["header"] = "header"
    format: Literal["gyre-archive"] = "gyre-archive"
    v: Literal[1] = 1
    run: Token


class Message(Model):
    """One stored message; exactly one of `text` and `base64` is there."""

    kind: Literal["message"] = "message"
    stream: Stream
    sequence: PositiveInt
    subject: str
    text: str | None
    base64: bytes | None

    @property
    def data(self) -> bytes:
        """The stored bytes."""
        return self.text.encode() if self.text is not None else self.base64 or b""


class Body(Model):
    """One blob."""

    kind: Literal["blob"] = "blob"
    digest: Digest
    body: bytes


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


Line = Annotated[Header | Message | Body | Footer, Field(discriminator="kind")]
_LINE: TypeAdapter[Line] = TypeAdapter(Line)


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What an archive may expand to before it is refused."""

    line_bytes: int = 512 << 20
    """One line: memory that reading takes."""
    total_bytes: int = 64 << 30
    """All lines: disk that reading without a server takes."""
    ratio: int = 1000
    """Expanded to compressed, looked at beyond 64 MiB expanded."""


class ArchiveWriter:
    """Lines into a file that is being written; counts and digest are kept for the footer."""

    def __init__(self, run: str, out: "zstandard.ZstdCompressionWriter") -> None:
        """Write the header."""
        self._out, self._digest = out, hashlib.sha256()
        self._counts = {"EV": 0, "CALL": 0, "blobs": 0}
        self._line(Header(run=run))

    def message(self, stream: Stream, sequence: int, subject: str, data: bytes) -> None:
        """The next message of a stream."""
        text = _as_text(data)
        packed = data if text is None else None
        self._line(Message(stream=stream, sequence=sequence, subject=subject, text=text, base64=packed))
        self._counts[stream] += 1

    def blob(self, digest: str, body: bytes) -> None:
        """The next blob, in order of digests."""
        self._line(Body(digest=digest, body=body))
        self._counts["blobs"] += 1

    def footer(self, missing: tuple[str, ...]) -> Footer:
        """Close the archive."""
        counts = self._counts
        footer = Footer(
            ev=counts["EV"],
            call=counts["CALL"],
            blobs=counts["blobs"],
            missing=missing,
            digest=self._digest.hexdigest(),
        )
        self._line(footer)
        return footer

    def _line(self, line: Model) -> None:
        text = line.model_dump_json().encode() + b"\n"
        self._digest.update(text)
        self._out.write(text)


@contextmanager
def writing(path: Path, run: str) -> Iterator[ArchiveWriter]:
    """Write an archive: the path holds all of it, on disk, or what it held before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.new")
    try:
        with unfinished.open("wb") as file:
            compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
            with compressor.stream_writer(file, closefd=False) as out:
                yield ArchiveWriter(run, out)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_lines(path: Path, limits: ArchiveLimits | None = None) -> Generator[Line, None, None]:
    """Every line of an archive, checked; the footer, which vouches for the rest, comes last.

    Raises:
        ArchiveError: at the first thing that is wrong; what was given before it is not to be used.
    """
    check = _Check(path)
    try:
        with path.open("rb") as file:
            for text in _split(path, file, limits or ArchiveLimits()):
                yield check.line(text)
    except OSError as error:
        raise ArchiveError(path, f"cannot be read ({error.strerror or error})") from error
    except zstandard.ZstdError as error:
        raise ArchiveError(path, f"is damaged or no .jsonl.zst file ({error})") from error
    check.end()


def _split(path: Path, file: BinaryIO, limits: ArchiveLimits) -> Iterator[bytes]:
    """Lines without their ends, expanded no further than the limits allow."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    parts: list[bytes] = []
    waiting = total = 0
    with decompressor.stream_reader(file, read_size=_READ_BYTES, read_across_frames=True, closefd=False) as source:
        while chunk := source.read(_READ_BYTES):
            total += len(chunk)
            waiting += len(chunk)
            _check_size(path, limits, waiting, total, file.tell())
            parts.append(chunk)
            if b"\n" in chunk:
                *whole, rest = b"".join(parts).split(b"\n")
                parts, waiting = [rest], len(rest)
                yield from whole
    if waiting:
        raise ArchiveError(path, "is truncated: it ends inside a line")


def _check_size(path: Path, limits: ArchiveLimits, line: int, total: int, compressed: int) -> None:
    if line > limits.line_bytes:
        raise ArchiveError(path, f"a line is longer than {limits.line_bytes} bytes")
    if total > limits.total_bytes:
        raise ArchiveError(path, f"it expands to more than {limits.total_bytes} bytes")
    if total > _RATIO_FROM_BYTES and total > limits.ratio * compressed:
        raise ArchiveError(path, f"it expands more than {limits.ratio}-fold")


class _Check:
    """What a line must be, given the lines before it."""

    def __init__(self, path: Path) -> None:
        self._path, self._digest = path, hashlib.sha256()
        self._number, self._run, self._last_blob = 0, "", ""
        self._counts = {"EV": 0, "CALL": 0, "blobs": 0}
        self._closed = False

    def line(self, text: bytes) -> Line:
        """The line in this text; `ArchiveError` if it may not stand here."""
        self._number += 1
        line = self._parse(text)
        if self._closed:
            raise self._wrong("nothing may follow the footer")
        if isinstance(line, Header) != (self._number == 1):
            raise self._wrong("the first line, and no other, is the header")
        self._visit(line)
        self._digest.update(text)
        self._digest.update(b"\n")
        return line

    def end(self) -> None:
        """After the last line."""
        if not self._closed:
            raise ArchiveError(self._path, "is truncated: it has no footer")

    def _parse(self, text: bytes) -> Line:
        try:
            return _LINE.validate_json(text)
        except ValidationError as error:
            raise self._wrong(f"is no line of an archive ({first_line(error)})") from None

    def _visit(self, line: Line) -> None:
        match line:
            case Header():
                self._run = line.run
            case Message():
                self._message(line)
            case Body():
                self._blob(line)
            case Footer():
                self._footer(line)

    def _message(self, line: Message) -> None:
        if (line.text is None) == (line.base64 is None):
            raise self._wrong("a message has either text or base64")
        if self._last_blob or (line.stream == "EV" and self._counts["CALL"]):
            raise self._wrong("messages of EV, messages of CALL and blobs stand in this order")
        if line.sequence != self._counts[line.stream] + 1:
            raise self._wrong(f"sequence {line.sequence} of {line.stream} follows {self._counts[line.stream]}")
        self._check_subject(line)
        self._counts[line.stream] += 1

    def _check_subject(self, line: Message) -> None:
        try:
            place = subjects.parse(line.subject)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        if (place.kind, place.run) != (line.stream.lower(), self._run):
            raise self._wrong(f"subject {line.subject[:200]} is not in {line.stream} of run {self._run}")

    def _blob(self, line: Body) -> None:
        if line.digest <= self._last_blob:
            raise self._wrong("blobs stand in order of their digests, each once")
        if hashlib.sha256(line.body).hexdigest() != line.digest:
            raise self._wrong(f"blob {line.digest}: its bytes are others")
        self._last_blob = line.digest
        self._counts["blobs"] += 1

    def _footer(self, line: Footer) -> None:
        counts = {"EV": line.ev, "CALL": line.call, "blobs": line.blobs}
        if counts != self._counts:
            raise self._wrong(f"the footer counts {counts}, the lines before it are {self._counts}")
        if line.digest != self._digest.hexdigest():
            raise self._wrong("the footer's digest is not that of the lines before it")
        self._closed = True

    def _wrong(self, problem: str) -> ArchiveError:
        return ArchiveError(self._path, f"line {self._number}: {problem}")


def _as_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
