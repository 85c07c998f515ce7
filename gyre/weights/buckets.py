"""A weights file cut into buckets, as SGLang receives them: neighbours of one kind, whole tensors, bounded in size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gyre.engines.sglang.session import Bucket
from gyre.weights.layout import Part
from gyre.weights.port import WeightsUnusable

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
"""Safetensors' names -> torch's."""


@dataclass(frozen=True, slots=True)
class Span:
    """A bucket in a file."""

    bucket: Bucket
    begin: int
    """Byte of the file."""
    end: int

    def read(self, file: Path) -> torch.Tensor:
        """(bytes,) uint8. OSError."""
        return torch.from_numpy(np.fromfile(file, dtype=np.uint8, count=self.end - self.begin, offset=self.begin))


def cut(parts: Sequence[Part], most: int) -> tuple[Span, ...]:
    """All of a file.

    Args:
        parts: of the file, in its order.
        most: bytes of a bucket; a larger tensor is one of its own.
    Raises:
        WeightsUnusable: one is of a kind that SGLang does not receive.
    """
    return tuple(Span(_bucket(each), each[0].begin, each[-1].end) for each in _ranges(parts, most))


def _ranges(parts: Sequence[Part], most: int) -> Iterator[tuple[Part, ...]]:
    """Neighbours of one kind, so that each lies where its kind may begin."""
    found: list[Part] = []
    for part in parts:
        if part.kind not in DTYPES:
            rule = 'SGLang receives none so; set weights.transport = "file"'
            raise WeightsUnusable(f"weights: {part.name!r} is {part.kind}: {rule}")
        if found and (part.kind != found[0].kind or part.end - found[0].begin > most):
            yield tuple(found)
            found = []
        found.append(part)
    if found:
        yield tuple(found)


def _bucket(parts: tuple[Part, ...]) -> Bucket:
    return Bucket(
        names=tuple(each.name for each in parts),
        dtypes=tuple(DTYPES[each.kind] for each in parts),
        shapes=tuple(each.shape for each in parts),
    )
