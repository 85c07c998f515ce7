"""Runs told by chance, each thing that the scheduler says checked against design §6 (see world.py)."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gyre.core.plan import Plan
from gyre.core.scheduler import scheduler
from gyre.core.scheduler_state import Scheduler
from tests.core.world import World

STATE = TypeAdapter(Scheduler)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    groups = draw(st.integers(1, 3))
    return Plan(
        steps=draw(st.integers(1, 5)),
        groups=groups,
        executions=draw(st.integers(2, 4)),
        phi=draw(st.integers(0, 3)) / groups,
        mu=draw(st.integers(1, 3)),
        rho_min=draw(st.sampled_from([0.1, 0.5, 1.0])),
        tau_seconds=draw(st.sampled_from([0.0, 1.0])),
        cells=draw(st.integers(1, 4)),
        tasks=("a", "b", "c"),
        seed=1,
        order_seed=1,
        evaluation_every=draw(st.integers(0, 3)),
        evaluation_episodes=draw(st.sampled_from([0, 4])),
    )


def _told(plan: Plan, seed: int, *, capacity: int, mishaps: int, eager: bool) -> World:
    world = World(plan, random.Random(seed), capacity=capacity, mishaps=mishaps, eager=eager)
    world.live(limit=20_000)
    return world


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(), seed=st.integers(0, 2**32), capacity=st.integers(1, 12), eager=st.booleans())
def test_every_run_ends_with_everything_dispatched_launched_and_terminated(
    plan: Plan, seed: int, capacity: int, eager: bool
) -> None:
    world = _told(plan, seed, capacity=capacity, mishaps=0, eager=eager)
    whole = plan.steps * plan.groups * plan.executions
    assert world.finished is not None
    found = world.finished
    assert (found.steps, found.dispatched, found.launched, found.terminated) == (plan.steps, whole, whole, whole)
    assert world.version == plan.steps


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(), seed=st.integers(0, 2**32), capacity=st.integers(1, 12), mishaps=st.integers(1, 6))
def test_lost_cells_and_failed_transitions_delay_a_run_but_do_not_stop_it(
    plan: Plan, seed: int, capacity: int, mishaps: int
) -> None:
    world = _told(plan, seed, capacity=capacity, mishaps=mishaps, eager=False)
    assert world.finished is not None
    assert world.finished.terminated == plan.steps * plan.groups * plan.executions


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(), seed=st.integers(0, 2**32))
def test_every_recorded_decision_is_decided_again_from_the_log_alone(plan: Plan, seed: int) -> None:
    world = _told(plan, seed, capacity=4, mishaps=3, eager=False)
    decider, own = scheduler(plan), set(world.own)
    state = decider.initial
    for sequence, event in world.log:
        if sequence in own:
            assert decider.decide(state)[0].events == (event,)
        state = decider.evolve(state, sequence, event)
    assert state == world.state


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(), seed=st.integers(0, 2**32), cut=st.floats(0, 1))
def test_a_snapshot_written_as_json_goes_on_like_the_state_it_was_taken_of(plan: Plan, seed: int, cut: float) -> None:
    world = _told(plan, seed, capacity=4, mishaps=3, eager=False)
    decider = scheduler(plan)
    place = int(cut * len(world.log))
    early = decider.fold(world.log[:place])
    read_back = STATE.validate_json(STATE.dump_json(early))
    assert read_back == early
    assert decider.fold(world.log[place:], read_back) == world.state


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_remembered_of_what_is_done_with(seed: int) -> None:
    plan = Plan(
        steps=30,
        groups=2,
        executions=3,
        phi=0.5,
        mu=2,
        rho_min=0.5,
        tau_seconds=1,
        cells=2,
        tasks=("a",),
        seed=0,
        order_seed=0,
    )
    world = _told(plan, seed, capacity=4, mishaps=4, eager=False)
    counts = world.state.dispatch
    assert (counts.queued, counts.granted, counts.running, counts.ready, counts.unready) == ((), (), (), (), ())
    assert len(world.state.cells.members) == 2
