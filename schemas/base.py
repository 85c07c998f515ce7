"""The frozen, closed base of every model, and packed arrays.

Token ids and log-probabilities travel as little-endian int32 / float32 bytes (base64 in JSON), never as JSON
numbers: a log-probability must come back bit for bit, and a thousand ids must not cost a thousand parses.
"""

import sys
from array import array
from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints

Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
"""A name that may stand as one token of a subject, a folder name and a URL segment."""

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a content, lower-case hex."""

Int32s = bytes
"""Packed little-endian int32 values: see `pack_ints` and `ints`."""

Float32s = bytes
"""Packed little-endian float32 values: see `pack_floats` and `floats`."""


N = TypeVar("N", int, float)


class Model(BaseModel):
    """Frozen and closed: an unknown field is an error, not a silent loss."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,  # JSON has none: it would be stored as null and never load again
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )


def is_none(value: object) -> bool:
    """For fields that came later: left out where nothing is said, old events keep their bytes and their digests."""
    return value is None


def is_empty(value: object) -> bool:
    """As `is_none`, for collections."""
    return value == ()


def pack_ints(values: Iterable[int]) -> Int32s:
    """Pack whole numbers as int32; `OverflowError` beyond 32 bits."""
    return _swapped(array("i", values)).tobytes()


def pack_floats(values: Iterable[float]) -> Float32s:
    """Pack numbers as float32 (rounded to the nearest)."""
    return _swapped(array("f", values)).tobytes()


def ints(packed: Int32s) -> list[int]:
    """Unpack int32 values; `ValueError` if the length is not a multiple of four bytes."""
    values = array("i")
    values.frombytes(packed)
    return _swapped(values).tolist()


def floats(packed: Float32s) -> list[float]:
    """Unpack float32 values; `ValueError` if the length is not a multiple of four bytes."""
    values = array("f")
    values.frombytes(packed)
    return _swapped(values).tolist()


def _swapped(values: "array[N]") -> "array[N]":
    """Swap between native and little-endian order, in place: nothing to do on nearly every machine."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
