"""The experts that engines tell of a call, put together at the proxy: a row for each of its own tokens."""

import numpy as np
import pytest

from gyre.engines.port import Generation
from gyre.proxy.adapters.port import Hints
from gyre.proxy.drawn import Drawn
from gyre.proxy.plan import Plan
from schemas.base import pack_ints
from schemas.calls import SamplingRecord, VersionSpan
from services.proxy.draft import Draft

WIDTH = 3  # experts of a position: its number, thrice


def plan(context: int, prefix: int) -> Plan:
    return Plan(
        call="x-c0",
        index=0,
        parent="x-c1" if prefix else None,
        prefix_tokens=prefix,
        prefix_messages=0,
        context=pack_ints(range(context)),
        messages=(),
        message_ends=(),
        root="",
        hints=Hints(thread="", kind="turn"),
        sampling=SamplingRecord(temperature=1.0, top_p=1.0, top_k=0, max_tokens=20, seed=1),
    )


def generation(draft: Draft, outputs: int, finish: str = "abort", *, silent: bool = False) -> Generation:
    """What an engine answers that names positions as experts."""
    request = draft.request()
    assert request.experts_from is not None
    positions = np.arange(request.experts_from, len(request.input_ids) + outputs - 1, dtype="<i2")
    spans = (VersionSpan(version=0, tokens=outputs),) if outputs else ()
    told = None if silent or not outputs else np.repeat(positions, WIDTH).tobytes()
    return Generation(tuple(range(outputs)), (0.0,) * outputs, spans, finish, 0, 0.0, 0.0, routed_experts=told)  # type: ignore[arg-type]


def rows(drawn: Drawn | None, tokens: int) -> list[int]:
    assert drawn is not None
    assert drawn.experts is not None
    return np.frombuffer(drawn.experts.leading(tokens), "<i2").reshape(-1, WIDTH)[:, 0].tolist()  # type: ignore[no-any-return]


def test_a_root_knows_nothing_of_its_first_token_and_all_others_have_the_position_before_them() -> None:
    draft = Draft(plan(5, 0), "x", "i", ())
    assert rows(draft.take(0, generation(draft, 3, "stop")), 8) == [-1, 0, 1, 2, 3, 4, 5, 6]


def test_a_call_that_extends_another_has_its_own_tokens_only() -> None:
    draft = Draft(plan(9, 6), "x", "i", ())
    assert rows(draft.take(0, generation(draft, 2, "stop")), 5) == [5, 6, 7, 8, 9]


def test_an_answer_that_moved_has_the_rows_of_each_place() -> None:
    draft = Draft(plan(9, 6), "x", "i", ())
    assert draft.take(0, generation(draft, 0)) is None  # ended before its first token
    assert draft.take(0, generation(draft, 2)) is None
    assert draft.take(1, generation(draft, 0)) is None
    assert rows(draft.take(2, generation(draft, 3, "stop")), 8) == [5, 6, 7, 8, 9, 10, 11, 12]


def test_an_answer_that_is_cut_keeps_the_rows_of_what_is_left() -> None:
    draft = Draft(plan(9, 6), "x", "i", ())
    assert rows(draft.take(0, generation(draft, 5, "stop")), 4) == [5, 6, 7, 8]


@pytest.mark.parametrize("silent", [0, 1])
def test_where_one_engine_tells_nothing_nothing_is_known(silent: int) -> None:
    draft = Draft(plan(9, 6), "x", "i", ())
    draft.take(0, generation(draft, 2, silent=silent == 0))
    drawn = draft.take(1, generation(draft, 3, "stop", silent=silent == 1))
    assert drawn is not None
    assert drawn.experts is None
