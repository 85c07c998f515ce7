"""Ten recorded steps of nano, done again by torch and by each layout of megatron-core's ranks: the same training.

The log is that of a real run (tests/data/runs/ten-steps.toml makes it). Each trainer trains from the run's first
weights on, and is also set to the torch trainer's weights before each step, where loss and gradient are compared.
Micro-steps go through each trainer's stream, so that pipelines stay filled.
"""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gyre.config import Config
from gyre.core.cell import batch_loss
from gyre.models.load import NANO
from gyre.trainers.checkpoint import load_tensors
from gyre.trainers.megatron.trainer import MegatronTrainer
from gyre.trainers.port import Trainer
from gyre.trainers.stream import Stream, stream_of
from schemas.training import ExecutionStats, MicroStepEnqueued, Passage
from services.reexecute import recording, update_apart
from services.replica import load_trainer
from services.source import open_source
from tests.backends.conftest import SHIMS
from tests.services.recorded import RUNS
from tests.trainers.batch import distance
from tests.trainers.conftest import one_thread  # noqa: F401 - a fixture

pytestmark = pytest.mark.timeout(600)
LAYOUTS = {"tensor 2": (2, 1), "pipeline 2": (1, 2), "tensor 2 x pipeline 2": (2, 2)}
LOSS, GRADIENT, UPDATE = 1e-5, 1e-5, 1e-2
"""Differences allowed: of a step's loss, absolute; of its gradient before clipping and of the ten updates, relative."""
Steps = tuple[tuple[MicroStepEnqueued, ...], ...]


@dataclass(frozen=True)
class Recorded:
    """What the run trained on."""

    config: Config
    steps: Steps
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Taken:
    """A step that a trainer took."""

    loss: float
    gradient: Tensor


@dataclass(frozen=True)
class Training:
    """What came of all steps."""

    steps: tuple[Taken, ...]
    weights: tuple[Path, ...]
    """Before each step, and after the last one."""


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return asyncio.run(read())


async def read() -> Recorded:
    """The steps of the archive."""
    async with open_source(str(RUNS / "ten-steps.jsonl.zst"), RUNS) as source:
        state = await recording(source)
        steps = []
        for each in state.steps:
            found = [await source.ev.get(sequence) for sequence in each.trained.values()]
            events = (stored.commit.events[0] for stored in found if stored and stored.commit)
            steps.append(tuple(event for event in events if isinstance(event, MicroStepEnqueued)))
            assert len(steps[-1]) == len(each.trained)
        config = Config.recorded((await source.started()).config)
        return Recorded(config, tuple(steps), tuple(each.stepped.loss for each in state.steps))


def trainer_of(config: Config, tensor: int = 1, pipeline: int = 1) -> Trainer:
    """As a cell of that layout has it; torch's without ranks."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")])
    if tensor * pipeline == 1:
        return load_trainer(config)
    ranks = {"kind": "megatron", "tensor": tensor, "pipeline": pipeline, "backend": "gloo"}
    return load_trainer(Config.of(config.table() | {"trainer": ranks}))


def taken(trainer: Trainer, micro_steps: Sequence[MicroStepEnqueued], config: Config) -> Taken:
    """All micro-steps of a step, as many in hand at once as the trainer wants, at the weights that it has."""
    trainer.zero()
    stream = stream_of(trainer)
    stats = list[tuple[ExecutionStats, ...]]()
    for number, each in enumerate(micro_steps):
        stream.begin(each)
        while number + 1 - len(stats) >= stream.depth:
            stats += [ended.found.stats for ended in stream.advance()]
    stats += [ended.found.stats for ended in stream.drain()]
    _one_start_up(stream)
    schedule = config.schedule
    return Taken(batch_loss(stats, schedule.groups, schedule.executions), trainer.gradient.clone())


def _one_start_up(stream: Stream) -> None:
    passage = stream.passage
    if passage is not None:
        assert passage == Passage(startups=1, drains=1, pauses=passage.pauses, rows=passage.rows)


def train(trainer: Trainer, recorded: Recorded, folder: Path, steps: Steps | None = None) -> Training:
    """From the model's own weights through every step; `steps` are others than the recorded ones."""
    weights = [NANO / "model.safetensors"]
    trainer.load(weights[0])
    done = []
    for each in steps or recorded.steps:
        done.append(taken(trainer, each, recorded.config))
        trainer.apply(done[-1].gradient)
        weights.append(folder / trainer.save(folder).weights.address)
    return Training(tuple(done), tuple(weights))


