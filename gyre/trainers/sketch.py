"""A gradient's sketch: a kilobyte by which the log tells two gradients apart (count sketch; Charikar et al. 2002).

`S g` adds every element, under a sign of its own, to one of 256 buckets of its own; both follow from its place alone.
S is linear, so `S g - S h = S (g - h)`, and `E |S e|^2 = |e|^2` with a relative standard deviation of at most
sqrt(2 / 256) = 9 %: how far two gradients are apart is known to about that, though neither is kept.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, split

from schemas.base import Float32s

WIDTH = 256
_SLICE = 1 << 20  # elements that one pass touches
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64, Steele et al. 2014


def sketch(gradient: Tensor) -> Float32s:
    """The sketch of a gradient, (P,), as 256 packed float32; sums are taken in float64."""
    total, start = np.zeros(WIDTH), 0
    for part in split(gradient.detach(), _SLICE):
        total += _sketched(part.double().numpy(), start)
        start += part.numel()
    return total.astype("<f4").tobytes()


def apart(found: Float32s, reference: Float32s) -> float:
    """`|S g - S h| / |S h|`: how far the gradients behind two sketches are apart, relative to the second.

    0 when both are zero, infinite when only the second is.

    Raises:
        ValueError: one of them is no sketch.
    """
    for each in (found, reference):
        if len(each) != 4 * WIDTH:
            raise ValueError(f"sketch of {len(each)} bytes: need {4 * WIDTH}")
    mine, other = (np.frombuffer(each, "<f4").astype(np.float64) for each in (found, reference))
    difference, size = float(np.linalg.norm(mine - other)), float(np.linalg.norm(other))
    if size == 0.0:
        return 0.0 if difference == 0.0 else float("inf")
    return difference / size


def _sketched(values: NDArray[np.float64], start: int) -> NDArray[np.float64]:
    mixed = _mixed(np.arange(start, start + len(values), dtype=np.uint64))
    signs = np.where(mixed >> np.uint64(63), 1.0, -1.0)
    buckets = (mixed % np.uint64(WIDTH)).astype(np.int64)
    return np.bincount(buckets, weights=signs * values, minlength=WIDTH).astype(np.float64)


def _mixed(places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the result depends on every bit of the place; products wrap at 64 bits."""
    mixed = (places + np.uint64(1)) * np.uint64(_STEP)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
    return mixed ^ (mixed >> np.uint64(31))
