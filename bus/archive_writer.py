"""Write a run archive (the format: `bus.archive_file`)."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import zstandard

from bus.archive_index import Footer, Frame, Index, Part, write_index
from bus.archive_lines import Body, Header, Message, OpenFrame
from bus.blobs import sync_folder
from schemas.base import Model
from schemas.speakers import Stream

_LEVEL = 6
_FRAME_BYTES = 1 << 20
"""A frame is full with so much, expanded: what reading one message costs at most."""


class ArchiveWriter:
    """Lines into a file that is being written, cut into frames; counts, digest and index are kept for the end."""

    def __init__(self, run: str, out: BinaryIO) -> None:
        """Write the header."""
        self._run, self._out, self._digest = run, out, hashlib.sha256()
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._counts: Counter[Part] = Counter()
        self._frames: list[Frame] = []
        self._open = OpenFrame("header")
        self._line("header", Header(run=run))

    def message(self, stream: Stream, sequence: int, subject: str, data: bytes) -> None:
        """The next message of a stream."""
        text = _as_text(data)
        packed = data if text is None else None
        self._line(stream, Message(stream=stream, sequence=sequence, subject=subject, text=text, base64=packed))
        self._open.add_message(sequence, len(data))

    def blob(self, digest: str, body: bytes) -> None:
        """The next blob, in order of digests."""
        self._line("blob", Body(digest=digest, body=body))
        self._open.blobs.append(digest)

    def footer(self, missing: tuple[str, ...]) -> Footer:
        """Close the archive."""
        counts = self._counts
        footer = Footer(
            ev=counts["EV"],
            call=counts["CALL"],
            blobs=counts["blob"],
            missing=missing,
            digest=self._digest.hexdigest(),
        )
        self._line("footer", footer)
        self._cut("footer")
        write_index(self._out, Index(run=self._run, frames=tuple(self._frames), footer=footer))
        return footer

    def _line(self, part: Part, line: Model) -> None:
        if part != self._open.part or self._open.size >= _FRAME_BYTES:
            self._cut(part)
        text = line.model_dump_json().encode() + b"\n"
        self._digest.update(text)
        self._open.add(text)
        self._counts[part] += 1

    def _cut(self, part: Part) -> None:
        """Write the frame that is open, and begin one of this part."""
        packed = self._compressor.compress(b"".join(self._open.texts))
        self._frames.append(self._open.frame(self._out.tell(), len(packed)))
        self._out.write(packed)
        self._open = OpenFrame(part)


@contextmanager
def writing(path: Path, run: str) -> Iterator[ArchiveWriter]:
    """Write an archive: the path holds all of it, on disk, or what it held before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.new")
    try:
        with unfinished.open("wb") as file:
            yield ArchiveWriter(run, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


def _as_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
