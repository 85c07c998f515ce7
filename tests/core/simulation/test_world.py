"""Whole runs in virtual time, small ones reckoned by hand."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.core.plan import Plan
from gyre.core.simulation.agenda import SimulationStuck
from gyre.core.simulation.setting import Setting, Timings
from gyre.core.simulation.workload import Durations, Sampled
from gyre.core.simulation.world import simulate
from gyre.core.staleness import expected_mean
from schemas.calls import RouteAssigned, RouteMoved
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.rewards import GroupReady
from schemas.roles import RoleTransitionCompleted, RoleTransitionRequested
from schemas.runs import EvaluationScored, EvaluationStarted, RunFinished, RunStarted
from schemas.training import BurstEnded, CellJoined, MicroStepClaimed, OptimizerStepped, WeightsPublished
from tests.core.simulation.small import NOTHING_BUT_WORK, Fixed, plan, told


def sampled(setting: Setting, seed: int, training: float = 8.0, parts: int = 2) -> Sampled:
    durations = Durations(median=20.0, sigma=0.5, between=0.5, limit=60.0)
    return Sampled(durations, training, setting.plan.groups, parts, random.Random(seed))


def test_one_burst_of_one_step_takes_its_longest_execution_then_tau_the_switch_training_and_update() -> None:
    """Two groups end at 10 s; the supply holds for 1 s; 2 s to train; 2 groups x 3 s on the core, as the other cell has
    to wait for tau again; 0.5 s of update; publication 0.25 s."""
    timings = Timings(to_train=2.0, to_rollout=4.0, update=0.5, publication=0.25)
    setting = Setting(plan(steps=1, phi=0.0, mu=1, tau_seconds=1.0), capacity=4, timings=timings)
    outcome, log = told(setting, Fixed((7.0, 10.0), training=3.0))
    assert log.times(GroupReady) == [10.0, 10.0]
    assert log.times(RoleTransitionRequested)[0] == 11.0
    assert outcome.updates == (pytest.approx(13.0 + 6.0 + 0.5),)
    assert log.times(WeightsPublished) == [pytest.approx(19.75)]
    assert outcome.executions == 4
    assert log.of(RunFinished)[0][1].steps == 1


def test_a_satellite_that_joins_halves_what_is_left() -> None:
    """Four groups of 3 s: two are with the packer, one is being trained on, and the fourth is supply for the other."""
    chosen = plan(steps=1, groups=4, phi=0.0, mu=1, rho_min=0.25, tau_seconds=0.0)
    outcome, log = told(Setting(chosen, capacity=4, timings=NOTHING_BUT_WORK), Fixed((7.0, 10.0), training=3.0))
    assert {event.cell for _, event in log.of(MicroStepClaimed)} == {0, 1}
    assert outcome.updates == (pytest.approx(16.0),)


def test_training_on_a_cell_of_more_nodes_is_faster() -> None:
    setting = Setting(plan(steps=1, phi=0.0, mu=1, cells=1), capacity=4, nodes=3.0, timings=NOTHING_BUT_WORK)
    outcome, _ = told(setting, Fixed((7.0, 10.0), training=3.0))
    assert outcome.updates == (pytest.approx(11.0 + 2.0),)


def test_what_does_not_fit_waits_in_the_queue_until_a_place_is_free() -> None:
    setting = Setting(plan(steps=1, phi=0.0, mu=1, cells=1), capacity=2, timings=NOTHING_BUT_WORK)
    _, log = told(setting, Fixed((5.0, 5.0)))
    assert log.times(ExecutionLaunched) == [0.0, 0.0, 5.0, 5.0]


def test_an_execution_beyond_its_limit_is_ended_there_and_scored_later() -> None:
    setting = Setting(plan(steps=1, phi=0.0, mu=1, groups=1), capacity=4, timings=NOTHING_BUT_WORK)
    _, log = told(setting, Fixed((5.0, 50.0), limit=20.0, scoring=3.0))
    ends = {event.execution: (seconds, event.reason) for seconds, event in log.of(ExecutionTerminated)}
    assert ends == {"x0-0": (5.0, "completed"), "x0-1": (20.0, "timeout")}
    assert log.times(GroupReady) == [23.0]


def test_live_executions_go_on_where_there_is_room_while_their_cell_trains() -> None:
    """Three of four end at 5 s: the core may train, and the one that was left on it moves, losing no work."""
    setting = Setting(
        plan(steps=2, groups=1, executions=4, phi=1.0, mu=1, rho_min=0.5, tau_seconds=0.0),
        capacity=4,
        timings=NOTHING_BUT_WORK,
    )
    _, log = told(setting, Fixed((5.0, 5.0, 5.0, 9.0), training=2.0))
    moved = [event for _, event in log.of(RouteMoved)]
    assert all(event.to_cell == 1 for event in moved)
    assert {seconds for seconds, event in log.of(ExecutionTerminated) if event.execution == "x0-3"} == {9.0}


def test_the_same_seed_gives_the_same_run_to_the_last_event() -> None:
    setting = Setting(plan(steps=6, groups=4, executions=3), capacity=8, relief=0.4)
    first, second = (told(setting, sampled(setting, 7))[1].pairs for _ in range(2))
    assert first == second
    assert told(setting, sampled(setting, 8))[1].pairs != first


def test_being_watched_changes_nothing() -> None:
    setting = Setting(plan(steps=6, groups=4, executions=3), capacity=8, relief=0.4)
    assert simulate(setting, sampled(setting, 7)) == told(setting, sampled(setting, 7))[0]


def test_a_run_is_told_as_a_log_would_tell_it() -> None:
    setting = Setting(plan(steps=4, groups=2, executions=2), capacity=4)
    outcome, log = told(setting, sampled(setting, 3))
    assert isinstance(log.pairs[0][1], RunStarted)
    assert log.times(OptimizerStepped) == list(outcome.updates)
    assert [event.version for _, event in log.of(WeightsPublished)] == [2, 4]
    assert [event.burst for _, event in log.of(BurstEnded)] == [1, 2]
    assert len(log.of(RouteAssigned)) == len(log.of(ExecutionLaunched)) == 16
    asked = [event.transition for _, event in log.of(RoleTransitionRequested)]
    assert asked[: len(log.of(RoleTransitionCompleted))] == [e.transition for _, e in log.of(RoleTransitionCompleted)]
    assert log.pairs == sorted(log.pairs, key=lambda pair: pair[0])
    assert len(log.of(CellJoined)) >= 4


def test_a_schedule_that_can_never_end_says_so() -> None:
    """All cells train for good: nothing can ever be launched."""
    setting = Setting(plan(kind="async", trainers=2), capacity=1, timings=NOTHING_BUT_WORK)
    with pytest.raises(SimulationStuck, match="0 of 4 steps done, 10 dispatched, 0 launched"):
        simulate(setting, Fixed((5.0, 5.0)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    groups = draw(st.integers(1, 3))
    return plan(
        steps=draw(st.integers(1, 5)),
        groups=groups,
        executions=draw(st.integers(1, 3)),
        phi=draw(st.integers(0, 2)) / groups,
        mu=draw(st.integers(1, 3)),
        rho_min=draw(st.sampled_from([0.25, 1.0])),
        tau_seconds=draw(st.sampled_from([0.0, 2.0])),
        cells=draw(st.integers(2, 4)),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(), seed=st.integers(0, 1000), stream=st.booleans(), relief=st.sampled_from([0.0, 0.4]))
def test_every_run_ends_with_the_staleness_that_theory_says(plan: Plan, seed: int, stream: bool, relief: float) -> None:
    room = (round(plan.phi * plan.groups) + plan.mu * plan.groups) * plan.executions
    setting = Setting(replace(plan, stream=stream), capacity=room, relief=relief)
    outcome, log = told(setting, sampled(setting, seed))
    assert len(outcome.updates) == plan.steps
    assert outcome.executions == len(log.of(ExecutionDispatched)) == plan.total_groups * plan.executions
    assert len(outcome.staleness) == plan.total_groups
    expected = expected_mean(plan.steps, plan.groups, plan.phi, plan.mu)
    assert outcome.mean_staleness == pytest.approx(expected, abs=1e-12)


def test_trainers_that_never_stop_publish_nothing_inside_an_evaluation() -> None:
    chosen = plan(kind="async", trainers=1, mu=1, phi=1.5, tau_seconds=0.0, evaluation_every=1, evaluation_episodes=4)
    timings = replace(NOTHING_BUT_WORK, evaluation=50.0)
    _, log = told(Setting(chosen, capacity=4, timings=timings), Fixed((1.0, 2.0)))
    words = {EvaluationStarted: 1, EvaluationScored: -1, WeightsPublished: 0}
    said = [words[type(event)] for _, event in log.pairs if type(event) in words]
    assert said.count(0) == chosen.steps
    assert not [place for place, word in enumerate(said) if word == 0 and sum(said[:place])]
