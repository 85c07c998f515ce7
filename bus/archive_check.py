"""What each line of an archive must be, given the lines before it; nothing in an archive is trusted."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from bus import subjects
from bus.archive_frames import ArchiveError, Extent
from bus.archive_index import Footer, Frame, Index, read_index
from bus.archive_lines import LINE, Body, Header, Line, Message, OpenFrame, part_of
from schemas.upcast import first_line


class Check:
    """What a line must be, given the lines before it."""

    def __init__(self, path: Path) -> None:
        self._path, self._digest = path, hashlib.sha256()
        self._number, self._run, self._last_blob = 0, "", ""
        self._counts = {"EV": 0, "CALL": 0, "blobs": 0}
        self._cut, self._frames = False, list[Frame]()
        self._closed: Footer | None = None
        self._expected: Frame | None = None
        self.rest = b""
        """The beginning of a line that goes on."""
        self.total = 0
        """Bytes expanded so far."""

    def begin(self, run: str, frame: Frame) -> None:
        """Begin in the middle, at a frame that the index of this run's archive tells of."""
        self._number, self._run, self._cut, self._expected = 1, run, True, frame
        if frame.part in ("EV", "CALL"):
            self._counts[frame.part] = frame.first - 1

    def frame(self, extent: Extent, texts: Iterator[bytes]) -> Iterator[Line]:
        """The lines of one frame."""
        found: OpenFrame | None = None
        for text in texts:
            line = self.line(text)
            found = found or OpenFrame(part_of(line))
            found.note(line, len(text) + 1)
            yield line
        if self._cut and (found is None or self.rest):
            raise self._wrong("a line goes on in another frame")
        if found is not None:
            self._frames.append(found.frame(extent.offset, extent.size))
        if self._expected is not None and self._frames != [self._expected]:
            raise self._wrong(f"the frame at {extent.offset} is not what the index says")

    def line(self, text: bytes) -> Line:
        """The line in this text; `ArchiveError` if it may not stand here."""
        self._number += 1
        line = self._parse(text)
        if self._closed is not None:
            raise self._wrong("nothing may follow the footer")
        if isinstance(line, Header) != (self._number == 1):
            raise self._wrong("the first line, and no other, is the header")
        self._visit(line)
        self._digest.update(text)
        self._digest.update(b"\n")
        return line

    def end(self) -> None:
        """After the last line."""
        if self.rest:
            raise ArchiveError(self._path, "is truncated: it ends inside a line")
        if self._closed is None:
            raise ArchiveError(self._path, "is truncated: it has no footer")
        index = read_index(self._path)
        if index is None and self._cut:
            raise ArchiveError(self._path, "is truncated: it has no index")
        if index not in (None, Index(run=self._run, frames=tuple(self._frames), footer=self._closed)):
            raise ArchiveError(self._path, "its index is not that of its lines")

    def _parse(self, text: bytes) -> Line:
        try:
            return LINE.validate_json(text)
        except ValidationError as error:
            raise self._wrong(f"is no line of an archive ({first_line(error)})") from None

    def _visit(self, line: Line) -> None:
        match line:
            case Header():
                self._run, self._cut = line.run, line.v > 1
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
        self._closed = line

    def _wrong(self, problem: str) -> ArchiveError:
        return ArchiveError(self._path, f"line {self._number}: {problem}")
