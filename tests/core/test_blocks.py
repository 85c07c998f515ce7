"""The map that folding uses, against a plain dict; and running means of durations by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.core import blocks
from gyre.core.blocks import Blocks
from gyre.core.prediction import Pace, learn, predict

CHANGES = st.lists(st.tuples(st.sampled_from(["put", "drop"]), st.integers(0, 300), st.integers()), max_size=60)


def _plain(found: Blocks[int]) -> dict[int, int]:
    return {key: value for block in found.values() for key, value in block.items()}


@given(CHANGES)
def test_it_holds_what_a_dict_would_and_leaves_earlier_ones_alone(changes: list[tuple[str, int, int]]) -> None:
    found: Blocks[int] = {}
    plain: dict[int, int] = {}
    earlier: list[tuple[Blocks[int], dict[int, int]]] = []
    for change, key, value in changes:
        earlier.append((found, dict(plain)))
        if change == "put":
            found, plain = blocks.put(found, key, value), {**plain, key: value}
        else:
            found = blocks.drop(found, key)
            plain.pop(key, None)
        assert blocks.get(found, key) == plain.get(key)
        assert all(found.values()), "an empty block was kept"
    for before, expected in [*earlier, (found, plain)]:
        assert _plain(before) == expected


def test_a_task_is_expected_to_take_its_mean_with_the_mean_of_all_counted_once() -> None:
    pace = learn(learn(learn(Pace(), 0, 10.0), 1, 30.0), 1, 50.0)
    assert pace.mean == 30.0
    assert predict(pace, 0) == pytest.approx((30 + 10) / 2)
    assert predict(pace, 1) == pytest.approx((30 + 30 + 50) / 3)
    assert predict(pace, 2) is None
    assert (Pace().mean, predict(Pace(), 0)) == (0.0, None)