@pytest.fixture(scope="module")
def reference(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train(trainer_of(recorded.config), recorded, tmp_path_factory.mktemp("torch"))


@pytest.fixture(params=LAYOUTS, scope="module")
def megatron(request: pytest.FixtureRequest, recorded: Recorded) -> Iterator[tuple[str, MegatronTrainer]]:
    made = trainer_of(recorded.config, *LAYOUTS[request.param])
    assert isinstance(made, MegatronTrainer)
    yield request.param, made
    made.close()


def test_the_torch_trainer_gives_the_losses_of_the_run(recorded: Recorded, reference: Training) -> None:
    assert len(recorded.steps) == len(reference.steps) == 10
    assert [each.loss for each in reference.steps] == pytest.approx(list(recorded.losses), abs=LOSS)
    assert all(float(each.gradient.norm()) > 0 for each in reference.steps)


def test_every_layout_trains_as_torch_does(
    megatron: tuple[str, MegatronTrainer],
    recorded: Recorded,
    reference: Training,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    layout, trainer = megatron
    mine = train(trainer, recorded, tmp_path)
    update = update_apart(mine.weights[0], mine.weights[-1], reference.weights[-1])
    losses, gradients = [], []
    for micro_steps, weights, wanted in zip(recorded.steps, reference.weights, reference.steps, strict=False):
        trainer.load(weights)
        found = taken(trainer, micro_steps, recorded.config)
        losses.append(abs(found.loss - wanted.loss))
        gradients.append(distance(found.gradient, wanted.gradient))
    own = max(abs(each.loss - other.loss) for each, other in zip(mine.steps, reference.steps, strict=True))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{layout}: loss {max(losses):.1e} ({own:.1e} along its own weights), "
            f"gradient {max(gradients):.1e}, update {update:.1e}\n"
        )
    assert max(losses) < LOSS
    assert own < LOSS
    assert max(gradients) < GRADIENT
    assert update < UPDATE


def without_one(steps: Steps, place: int) -> Steps:
    """One step lacks its first micro-step that trains anything."""

    def trains(each: MicroStepEnqueued) -> bool:
        return any(segment.advantage for row in each.rows for segment in row.segments)

    lacking = steps[place]
    dropped = next(each for each in lacking if trains(each))
    return (*steps[:place], tuple(each for each in lacking if each is not dropped), *steps[place + 1 :])


@pytest.mark.parametrize("place", [0, 4, 9])
def test_a_dropped_micro_step_is_beyond_what_is_allowed(
    recorded: Recorded, reference: Training, tmp_path: Path, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = trainer_of(recorded.config)
    other = train(trainer, recorded, tmp_path, without_one(recorded.steps, place))
    gradient = distance(other.steps[place].gradient, reference.steps[place].gradient)
    update = update_apart(other.weights[0], other.weights[-1], reference.weights[-1])
    with capsys.disabled():
        sys.stdout.write(f"\nstep {place + 1} lacks a micro-step: gradient {gradient:.1e}, update {update:.1e}\n")
    assert gradient > 100 * GRADIENT
    assert update > UPDATE


def weights_of(path: Path) -> Tensor:
    """All of a file, end to end, float64."""
    return torch.cat([each.double().reshape(-1) for _, each in sorted(load_tensors(path).items())])


def test_ten_steps_move_the_weights_by_more_than_rounding(reference: Training) -> None:
    """What the relative tolerance of the updates is taken of."""
    first, last = (weights_of(reference.weights[place]) for place in (0, -1))
    assert float((last - first).norm() / first.norm()) > 1e-3
