"""A pipeline's schedule: for any number of stages, rows, rests and crossings each stage does its part, in order."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gyre.trainers.megatron.schedule import Exchange, Pass, Step, crossing, drain, turn

TIMES = st.lists(st.sampled_from(["turn", "turn", "turn", "cross", "drain"]), max_size=14)


@dataclass
class Stage:
    """One stage with what it still has to do, and what it did."""

    steps: deque[Step]
    done: list[Step] = field(default_factory=list)


def told(stage: int, stages: int, orders: list[str]) -> Iterator[Step]:
    """What all ranks are told, as one stage does it; rows that cross are counted apart."""
    rows = crossed = 0
    for order in orders:
        if order == "turn":
            yield from turn(stage, stages, rows)
            rows += 1
        elif order == "cross":
            crossed += 1
            yield from crossing(stage, stages, -crossed)
        else:
            yield from drain(stage, stages, rows) if rows else ()
            rows = 0


def run(stages: int, orders: list[str]) -> list[Stage]:
    """All stages side by side, each exchange only when both neighbours have come to it; what they did."""
    all_ = [Stage(deque(told(each, stages, orders))) for each in range(stages)]
    while any(each.steps for each in all_):
        assert any(advanced(all_, place) for place in range(stages)), "every stage waits for another"
    return all_


def advanced(stages: list[Stage], place: int) -> bool:
    """Whether a stage could do its next step."""
    steps = stages[place].steps
    if not steps:
        return False
    step = steps[0]
    if isinstance(step, Pass):
        stages[place].done.append(steps.popleft())
        return True
    other = stages[place + step.neighbour]
    if not other.steps or not isinstance(met := other.steps[0], Exchange) or met.neighbour != -step.neighbour:
        return False
    assert (met.sends, met.receives) == (step.receives, step.sends)
    stages[place].done.append(steps.popleft())
    other.done.append(other.steps.popleft())
    return True


def rows_between_drains(orders: list[str]) -> list[int]:
    """Rows of each stretch that was drained."""
    stretches, rows = [], 0
    for order in orders:
        if order == "turn":
            rows += 1
        elif order == "drain" and rows:
            stretches.append(rows)
            rows = 0
    return stretches


@given(st.integers(1, 6), TIMES)
def test_all_stages_get_through_and_each_row_goes_once_each_way(stages: int, orders: list[str]) -> None:
    orders = [*orders, "drain"]
    rows = [each for count in rows_between_drains(orders) for each in range(count)]
    for stage in run(stages, orders):
        passes = [each for each in stage.done if isinstance(each, Pass) and each.row >= 0]
        assert [each.row for each in passes if each.way == "forward"] == rows
        assert [each.row for each in passes if each.way == "backward"] == rows


@given(st.integers(1, 6), TIMES)
def test_nothing_is_under_way_between_orders_but_a_gradient_for_each_link(stages: int, orders: list[str]) -> None:
    """So the pipeline can rest after any of them, and what it holds can be dropped without a word."""
    for place, stage in enumerate(run(stages, orders)):
        sent = {each.sends for each in stage.done if isinstance(each, Exchange) and each.neighbour == -1}
        back = {each.row for each in stage.done if isinstance(each, Pass) and each.way == "backward"}
        if "drain" not in orders and place:
            assert len(back - sent) <= 1


@given(st.integers(2, 6), st.integers(1, 12))
def test_a_stage_never_holds_more_rows_than_there_are_stages_behind_it(stages: int, rows: int) -> None:
    for place, stage in enumerate(run(stages, ["turn"] * rows)):
        held = most = 0
        for each in stage.done:
            if isinstance(each, Pass):
                held += 1 if each.way == "forward" else -1
                most = max(most, held)
        assert most <= stages - place
        assert held == min(rows, stages - 1 - place)
