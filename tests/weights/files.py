"""Safetensors files with any bits in them."""

import hashlib
import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

from gyre.weights.layout import WIDTHS
from schemas.refs import WeightsRef

Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]
"""Name -> kind, shape, bytes."""


def write(tensors: Tensors, file: Path) -> str:
    """As safetensors lays it out; the digest."""
    table, begin = {}, 0
    for name, (kind, shape, body) in tensors.items():
        assert len(body) == prod(shape) * WIDTHS[kind]
        table[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, begin + len(body)]}
        begin += len(body)
    head = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    head += b" " * (-len(head) % 8)
    whole = struct.pack("<Q", len(head)) + head + b"".join(body for _, _, body in tensors.values())
    file.write_bytes(whole)
    return hashlib.sha256(whole).hexdigest()


def saved(tensors: Tensors, run: Path) -> WeightsRef:
    """Into a run folder, under its digest, as the trainers do."""
    (run / "weights").mkdir(parents=True, exist_ok=True)
    aside = run / "weights" / "aside"
    digest = write(tensors, aside)
    place = aside.rename(run / "weights" / f"{digest}.safetensors")
    return WeightsRef(digest=digest, size=place.stat().st_size, address=f"weights/{digest}.safetensors")
