"""Recorded steps done again: what was done rightly comes out the same, and what was not shows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch

from bus.memory import MemoryBroker, MemoryBus
from bus.streams import Limits
from gyre.config import Config
from gyre.core.cell import batch_loss
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.optimizer import AdamSettings, global_norm
from gyre.trainers.sketch import sketch
from gyre.trainers.torch import TorchTrainer, file_state
from schemas.envelope import Event
from schemas.runs import RunStarted
from schemas.training import (
    Contribution,
    ExecutionStats,
    GradientReduced,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    ReductionOpened,
    Segment,
)
from services.place import Place
from services.reexecute import ReexecutionError, Restep, reexecute, restep
from services.source import Source
from tests.trainers import batch
from tests.trainers.batch import CASES, SPLIT, micro_step

RUN = "again"
CONFIG = Config.of({"schedule": {"groups": 4, "executions": 2, "phi": 0.5}})
Harm = Callable[[TorchTrainer, list[MicroStepEnqueued]], None]
ADAM = AdamSettings(learning_rate=1e-4)


def nothing(_: TorchTrainer, __: list[MicroStepEnqueued]) -> None:
    """A sum as it should be."""


def doubled(trainer: TorchTrainer, steps: list[MicroStepEnqueued]) -> None:
    """One micro-step is in the gradient twice."""
    trainer.micro_step(steps[0])


def dropped(trainer: TorchTrainer, steps: list[MicroStepEnqueued]) -> None:
    """One micro-step is not in the gradient, though the log counts it."""
    trainer.zero()
    for each in steps[1:]:
        trainer.micro_step(each)


@cache
def segments() -> dict[str, list[Segment]]:
    return {each.name: batch.segments(each) for each in CASES}


@dataclass
class Recorder:
    """A run of one cell, as its log and its folder have it."""

    folder: Path
    bus: MemoryBus
    trainer: TorchTrainer = field(default_factory=lambda: batch.trainer(adam=ADAM))
    version: int = 0

    @property
    def source(self) -> Source:
        return Source(RUN, self.bus.ev, self.bus.calls, self.bus.blobs, self.folder)

    async def say(self, event: Event) -> int:
        place = Place("cell", "c", RUN, self.folder, "", CONFIG)
        return await self.bus.ev.append(place.subject("run"), place.commit((event,), as_of=0, correlation=RUN))

    async def start(self) -> None:
        weights = save_tensors(file_state(batch.tiny_model())[0], self.folder, "weights")
        await self.say(
            RunStarted(
                config=CONFIG.table(),
                config_digest=CONFIG.digest(),
                seed=0,
                code_version="0",
                weights=weights,
                tasks=("t",),
                heldout=("h",),
            )
        )

    async def step(self, harm: Harm = nothing) -> None:
        """Train the batch of hard cases, some of it split, once more."""
        number = self.version + 1
        steps, measuring = self._micro_steps(number)
        for each in (*measuring, *steps):
            await self.say(each)
        self.trainer.zero()
        stats = [self.trainer.micro_step(each).stats for each in steps]
        for place, found in enumerate(stats):
            await self._completed(number, place, found)
        harm(self.trainer, steps)
        gradient = self.trainer.gradient.clone()
        frozen = tuple(Contribution(micro_step=each, cell=0, claim=each + 1) for each in range(len(steps)))
        await self.say(ReductionOpened(step=number, epoch=1, members=(0,), instances=("c",), contributions=frozen))
        await self.say(
            GradientReduced(
                step=number,
                epoch=1,
                members=(0,),
                micro_steps=len(steps),
                gradient_norm=global_norm(gradient),
                seconds=0.0,
                sketch=sketch(gradient),
            )
        )
        await self._update(number, gradient, batch_loss(stats, 4, 2))

    def _micro_steps(self, number: int) -> tuple[list[MicroStepEnqueued], list[MicroStepEnqueued]]:
        pieces = segments()
        parts = [part for name in SPLIT for part in pieces[name]]
        measuring = [micro_step([[part]], 100 + place, step=number, kind="measure") for place, part in enumerate(parts)]
        decided = {
            each.execution: each
            for each in batch.masks([one for each in measuring for one in self.trainer.micro_step(each).measured])
        }
        rows = [([pieces[each]], ()) for each in pieces if each not in SPLIT]
        rows += [([[part]], (decided[part.execution],)) for part in parts]
        trained = [micro_step(row, place, step=number, masks=masks) for place, (row, masks) in enumerate(rows)]
        return trained, measuring

    async def _completed(self, step: int, place: int, stats: tuple[ExecutionStats, ...]) -> None:
        await self.say(
            MicroStepCompleted(
                step=step, micro_step=place, cell=0, instance="c", claim=place + 1, stats=stats, seconds=0.0
            )
        )

    async def _update(self, number: int, gradient: torch.Tensor, loss: float) -> None:
        applied = self.trainer.apply(gradient)
        saved = self.trainer.save(self.folder)
        self.version = number
        await self.say(
            OptimizerStepped(
                step=number,
                version=number,
                weights=saved.weights,
                optimizer=saved.optimizer,
                loss=loss,
                gradient_norm=applied.gradient_norm,
                clip_coefficient=applied.clip_coefficient,
                learning_rate=ADAM.learning_rate,
                seconds=0.0,
            )
        )


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny tensors are computed fastest by one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
async def run(tmp_path: Path) -> Recorder:
    broker = MemoryBroker()
    broker.provision(RUN, Limits())
    made = Recorder(tmp_path, MemoryBus(broker, RUN, "cell", "c", tmp_path))
    await made.start()
    return made


def fresh() -> TorchTrainer:
    return batch.trainer(adam=ADAM)


async def test_a_run_done_again_comes_to_its_gradients_losses_and_weights(run: Recorder) -> None:
    for _ in range(2):
        await run.step()
    done = await reexecute(run.source, fresh())
    found = [(each.step, each.at, each.differences()) for each in done.steps]
    assert found == [(1, "recorded", ()), (2, "recorded", ())]
    assert done.update_apart is not None
    assert done.update_apart < 1e-2


@pytest.mark.parametrize("harm", [dropped, doubled])
async def test_a_micro_step_dropped_or_doubled_in_one_update_fails_gradient_norm_and_weights(
    run: Recorder, harm: Harm
) -> None:
    await run.step(harm)
    await run.step()
    done = await reexecute(run.source, fresh())
    assert [bool(each.differences()) for each in done.steps] == [True, False]
    said = done.steps[0].differences()
    assert any("the gradients are" in each for each in said)
    assert any("gradient norm" in each for each in said)
    assert done.update_apart is not None
    assert done.update_apart > 1e-2


async def test_one_step_done_again_gives_ratios_and_masks_also_of_split_executions(run: Recorder) -> None:
    await run.step()
    await run.step()
    first = await restep(run.source, 1, fresh())
    wanted = batch.expected()
    assert first.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert dict(first.ratios) == pytest.approx(wanted.ratio, rel=1e-5)
    assert {name: each.mask for name, each in first.found.items()} == wanted.mask
    assert differs(await restep(run.source, 2, fresh()), first)


async def test_a_run_that_kept_only_its_latest_weights_is_done_again_from_its_first_ones(run: Recorder) -> None:
    for _ in range(3):
        await run.step()
    await forget(run, keep=(0, 3))
    done = await reexecute(run.source, fresh())
    assert [(each.step, each.at) for each in done.steps] == [(1, "recorded"), (2, "own"), (3, "own")]
    assert done.update_apart is not None
    assert done.update_apart < 1e-2
    with pytest.raises(
        ReexecutionError, match=r"step = 2: weights [0-9a-f]{12} are not there any more; .*keep_weights"
    ):
        await restep(run.source, 2, fresh())


async def test_a_step_that_was_never_committed_is_refused_by_number(run: Recorder) -> None:
    await run.step()
    with pytest.raises(ReexecutionError, match="step = 2: 1 steps were committed in run again; give one of them"):
        await restep(run.source, 2, fresh())


def differs(one: Restep, other: Restep) -> bool:
    return one.gradient_norm != other.gradient_norm


async def forget(run: Recorder, keep: tuple[int, ...]) -> None:
    """Only these versions stay on disk."""
    versions: list[str] = []
    for sequence in range(1, await run.bus.ev.head() + 1):
        stored = await run.bus.ev.get(sequence)
        assert stored is not None
        assert stored.commit is not None
        (event,) = stored.commit.events
        if isinstance(event, RunStarted | OptimizerStepped):
            versions.append(event.weights.address)
    for version, address in enumerate(versions):
        if version not in keep:
            (run.folder / address).unlink()
