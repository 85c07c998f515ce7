"""Packed arrays and the closed, frozen base."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.base import floats, ints, pack_floats, pack_ints
from schemas.envelope import EVENT
from schemas.runs import EvaluationScored, TimerFired, TimerSet

INT32 = st.integers(min_value=-(2**31), max_value=2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)


@given(st.lists(INT32))
def test_ids_come_back_as_packed(values: list[int]) -> None:
    assert ints(pack_ints(values)) == values


@given(st.lists(FLOAT32))
def test_log_probabilities_come_back_bit_for_bit_through_json(values: list[float]) -> None:
    packed = pack_floats(values)
    event = EvaluationScored(evaluation="e", version=0, scores=packed, mean=0.0, valid=0, seconds=0.0)
    again = EVENT.validate_json(event.model_dump_json())
    assert isinstance(again, EvaluationScored)
    assert again.scores == packed
    assert floats(again.scores) == values


def test_packed_arrays_are_little_endian() -> None:
    assert pack_ints([1, -2]) == struct.pack("<2i", 1, -2)
    assert pack_floats([0.5, -math.inf]) == struct.pack("<2f", 0.5, -math.inf)


def test_an_id_beyond_32_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack_ints([2**31])


@pytest.mark.parametrize("unpack", [ints, floats])
def test_a_cut_array_is_refused(unpack: "type[object]") -> None:
    with pytest.raises(ValueError, match="multiple"):
        unpack(b"\x00" * 5)  # type: ignore[call-arg]


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(ValidationError, match="extra"):
        EVENT.validate_json('{"type":"TimerFired","v":1,"timer":"a","colour":"red"}')


def test_an_event_cannot_be_changed_after_it_was_said() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TimerFired(timer="a").timer = "b"  # type: ignore[misc]


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_number_that_json_cannot_hold_is_refused_when_said(seconds: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        TimerSet(timer="a", seconds=seconds)


@pytest.mark.parametrize("token", ["", "a.b", "a*", ">", "a b", "../a", "é", "x" * 129, "a\n"])
def test_an_id_that_cannot_stand_in_a_subject_is_refused(token: str) -> None:
    with pytest.raises(ValidationError, match="timer"):
        TimerFired(timer=token)
