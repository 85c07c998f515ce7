"""How one tensor's change is told and undone, as plain bits (see `gyre.weights.delta`)."""

from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import zstandard

from gyre.weights.layout import Part
from gyre.weights.port import WeightsUnusable

Bits = npt.NDArray[np.unsignedinteger[Any]]
How = Literal["same", "xor", "set", "whole"]
_MOST_PLACES = 2**32
_FEW = 0.05
"""Share of changed values from which places and values are longer than the exclusive or, and not tried."""
_LEVEL = 1
"""zstd's; 3 takes up to twice as long for nothing (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one tensor needs."""

    how: How
    body: bytes
    changed: int
    """Values that differ; all of them where there is nothing to compare with."""


def bits(file: BinaryIO, part: Part) -> Bits:
    """A tensor's values as unsigned integers of their width, (values,). Raises WeightsUnusable at an early end."""
    file.seek(part.begin)
    body = file.read(part.end - part.begin)
    if len(body) != part.end - part.begin:
        raise WeightsUnusable(f"tensor {part.name!r}: the file ends too early")
    return np.frombuffer(body, dtype=f"<u{part.width}")


def change(old: Bits | None, new: Bits) -> Change:
    """The shortest way from one to the other; `old` is None where there is nothing to compare with."""
    if old is None:
        return Change("whole", _packed(new), len(new))
    differs = old != new
    changed = int(np.count_nonzero(differs))
    if not changed:
        return Change("same", b"", 0)
    ways = [Change("xor", _packed(old ^ new), changed)]
    if changed < _FEW * len(new) and len(new) < _MOST_PLACES:
        ways.append(Change("set", _placed(np.flatnonzero(differs), new[differs]), changed))
    best = min(ways, key=lambda each: len(each.body))
    return best if len(best.body) < new.nbytes else Change("whole", _packed(new), changed)


def changed_bits(old: Bits | None, part: Part, how: str, body: bytes) -> Bits:
    """The new values of a tensor. Raises WeightsUnusable where the change does not fit it."""
    if how == "whole":
        return _unpacked(body, part.values, part.width)
    if old is None:
        raise WeightsUnusable(f"delta: changes {part.name!r}, which the base does not have like that")
    if how == "same" and not body:
        return old
    if how == "xor":
        return old ^ _unpacked(body, part.values, part.width)
    if how == "set":
        return _overwritten(old, part, body)
    raise WeightsUnusable(f"delta: {how!r} is no way to change {part.name!r}")


def _placed(places: npt.NDArray[np.int64], values: Bits) -> bytes:
    """Steps from each place to the next, then the values."""
    steps = np.diff(places, prepend=0).astype("<u4")
    return zstandard.ZstdCompressor(level=_LEVEL).compress(_planes(steps) + _planes(values))


def _overwritten(old: Bits, part: Part, body: bytes) -> Bits:
    whole = 4 + part.width
    flat = _inflated(body, part.values * whole)
    count, rest = divmod(len(flat), whole)
    if rest:
        raise WeightsUnusable(f"delta: {len(flat)} bytes are not whole changes of {part.name!r}")
    places = np.cumsum(_from_planes(flat[: 4 * count], 4), dtype=np.uint64)
    if count and (places[-1] >= part.values or (np.diff(places.astype(np.int64)) <= 0).any()):
        raise WeightsUnusable(f"delta: changes {part.name!r} beyond its end, or a value twice")
    new = old.copy()
    new[places.astype(np.int64)] = _from_planes(flat[4 * count :], part.width)
    return new


def _packed(values: Bits) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(_planes(values))


def _unpacked(body: bytes, count: int, width: int) -> Bits:
    flat = _inflated(body, count * width)
    if len(flat) != count * width:
        raise WeightsUnusable(f"delta: {len(flat)} bytes are not {count} values of {width} bytes")
    return _from_planes(flat, width)


def _inflated(body: bytes, most: int) -> bytes:
    """Never more than is wanted, whatever the frame says of itself."""
    try:
        if not 0 <= zstandard.frame_content_size(body) <= most:
            raise WeightsUnusable(f"delta: more than the {most} bytes that a tensor can need")
        flat: bytes = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise WeightsUnusable(f"delta: cannot be unpacked: {error}") from error
    return flat


def _planes(values: Bits) -> bytes:
    """(values,) of w bytes -> (w, values): all first bytes, all second bytes, ..."""
    rows = values.view(np.uint8).reshape(-1, values.itemsize)
    planes = np.empty(rows.shape[::-1], dtype=np.uint8)
    for place in range(values.itemsize):  # twice as fast as a transposed copy
        planes[place] = rows[:, place]
    return planes.tobytes()


def _from_planes(flat: bytes, width: int) -> Bits:
    planes = np.frombuffer(flat, dtype=np.uint8).reshape(width, -1)
    rows = np.empty(planes.shape[::-1], dtype=np.uint8)
    for place in range(width):
        rows[:, place] = planes[place]
    return rows.reshape(-1).view(f"<u{width}")
