"""What lies where in a safetensors file, without torch: eight bytes of length, a JSON header, the tensors' bytes."""

import json
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from gyre.weights.port import WeightsUnusable

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
WIDTHS = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}
"""Bytes of a value of each kind."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor in a file."""

    name: str
    kind: str
    """As safetensors writes it: F32, BF16, ..."""
    shape: tuple[int, ...]
    begin: int
    """Byte of the file."""
    end: int

    @property
    def width(self) -> int:
        """Bytes of a value."""
        return WIDTHS[self.kind]

    @property
    def values(self) -> int:
        """How many values it has."""
        return (self.end - self.begin) // self.width


@dataclass(frozen=True, slots=True)
class Layout:
    """A file's header and its tensors, in the order of their bytes, which follow each other without a gap."""

    head: bytes
    """The file up to its first tensor."""
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.parts[-1].end if self.parts else len(self.head)


def read_layout(file: Path) -> Layout:
    """Of a file, whose size has to be what its header says. Raises WeightsUnusable."""
    try:
        with file.open("rb") as opened:
            length = opened.read(LENGTH_BYTES)
            (size,) = struct.unpack("<Q", length)
            if size > MOST_HEADER_BYTES:
                raise WeightsUnusable(f"{file}: a header of {size} bytes is no safetensors file's")
            layout = layout_of(length + opened.read(size))
    except (OSError, struct.error) as error:
        raise WeightsUnusable(f"{file}: cannot be read as safetensors: {error}") from error
    if file.stat().st_size != layout.size:
        raise WeightsUnusable(f"{file}: {file.stat().st_size} bytes, its header says {layout.size}: it is damaged")
    return layout


def layout_of(head: bytes) -> Layout:
    """What a file's beginning says. Raises WeightsUnusable for what is none, or leaves gaps."""
    try:
        if struct.unpack("<Q", head[:LENGTH_BYTES])[0] != len(head) - LENGTH_BYTES:
            raise WeightsUnusable("header: its length is another than it says")
        table = json.loads(head[LENGTH_BYTES:])
        found = [_part(name, each, len(head)) for name, each in table.items() if name != "__metadata__"]
    except (struct.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsUnusable(f"header: no safetensors file's: {type(error).__name__}: {error}") from error
    parts = sorted(found, key=lambda each: (each.begin, each.end))
    edges = [len(head), *(each.end for each in parts)]
    if any(part.begin != before for part, (before, _) in zip(parts, pairwise(edges), strict=True)):
        raise WeightsUnusable("header: its tensors leave gaps or overlap")
    return Layout(head, tuple(parts))


def _part(name: str, said: dict[str, Any], start: int) -> Part:
    begin, end = said["data_offsets"]
    shape = tuple(int(each) for each in said["shape"])
    part = Part(name, said["dtype"], shape, start + int(begin), start + int(end))
    if min((*shape, int(begin)), default=0) < 0 or end - begin != prod(shape) * part.width:
        raise ValueError(f"{name!r}: {end - begin} bytes are not of {said['dtype']} {shape}")
    return part
