"""What changed from one version of the weights to the next, bit for bit.

A delta is made of two safetensors files and gives back the second one from the first, header included. Each tensor is
told by the shortest of: nothing (`same`), the exclusive or of its bytes (`xor`), places and values (`set`), or all of
it (`whole`); numbers lie with their first bytes together, then their second bytes, and so on, since those repeat most,
and are compressed. Values are compared and carried as plain bits: a NaN keeps its payload, and -0.0 is not 0.0.

    magic | length of the table, 4 bytes | table, JSON | the new file's header, compressed | what each tensor needs
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from gyre.weights.aside import aside
from gyre.weights.layout import MOST_HEADER_BYTES, Layout, layout_of, read_layout
from gyre.weights.port import WeightsUnusable
from gyre.weights.tensor_delta import Change, bits, change, changed_bits

MAGIC = b"gyre-delta-1\n"


@dataclass(frozen=True, slots=True)
class Table:
    """What a delta says before its tensors."""

    base: str
    """Digest of the file that it changes."""
    digest: str
    """Digest of the file that it gives."""
    head: int
    """Bytes of the header, compressed."""
    values: int
    changed: int
    """Of the values."""
    parts: tuple[tuple[str, int], ...]
    """(how, bytes) of each tensor, in the new file's order."""

    @property
    def share(self) -> float:
        """Of the values that differ."""
        return self.changed / self.values if self.values else 0.0


def make_delta(base: Path, new: Path, digests: tuple[str, str], into: Path) -> Table:
    """Write what leads from one file to the other.

    Args:
        base: a safetensors file.
        new: another.
        digests: of the two.
        into: where the delta goes; whole or not at all.
    Raises:
        WeightsUnusable: one of them is no safetensors file.
        OSError: it cannot be written; nothing stays behind.
    """
    before, after = read_layout(base), read_layout(new)
    known = {(each.name, each.kind, each.shape): each for each in before.parts}
    changes: list[Change] = []
    with base.open("rb") as old_file, new.open("rb") as new_file:
        for part in after.parts:
            twin = known.get((part.name, part.kind, part.shape))
            changes.append(change(bits(old_file, twin) if twin else None, bits(new_file, part)))
    head = zstandard.ZstdCompressor().compress(after.head)
    table = Table(
        base=digests[0],
        digest=digests[1],
        head=len(head),
        values=sum(each.values for each in after.parts),
        changed=sum(each.changed for each in changes),
        parts=tuple((each.how, len(each.body)) for each in changes),
    )
    said = json.dumps(asdict(table)).encode()
    with aside(into) as file:
        for piece in (MAGIC, struct.pack("<I", len(said)), said, head, *(each.body for each in changes)):
            file.write(piece)
    return table


def read_table(delta: Path) -> Table:
    """What a delta says of itself. Raises WeightsUnusable."""
    try:
        with delta.open("rb") as file:
            return _table(file)
    except OSError as error:
        raise WeightsUnusable(f"{delta}: cannot be read: {error}") from error


def apply_delta(delta: Path, base: Path, digest: str, into: Path) -> None:
    """Write the new file, once it is found to be the one of that digest.

    Args:
        delta: as `make_delta` writes it; it is not trusted.
        base: the file that it was made from.
        digest: of the file that is wanted.
        into: where that goes; whole or not at all.
    Raises:
        WeightsUnusable: damaged, of another base, or of another file.
        OSError: it cannot be written; nothing stays behind.
    """
    try:
        with aside(into) as new, delta.open("rb") as file, base.open("rb") as old:
            table = _table(file)
            _refuse_other_base(table, base)
            found = hashlib.sha256()
            for piece in _pieces(file, table, read_layout(base), old):
                found.update(piece)
                new.write(piece)
            if not found.hexdigest() == table.digest == digest:
                raise WeightsUnusable(f"{delta}: gives {found.hexdigest()[:12]}, wanted is {digest[:12]}")
    except FileNotFoundError as error:
        raise WeightsUnusable(f"{delta} on {base}: {error}") from error


def _refuse_other_base(table: Table, base: Path) -> None:
    with base.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != table.base:
        raise WeightsUnusable(f"{base}: digest {found[:12]}, the delta is of {table.base[:12]}")


def _pieces(delta: BinaryIO, table: Table, before: Layout, old: BinaryIO) -> Iterator[bytes]:
    """The new file's bytes, in order."""
    after = layout_of(_inflated(delta.read(table.head)))
    if len(table.parts) != len(after.parts):
        raise WeightsUnusable(f"delta: tells {len(table.parts)} of {len(after.parts)} tensors")
    yield after.head
    known = {(each.name, each.kind, each.shape): each for each in before.parts}
    for part, (how, length) in zip(after.parts, table.parts, strict=True):
        if not 0 <= length <= 2 * (part.end - part.begin) + 1024:
            raise WeightsUnusable(f"delta: {length} bytes for {part.name!r} are too many")
        body = delta.read(length)
        twin = known.get((part.name, part.kind, part.shape))
        values = bits(old, twin) if twin else None
        yield changed_bits(values, part, how, body).tobytes()


def _inflated(body: bytes) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(body) <= MOST_HEADER_BYTES:
            raise WeightsUnusable("delta: its header is too long")
        inflated: bytes = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise WeightsUnusable(f"delta: its header cannot be read: {error}") from error
    return inflated


def _table(file: BinaryIO) -> Table:
    try:
        if file.read(len(MAGIC)) != MAGIC:
            raise WeightsUnusable("delta: does not begin as one")
        (length,) = struct.unpack("<I", file.read(4))
        if length > MOST_HEADER_BYTES:
            raise WeightsUnusable(f"delta: a table of {length} bytes")
        said: dict[str, Any] = json.loads(file.read(length))
        parts = tuple((str(how), int(size)) for how, size in said.pop("parts"))
        numbers = {key: int(said.pop(key)) for key in ("head", "values", "changed")}
        table = Table(base=str(said.pop("base")), digest=str(said.pop("digest")), parts=parts, **numbers)
    except (struct.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsUnusable(f"delta: its table cannot be read: {type(error).__name__}: {error}") from error
    if said or not 0 <= table.changed <= table.values or not 0 <= table.head <= MOST_HEADER_BYTES:
        raise WeightsUnusable("delta: its table says what cannot be")
    return table
