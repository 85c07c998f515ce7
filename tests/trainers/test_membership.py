"""The same gradient under any membership: whoever joins when, claims what and dies where (design §8)."""

import random

import pytest
import torch
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from gyre.core import ledger
from gyre.core.batch_state import Params
from schemas.training import MicroStepReissued
from tests.trainers.batch import distance
from tests.trainers.trained_world import TrainedWorld, alone, queued

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-5}
PARAMS = Params(groups=2, steps=1, burst=1, redeliveries=1000)


def run(seed: int, joins: tuple[float | None, ...], harm: float, kind: torch.dtype) -> TrainedWorld:
    """Harm for a while, then let it end."""
    world = TrainedWorld(random.Random(seed), 1 + len(joins), PARAMS, kind=kind, joins=joins)
    for moment in range(4000):
        if world.sums:
            return world
        world.act(harm=harm if moment < 80 else 0.0)
    raise AssertionError("the step did not end")


def error(world: TrainedWorld) -> float:
    """How far its sum is from one trainer's that takes all of the batch's micro-steps, one after the other."""
    steps = queued(world.log.events()).values()
    assert world.total is not None
    return distance(world.total, alone([each for each in steps if each.kind == "train"], world.kind))


JOINS = st.lists(st.sampled_from([0.0, 0.3, 0.9, None]), min_size=0, max_size=3).map(tuple)


@example(7, (0.0, 0.3, 0.9), 0.05, torch.float64)
@example(8, (None, None), 0.0, torch.float64)
@given(
    st.integers(0, 2**32), JOINS, st.sampled_from([0.0, 0.05, 0.15]), st.sampled_from([torch.float64, torch.float32])
)
@settings(max_examples=24, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_membership_and_any_losses_give_the_gradient_of_one_trainer(
    seed: int, joins: tuple[float | None, ...], harm: float, kind: torch.dtype
) -> None:
    world = run(seed, joins, harm, kind)
    reissued = any(isinstance(each, MicroStepReissued) for _, each in world.log.events())
    event(f"something lost: {reissued}; too late: {bool(world.late)}")
    assert error(world) < CLOSE[kind]


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_a_satellite_that_joins_unseen_before_the_reduction_is_fenced_out_of_it(kind: torch.dtype) -> None:
    world = TrainedWorld(random.Random(5), 2, PARAMS, kind=kind, joins=(None,))
    while not ledger.drained(world.truth()):
        world.act(harm=0.0)
    core = world.alive[0]
    core.see(world.head)
    world.joins = (0.9,)
    world.start(1)
    satellite = world.alive[1]
    satellite.join()
    assert satellite.is_joined
    world.reduce()
    satellite.see(world.head)
    assert not satellite.is_joined
    assert error(world) < CLOSE[kind]


@pytest.mark.parametrize("harm", ["dropped", "doubled"])
def test_a_micro_step_that_is_dropped_or_doubled_shows(harm: str) -> None:
    world = run(11, (0.0,), 0.0, torch.float64)
    steps = [each for each in queued(world.log.events()).values() if each.kind == "train"]
    heaviest = max(steps, key=lambda each: float(alone([each], torch.float64).norm()))
    others = [each for each in steps if each is not heaviest]
    wrong = others if harm == "dropped" else [*steps, heaviest]
    assert world.total is not None
    assert distance(alone(wrong, torch.float64), world.total) > 0.01
