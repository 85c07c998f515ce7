"""The lines of a run archive, as models (their order and meaning: `bus.archive_file`)."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, TypeAdapter

from bus.archive_index import Footer, Frame, Part
from schemas.base import Digest, Model, Token
from schemas.speakers import Stream


class Header(Model):
    """The first line."""

    kind: Literal["header"] = "header"
    format: Literal["gyre-archive"] = "gyre-archive"
    v: Literal[1, 2] = 2
    """2: the file is cut into frames and ends with an index of them (`archive_index`); 1: neither."""
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


Line = Annotated[Header | Message | Body | Footer, Field(discriminator="kind")]
LINE: TypeAdapter[Line] = TypeAdapter(Line)


@dataclass(slots=True)
class OpenFrame:
    """A frame that is not full yet; what it is to be in the index."""

    part: Part
    lines: int = 0
    size: int = 0
    """Bytes, expanded."""
    first: int = 0
    data: int = 0
    blobs: list[str] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    """Its lines, of one that is being written."""

    def add(self, text: bytes) -> None:
        """The next line."""
        self.texts.append(text)
        self.lines += 1
        self.size += len(text)

    def add_message(self, sequence: int, size: int) -> None:
        """That it is a message."""
        self.first = self.first or sequence
        self.data += size

    def note(self, line: Line, size: int) -> None:
        """A line that was read."""
        self.lines += 1
        self.size += size
        if isinstance(line, Message):
            self.add_message(line.sequence, len(line.data))
        if isinstance(line, Body):
            self.blobs.append(line.digest)

    def frame(self, offset: int, size: int) -> Frame:
        """What the index says of it."""
        return Frame(
            part=self.part,
            offset=offset,
            size=size,
            lines=self.lines,
            first=self.first,
            data=self.data,
            blobs=tuple(self.blobs),
        )


def part_of(line: Line) -> Part:
    """Of what part of an archive a line is."""
    match line:
        case Header():
            return "header"
        case Message():
            return line.stream
        case Body():
            return "blob"
        case Footer():
            return "footer"
