"""A step under other settings, where an execution does not fit into one micro-step."""

from pathlib import Path

import pytest

from bus.memory import MemoryBroker, MemoryBus
from bus.streams import Limits
from gyre.config import Config
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.torch import file_state
from schemas.base import pack_floats, pack_ints
from schemas.envelope import Event
from schemas.rewards import GroupReady, Outcome
from schemas.runs import RunStarted
from schemas.training import (
    GradientReduced,
    GroupAssigned,
    OptimizerStepped,
    ReductionOpened,
    TrajectoriesAdmitted,
    Trajectory,
)
from services.place import Place
from services.restep import Trial, restep_under
from services.source import Source
from tests.core.facts import WEIGHTS
from tests.trainers import batch

RUN = "split"
LENGTHS = ((9, 7, 8), (6,))
"""Tokens of each trajectory of the two executions."""


def config(micro_step_tokens: int) -> Config:
    return Config.of(
        {
            "schedule": {"groups": 2, "executions": 2},
            "rollout": {"max_tokens": 4, "context_tokens": 9, "temperature": batch.TEMPERATURE},
            "packing": {"row_tokens": 9, "micro_step_tokens": micro_step_tokens, "share_prefixes": False},
        }
    )


def admitted(place: int) -> TrajectoriesAdmitted:
    """Targets all over the place, sampled a little unlike the model has them."""
    drawn = tuple(
        Trajectory(
            leaf=f"x0-{place}-c{number}",
            role="main",
            ids=pack_ints((7 * number + 3 * token) % batch.VOCABULARY for token in range(length)),
            target=bytes([0, *(1,) * (length - 1)]),
            logprobs=pack_floats([0.0, *(-8.0 - 0.1 * number,) * (length - 1)]),
            targets=length - 1,
        )
        for number, length in enumerate(LENGTHS[place])
    )
    return TrajectoriesAdmitted(
        execution=f"x0-{place}",
        group="g0",
        version=0,
        advantage=0.0,
        targets=sum(each.targets for each in drawn),
        seed=0,
        trajectories=drawn,
    )


def story() -> tuple[Event, ...]:
    outcomes = tuple(Outcome(execution=f"x0-{place}", standing="valid", reward=float(place == 0)) for place in range(2))
    return (
        GroupReady(group="g0", index=0, version=0, outcomes=outcomes),
        admitted(0),
        admitted(1),
        GroupAssigned(step=1, group="g0", version=0, staleness=0),
        ReductionOpened(step=1, epoch=1, members=(0,), instances=("c",), contributions=()),
        GradientReduced(step=1, epoch=1, members=(0,), micro_steps=0, gradient_norm=1.0, seconds=0.0),
        OptimizerStepped(
            step=1,
            version=1,
            weights=WEIGHTS,
            optimizer=WEIGHTS,
            loss=0.0,
            gradient_norm=1.0,
            clip_coefficient=1.0,
            learning_rate=1e-6,
            seconds=0.0,
        ),
    )


async def redone(folder: Path, micro_step_tokens: int, *overrides: str) -> tuple[Trial, list[tuple[int, int]]]:
    """The step as a run with such micro-steps would do it, and how it told of its way."""
    chosen, broker = config(micro_step_tokens), MemoryBroker()
    broker.provision(RUN, Limits())
    bus = MemoryBus(broker, RUN, "cell", "c", folder)
    place = Place("cell", "c", RUN, folder, "", chosen)
    begun = RunStarted(
        config=chosen.table(),
        config_digest=chosen.digest(),
        seed=0,
        code_version="0",
        weights=save_tensors(file_state(batch.tiny_model())[0], folder, "weights"),
        tasks=("t",),
        heldout=("h",),
    )
    for event in (begun, *story()):
        await bus.ev.append(place.subject("run"), place.commit((event,), as_of=0, correlation=RUN))
    told: list[tuple[int, int]] = []
    source = Source(RUN, bus.ev, bus.calls, bus.blobs, folder)
    trial = await restep_under(source, 1, overrides, lambda done, of: told.append((done, of)), batch.trainer())
    return trial, told


async def test_an_execution_over_several_micro_steps_comes_out_as_in_one(tmp_path: Path) -> None:
    (split, told), (whole, once) = await redone(tmp_path, 9), await redone(tmp_path, 64)
    assert told[-1] == (7, 7)  # three parts measured, then trained; the other execution whole
    assert once[-1] == (1, 1)
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    assert split.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-5)
    assert {name: each.mask for name, each in split.found.items()} == {
        name: each.mask for name, each in whole.found.items()
    }
    assert split.found["x0-0"].ratio == pytest.approx(whole.found["x0-0"].ratio, rel=1e-5)
    assert split.advantages == {"x0-0": 1.0, "x0-1": -1.0}


async def test_a_bound_that_is_moved_masks_a_split_execution_as_a_whole(tmp_path: Path) -> None:
    masked = "objective.ratio_high=1.0000001", "objective.ratio_low=0.9999999"
    ratio = (await redone(tmp_path, 9, "objective.ratio_high=1e9", "objective.ratio_low=1e-9"))[0].found["x0-0"]
    assert (ratio.mask, ratio.targets) == (1, 21)
    assert ratio.ratio > 1.1
    tight = (await redone(tmp_path, 9, *masked))[0].found["x0-0"]
    assert (tight.mask, tight.loss) == (0, 0.0)
    assert tight.ratio == pytest.approx(ratio.ratio, rel=1e-6)
