"""Timelines of runs told by hand, and of any runs: intervals, levels, use; small however long."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.core.timeline import STANDINGS, Interval, Level, Standing, Timeline
from gyre.core.timeline_cells import INTERVALS
from gyre.core.timeline_fold import LEVELS, TimelineFold, fold
from gyre.core.timeline_series import BINS, thin_intervals, thin_levels
from schemas.calls import RouteAssigned, RouteMoved
from schemas.roles import RoleTransitionFailed
from schemas.training import ContributionDiscarded
from tests.core.told import (
    Told,
    a_run,
    asked,
    claimed,
    dispatched,
    done,
    lost,
    moved,
    opened,
    reduced,
)
from tests.core.world import assigned, launched, registered, run_started, stepped, terminated


def spans(timeline: Timeline, cell: int) -> list[tuple[float, float, Standing]]:
    return [(each.start, each.end, each.standing) for each in timeline.lanes[cell].intervals]


def test_a_cells_intervals_are_its_roles_and_the_transitions_between_them() -> None:
    timeline = fold(a_run())
    burst = [("rollout", 1), ("to_train", 1), ("train", 6), ("to_rollout", 1), ("rollout", 1)]
    assert spans(timeline, 0) == [
        (0, 11, "rollout"),
        (11, 12, "to_train"),
        (12, 18, "train"),
        (18, 19, "to_rollout"),
        (19, 21, "rollout"),
        (21, 22, "to_train"),
        (22, 28, "train"),
        (28, 29, "to_rollout"),
        (29, 30, "rollout"),
    ]
    assert spans(timeline, 1) == [(0, 30, "rollout")]
    assert sum(seconds for _, seconds in burst) == 10
    assert timeline.lanes[0].seconds == {"rollout": 14, "train": 12, "to_train": 2, "to_rollout": 2, "lost": 0}
    assert timeline.finished


def test_time_ends_with_the_run() -> None:
    assert fold([*a_run(), (500.0, lost(1)), (600.0, dispatched("x9-0"))]).seconds == fold(a_run()).seconds == 30


def test_levels_carry_the_counters_and_the_places() -> None:
    levels = fold(a_run()).levels
    assert [
        (level.seconds, level.dispatched, level.launched, level.terminated, level.capacity) for level in levels
    ] == [
        (0, 0, 0, 0, 8),
        (10, 2, 2, 0, 8),
        (11, 2, 2, 0, 4),
        (15, 2, 2, 1, 4),
        (17, 2, 2, 2, 4),
        (19, 2, 2, 2, 8),
        (20, 4, 4, 2, 8),
        (21, 4, 4, 2, 4),
        (25, 4, 4, 3, 4),
        (27, 4, 4, 4, 4),
        (29, 4, 4, 4, 8),
    ]
    assert [level.waterlevel for level in levels[:5]] == [0, 2, 2, 1, 0]
    assert (levels[1].queued, levels[1].running) == (0, 2)


def test_a_trainer_is_used_while_it_holds_a_micro_step_or_updates() -> None:
    core = fold(a_run()).lanes[0]
    trained, served = 2 * (3 + 1), 2 * 1 * 1 / 4  # claimed for 3 s and updating for 1 s; one of 4 places for 1 s
    assert core.used == pytest.approx(trained + served)
    assert core.utilisation == pytest.approx(core.used / 30)


def test_an_engine_is_used_by_the_share_of_its_places_that_routes_fill() -> None:
    engine = fold(a_run()).lanes[1]
    assert engine.used == pytest.approx(2 * (1 * 1 + 4 * 2 + 2 * 1) / 4)


def test_executions_without_a_route_are_spread_over_all_serving_places() -> None:
    told: Told = [(0, registered(0, "cell-0", 4)), (0, registered(1, "cell-1", 12)), (0, launched("a"))]
    timeline = fold([*told, (8, terminated("a"))])
    assert [lane.used for lane in timeline.lanes] == [pytest.approx(8 / 16), pytest.approx(8 / 16)]


def test_more_executions_than_places_use_an_engine_no_more_than_wholly() -> None:
    told: Told = [(0, registered(0, "cell-0", 1)), *((0, launched(each)) for each in "abc")]
    told += [(0, RouteAssigned(execution=each, cell=0)) for each in "ab"]
    assert fold([*told, (5, terminated("a"))]).utilisation == 1


def test_use_over_time_adds_up_to_the_cells_and_to_what_they_did() -> None:
    timeline = fold(a_run())
    assert timeline.use[0].start == 0
    assert timeline.use[-1].end == 30
    for use in timeline.use:
        parts = (use.rollout, use.rollout_free, use.train, use.train_waiting, use.moving, use.lost)
        assert sum(parts) == pytest.approx(2)
    assert sum(use.train * (use.end - use.start) for use in timeline.use) == pytest.approx(8)
    assert sum(use.train_waiting * (use.end - use.start) for use in timeline.use) == pytest.approx(4)
    assert sum(use.moving * (use.end - use.start) for use in timeline.use) == pytest.approx(4)
    assert timeline.shares()["train"] == pytest.approx(12 / 60)


def test_steps_bursts_and_evaluations_have_their_times() -> None:
    timeline = fold(a_run())
    assert [(step.step, step.opened, step.updated, step.members, step.groups) for step in timeline.steps] == [
        (1, 12, 17, 1, 1),
        (2, 22, 27, 1, 1),
    ]
    assert timeline.step_seconds == (17, 10)
    assert [(burst.version, burst.published, burst.ended) for burst in timeline.bursts] == [(1, 18, 18), (2, 28, 28)]
    assert [(span.start, span.end) for span in timeline.evaluations] == [(0, 10)]


def test_staleness_is_the_mean_over_groups_not_over_steps() -> None:
    def stale(step: int, values: tuple[int, ...]) -> Told:
        groups = [(0.0, assigned("g", step).model_copy(update={"staleness": each})) for each in values]
        return [(0, opened(step)), *groups, (1, reduced(step, (0, 1, 2))), (2, stepped(step))]

    timeline = fold([*stale(1, (0, 0, 3)), *stale(2, (5,))])
    assert timeline.staleness == 2
    assert [(step.staleness, step.members) for step in timeline.steps] == [(1, 3), (5, 3)]


def test_a_lost_cell_counts_nowhere_until_another_process_of_it_comes() -> None:
    told: Told = [(0, registered(0, "cell-0")), (0, registered(1, "cell-1")), (2, asked(1, "train"))]
    told += [(3, moved(1, "train")), (3, claimed(1)), (5, lost(1)), (6, moved(1, "rollout"))]
    timeline = fold([*told, (9, registered(1, "cell-1b", 6)), (10, lost(1)), (12, run_started())])
    assert spans(timeline, 1) == [
        (0, 2, "rollout"),
        (2, 3, "to_train"),
        (3, 5, "train"),
        (5, 9, "lost"),
        (9, 12, "rollout"),
    ]
    assert timeline.lanes[1].used == 2
    assert timeline.levels[-1].capacity == 10


def test_a_failed_transition_leaves_the_role_that_was() -> None:
    failed = RoleTransitionFailed(transition="t1", cell=0, instance="cell-0", phase="load", reason="no room")
    told: Told = [(0, registered(0, "cell-0")), (1, asked(0, "train")), (2, failed), (4, run_started())]
    assert spans(fold(told), 0) == [(0, 1, "rollout"), (1, 2, "to_train"), (2, 4, "rollout")]


def test_a_contribution_that_is_discarded_ends_its_use() -> None:
    discarded = ContributionDiscarded(step=1, cell=0, instance="cell-0", reason="fenced", broken=False)
    told: Told = [(0, registered(0, "cell-0")), (0, asked(0, "train")), (0, moved(0, "train")), (0, claimed(0))]
    assert fold([*told, (3, discarded), (9, run_started())]).lanes[0].used == 3


def test_what_is_said_twice_counts_once() -> None:
    twice = [pair for pair in a_run() for _ in range(2) if type(pair[1]).__name__ in ONCE_MORE or _ == 0]
    assert len(twice) > len(a_run())
    assert fold(twice) == fold(a_run())


ONCE_MORE = {
    "CellRegistered", "RoleTransitionRequested", "RoleTransitionCompleted", "ExecutionLaunched", "ExecutionTerminated",
    "RouteAssigned", "RouteMoved", "BatchOpened", "OptimizerStepped", "ReductionOpened", "RunFinished",
}  # fmt: skip


def test_the_clock_may_begin_anywhere_and_never_goes_back() -> None:
    late = [(seconds + 1.8e9, event) for seconds, event in a_run()]
    assert fold(late).lanes == fold(a_run()).lanes
    told: Told = [(5, registered(0, "cell-0")), (9, launched("a")), (7, terminated("a")), (10, run_started())]
    assert fold(told).seconds == 5
    assert [level.seconds for level in fold(told).levels] == [0, 4]


def test_a_look_in_between_changes_nothing() -> None:
    folding = TimelineFold()
    for seconds, event in a_run():
        folding.add(seconds, event)
        folding.timeline()
    assert folding.timeline().lanes == fold(a_run()).lanes


def test_nothing_said_is_an_empty_timeline() -> None:
    timeline = fold([])
    assert (timeline.seconds, timeline.lanes, timeline.utilisation, timeline.staleness) == (0, (), 0, 0)


def wandering(chance: random.Random, events: int) -> Told:
    """Any events in any order, some of which make no sense."""
    told: Told = [(0.0, registered(cell, f"cell-{cell}")) for cell in range(3)]
    seconds = 0.0
    for _ in range(events):
        seconds += chance.choice((0.0, 0.01, 0.5, 3.0, 40.0))
        cell, name = chance.randrange(4), f"x{chance.randrange(6)}"
        told.append((seconds, chance.choice([
            registered(cell, f"cell-{cell}"), lost(cell), asked(cell, "train"), asked(cell, "rollout"),
            moved(cell, "train"), moved(cell, "rollout"), dispatched(name), launched(name), terminated(name),
            RouteAssigned(execution=name, cell=cell), RouteMoved(execution=name, from_cell=0, to_cell=cell, reason="r"),
            claimed(cell), done(cell), opened(1), assigned("g", 1), reduced(1, (0,)), stepped(1),
        ])))  # fmt: skip
    return told


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(min_value=1, max_value=200))
def test_times_add_up_whatever_is_said(chance: random.Random, events: int) -> None:
    told = wandering(chance, events)
    timeline = fold(told)
    assert timeline.seconds == pytest.approx(told[-1][0])
    for lane in timeline.lanes:
        assert sum(each.end - each.start for each in lane.intervals) == pytest.approx(lane.lifetime)
        assert all(one.end == other.start for one, other in pairwise(lane.intervals))
        for standing in STANDINGS:
            shown = sum(each.end - each.start for each in lane.intervals if each.standing == standing)
            assert shown == pytest.approx(lane.seconds[standing], abs=1e-9)
        assert -1e-9 <= lane.used <= lane.seconds["rollout"] + lane.seconds["train"] + 1e-9
    lifetime = sum(lane.lifetime for lane in timeline.lanes)
    over_time = sum(
        (use.rollout + use.rollout_free + use.train + use.train_waiting + use.moving + use.lost) * (use.end - use.start)
        for use in timeline.use
    )
    assert over_time == pytest.approx(lifetime)
    for level in timeline.levels:
        assert 0 <= level.terminated <= level.launched
        assert level.capacity >= 0


def test_a_long_run_stays_small_and_its_sums_exact() -> None:
    folding, cells, rounds = TimelineFold(), 48, 3000
    for cell in range(cells):
        folding.add(0.0, registered(cell, f"cell-{cell}"))
    for each in range(rounds):
        cell = each % 2
        for offset, event in (
            (0, dispatched(f"x{each}")), (0, launched(f"x{each}")),
            (1, asked(cell, "train")), (2, moved(cell, "train")),
            (7, terminated(f"x{each}")), (8, asked(cell, "rollout")), (9, moved(cell, "rollout")),
        ):  # fmt: skip
            folding.add(10.0 * each + offset, event)
    timeline = folding.timeline()
    assert len(timeline.levels) <= LEVELS
    assert len(timeline.use) <= BINS
    assert max(len(lane.intervals) for lane in timeline.lanes) <= INTERVALS // cells + 2
    assert timeline.lanes[0].seconds["train"] == pytest.approx(rounds / 2 * 6)
    assert timeline.levels[-1].terminated == rounds
    assert timeline.seconds == 10 * (rounds - 1) + 9


def test_levels_are_thinned_to_the_last_of_each_span() -> None:
    levels = [Level(seconds, seconds, 0, 0, 0) for seconds in range(101)]
    assert [level.seconds for level in thin_levels(levels, 4)] == [24, 49, 74, 99, 100]
    assert thin_levels(levels[:1] * 3, 2) == levels[:1]


def test_intervals_are_thinned_to_what_fills_most_of_each_span() -> None:
    told = [
        Interval(0, 5, "rollout"),
        Interval(5, 6, "to_train"),
        Interval(6, 9.5, "train"),
        Interval(9.5, 20, "rollout"),
    ]
    assert thin_intervals(told, 4) == [Interval(0, 5, "rollout"), Interval(5, 10, "train"), Interval(10, 20, "rollout")]
