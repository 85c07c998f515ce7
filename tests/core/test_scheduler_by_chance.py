"""Runs told by chance, each thing that the scheduler says checked against design §6 (see world.py)."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gyre.core.plan import Dispatching, Kind, LaunchOrder, Plan
from gyre.core.scheduler import scheduler
from gyre.core.scheduler_state import Scheduler
from gyre.core.staleness import boundary_mean, expected_mean, realised_mean
from tests.core.world import World

STATE = TypeAdapter(Scheduler)
LONG = Plan(
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


@st.composite
def plans(draw: st.DrawFn, dispatching: Dispatching | None = None) -> Plan:
    """Any plan that a configuration may ask for, in small."""
    groups, cells = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    kind: Kind = draw(st.sampled_from(["elastic", "elastic", "async", "colocate"]))
    standalone = draw(st.integers(0, 2))
    chosen: Dispatching = draw(st.sampled_from(["boundary", "continuous"]))
    if kind == "async" and cells + standalone == 1:
        standalone = 1
    return Plan(
        steps=draw(st.integers(1, 5)),
        groups=groups,
        executions=draw(st.integers(2, 4)),
        phi=draw(st.integers(0, 3)) / groups,
        mu=draw(st.integers(1, 3)),
        rho_min=draw(st.sampled_from([0.1, 0.5, 1.0])),
        tau_seconds=draw(st.sampled_from([0.0, 1.0])),
        cells=cells,
        tasks=("a", "b", "c"),
        seed=1,
        order_seed=1,
        evaluation_every=draw(st.integers(0, 3)),
        evaluation_episodes=draw(st.sampled_from([0, 4])),
        standalone=standalone,
        kind=kind,
        stream=draw(st.booleans()),
        dispatching=dispatching or chosen,
        launch_order=draw(st.sampled_from(["fifo", "longest_predicted"])),
        oversample=draw(st.sampled_from([0, 0, 1, 2])),
        trainers=draw(st.integers(1, cells if standalone else cells - 1)) if kind == "async" else 0,
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
    whole = plan.steps * plan.groups * plan.size
    assert world.finished is not None
    found = world.finished
    assert (found.steps, found.dispatched, found.launched, found.terminated) == (plan.steps, whole, whole, whole)
    assert world.version == plan.steps


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(dispatching="boundary"), seed=st.integers(0, 2**32), mishaps=st.integers(0, 3))
def test_the_mean_staleness_of_boundary_dispatch_is_exact_whatever_the_placement(
    plan: Plan, seed: int, mishaps: int
) -> None:
    world = _told(plan, seed, capacity=3, mishaps=mishaps, eager=False)
    expected, found = expected_mean(plan.steps, plan.groups, plan.phi, plan.mu), realised_mean(world.staleness)
    if plan.evaluation_episodes:  # one that is due keeps dispatch waiting, while cells that train already go on:
        # what is left to be dispatched then is fresher, never staler
        assert found < expected + 1e-12
    else:
        assert found == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(dispatching="continuous"), seed=st.integers(0, 2**32))
def test_each_publication_ages_what_is_left_over_by_its_burst_under_continuous_dispatch(plan: Plan, seed: int) -> None:
    world = _told(plan, seed, capacity=3, mishaps=0, eager=False)
    bursts = [min(plan.mu, plan.steps - first) for first in range(0, plan.steps, plan.mu)]
    aged = sum(burst * left for burst, left in zip(bursts, world.left_over, strict=True))
    within = plan.groups * sum(step % plan.mu for step in range(plan.steps))
    assert sum(world.staleness) == aged + within


@pytest.mark.parametrize(
    ("kind", "phi", "mu", "mean"),
    [("elastic", 0.5, 3, 1.375), ("colocate", 0.0, 4, 1.5), ("async", 1.5, 1, 4 / 3)],
)
def test_the_papers_base_schedules_have_their_staleness_over_twelve_steps(
    kind: Kind, phi: float, mu: int, mean: float
) -> None:
    plan = replace(LONG, steps=12, phi=phi, mu=mu, kind=kind, trainers=int(kind == "async"))
    world = _told(plan, seed=1, capacity=4, mishaps=0, eager=False)
    assert realised_mean(world.staleness) == pytest.approx(mean, abs=1e-12)
    assert boundary_mean(phi, mu) == 1.5


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(), seed=st.integers(0, 2**32), capacity=st.integers(1, 12), mishaps=st.integers(1, 6))
def test_lost_cells_and_failed_transitions_delay_a_run_but_do_not_stop_it(
    plan: Plan, seed: int, capacity: int, mishaps: int
) -> None:
    world = _told(plan, seed, capacity=capacity, mishaps=mishaps, eager=False)
    assert world.finished is not None
    assert world.finished.terminated == plan.steps * plan.groups * plan.size


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
    written = STATE.dump_json(early)
    read_back = STATE.validate_json(written)
    assert read_back == early
    assert decider.fold(world.log[place:], read_back) == decider.fold(world.log[place:], early) == world.state
    assert STATE.dump_json(early) == STATE.dump_json(read_back) == written  # folding on changes no earlier state


@pytest.mark.parametrize("oversample", [0, 2])
@pytest.mark.parametrize("order", ["fifo", "longest_predicted"])
def test_nothing_is_remembered_of_what_is_done_with(order: LaunchOrder, oversample: int) -> None:
    plan = replace(LONG, launch_order=order, oversample=oversample)
    world = _told(plan, seed=3, capacity=4, mishaps=4, eager=False)
    counts = world.state.dispatch
    assert (counts.open, counts.closing, counts.order) == ({}, (), ())
    assert (counts.granted, counts.running, counts.ending, counts.ready) == (0, 0, 0, 0)
    assert len(world.state.cells.members) == 2


def test_what_is_remembered_grows_with_what_is_under_way_and_not_with_what_ended() -> None:
    sizes = []
    for steps in (10, 60):
        world = World(replace(LONG, steps=steps), random.Random(5))
        world.live(limit=20_000)
        decider, state, largest = scheduler(world.plan), scheduler(world.plan).initial, 0
        for sequence, event in world.log:
            state = decider.evolve(state, sequence, event)
            largest = max(largest, sum(len(block) for block in state.dispatch.open.values()))
        sizes.append((largest, len(STATE.dump_json(state))))
    (few, early), (many, late) = sizes
    assert few <= many <= LONG.depth + LONG.mu * LONG.groups
    assert late <= early + 40  # a few more digits
