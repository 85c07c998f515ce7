"""Whatever dies, and whoever sees the log late: each update sums each micro-step once (design §8, Ledger)."""

import random
from collections import Counter

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gyre.core.batch_state import Params
from schemas.training import GroupAssigned, MicroStepEnqueued, StepAborted, TrajectoriesAdmitted
from tests.core.training_world import World, targets

PARAMS = Params(groups=2, steps=3, burst=3, redeliveries=1000)


def run(seed: int, cells: int, harm: float) -> World:
    """Harm for a while, then let it end."""
    world = World(random.Random(seed), cells, PARAMS)
    for _ in range(300):
        world.act(harm=harm)
    for _ in range(6000):
        if len(world.sums) == PARAMS.steps:
            break
        world.act(harm=0.0)
    return world


@example(130, 2, 0.05)  # a core closes the window after it was declared lost, before it reads so
@example(37, 3, 0.05)
@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([0.0, 0.05, 0.2]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_update_sums_each_micro_step_exactly_once(seed: int, cells: int, harm: float) -> None:
    world = run(seed, cells, harm)
    said = [event for _, event in world.log.events()]
    assert not any(isinstance(event, StepAborted) for event in said)
    assert sorted(world.sums) == [1, 2, 3]
    queued = [event for event in said if isinstance(event, MicroStepEnqueued)]
    for step, total in world.sums.items():
        expected = [event.micro_step for event in queued if event.step == step and event.kind == "train"]
        assert sorted(total) == expected


@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_admitted_target_is_trained_once_and_every_group_assigned_once(seed: int, cells: int) -> None:
    said = [event for _, event in run(seed, cells, 0.1).log.events()]
    assigned = Counter(event.group for event in said if isinstance(event, GroupAssigned))
    assert assigned == Counter(f"g{index}" for index in range(6))
    trained: Counter[tuple[str, str, int]] = Counter()
    for event in said:
        if isinstance(event, MicroStepEnqueued) and event.kind == "train":
            trained += targets(event.rows)
    expected = {
        (event.execution, each.leaf, place)
        for event in said
        if isinstance(event, TrajectoriesAdmitted) and event.advantage
        for each in event.trajectories
        for place, flag in enumerate(each.target)
        if flag
    }
    assert trained == Counter(expected)
