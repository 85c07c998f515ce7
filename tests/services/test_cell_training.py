"""What a training cell does beside its event loop, and with what nobody else may be at by then."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bus.log import Expect
from bus.memory import MemoryBroker, MemoryBus, MemoryLog
from bus.streams import Limits
from gyre.config import Config
from gyre.engines.scripted import ScriptedEngine, replay
from gyre.trainers.optimizer import Adam, AdamSettings
from gyre.trainers.port import Applied, GradientRefused, UpdateSpoilt, WeightsRefused
from gyre.weights.files import FromFolder
from schemas.envelope import Commit
from schemas.refs import WeightsRef
from schemas.roles import CellRegistered
from schemas.training import (
    CellJoined,
    ContributionDiscarded,
    OptimizerStepped,
    ReductionOpened,
    StreamClosed,
    WeightsPublished,
)
from services.cell import training as cell_training
from services.cell.desk import CellReplaced, Desk
from services.cell.training import Training
from services.exits import Hopeless
from services.place import Place
from services.replica import Replica
from tests.trainers import batch

RUN = "trained"


class Slow:
    """The part of a trainer that a sum asks for; it gives its gradient once it is let."""

    def __init__(self) -> None:
        self.asked, self.let = threading.Event(), threading.Event()

    @property
    def gradient(self) -> torch.Tensor:
        self.asked.set()
        assert self.let.wait(30)
        return torch.zeros(1)


class Alone:
    """A reducer without peers."""

    def sum(self, opened: ReductionOpened, gradient: torch.Tensor) -> torch.Tensor:
        return gradient

    def add_up(self, opened: ReductionOpened, total: torch.Tensor) -> None:
        """It is the sum."""


@asynccontextmanager
async def core(folder: Path, trainer: Any = None) -> AsyncGenerator[tuple[Desk, Training]]:
    """Cell 0 of a run, reading."""
    broker = MemoryBroker()
    broker.provision(RUN, Limits())
    place = Place("cell", "core-a", RUN, folder, "", Config())
    desk = Desk(place, MemoryBus(broker, RUN, "cell", "core-a", folder), 0)
    replica = Replica(ScriptedEngine(replay(())), trainer or Slow(), Alone())  # type: ignore[arg-type]
    reading = asyncio.create_task(desk.read())
    try:
        yield desk, Training(desk, replica, FromFolder(folder))
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_sum_that_is_given_up_leaves_nobody_at_the_trainer(tmp_path: Path) -> None:
    trainer = Slow()
    async with core(tmp_path, trainer) as (desk, training):
        broken = ReductionOpened(step=1, epoch=1, members=(0, 1), instances=("core-a", "gone"), contributions=())
        await desk.say(("core",), broken)
        await desk.heard()
        summing = asyncio.create_task(training.take_part())
        await asyncio.to_thread(trainer.asked.wait, 30)
        assert not (await asyncio.wait((summing,), timeout=0.2))[0]
        trainer.let.set()
        await summing


async def test_files_are_digested_and_deleted_while_the_cell_hears_and_says_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop: list[bool] = []

    def seen(work: Any) -> Any:
        def and_done(*arguments: Any) -> Any:
            on_loop.append(threading.current_thread() is threading.main_thread())
            return work(*arguments)

        return and_done

    monkeypatch.setattr(cell_training, "locate", seen(cell_training.locate))
    monkeypatch.setattr(cell_training, "prune", seen(cell_training.prune))
    async with core(tmp_path) as (desk, training):
        await desk.say(("core",), updated(tmp_path))
        await desk.heard()
        await training.publish()
        await desk.heard()
        assert desk.view.published == 1
    assert on_loop == [False, False]


async def test_a_core_that_is_overtaken_once_it_has_published_leaves_what_its_successor_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, newer = MemoryLog.append, tmp_path / "weights" / f"{'f' * 64}.safetensors"

    async def and_saved(log: MemoryLog, subject: str, commit: Commit, expect: Expect | None = None) -> int:
        sequence = await append(log, subject, commit, expect)
        if isinstance(commit.events[0], WeightsPublished):
            newer.touch()
        return sequence

    monkeypatch.setattr(MemoryLog, "append", and_saved)
    async with core(tmp_path) as (desk, training):
        await desk.say(("core",), updated(tmp_path))
        await desk.heard()
        older = newer.with_stem("0" * 64)
        older.touch()
        await training.publish()
    assert newer.exists()
    assert not older.exists()


async def test_a_core_that_hears_of_its_successor_says_and_deletes_nothing_more(tmp_path: Path) -> None:
    async with core(tmp_path) as (desk, training):
        await desk.say(("core",), updated(tmp_path))
        place = Place("cell", "core-b", RUN, tmp_path, "", Config())
        successor = CellRegistered(cell=0, instance="core-b", url="", capacity=1, version=0)
        await desk.bus.ev.append(place.subject("core"), place.commit((successor,), as_of=0, correlation=RUN))
        await desk.caught_up()
        newer = tmp_path / "weights" / f"{'f' * 64}.safetensors"
        newer.touch()
        with pytest.raises(CellReplaced):
            await training.publish()
        assert await desk.bus.ev.head() == 2
    assert newer.exists()


def updated(folder: Path) -> OptimizerStepped:
    """The first update, whose weights lie in the run's folder."""
    body = b"weights"
    digest = hashlib.sha256(body).hexdigest()
    (folder / "weights").mkdir()
    (folder / "weights" / f"{digest}.safetensors").write_bytes(body)
    weights = WeightsRef(digest=digest, size=len(body), address=f"weights/{digest}.safetensors")
    return OptimizerStepped(
        step=1,
        version=1,
        weights=weights,
        optimizer=weights,
        loss=0.0,
        gradient_norm=0.0,
        clip_coefficient=1.0,
        learning_rate=1e-6,
        seconds=0.0,
    )


async def test_a_cell_that_is_called_home_says_that_nothing_broke(tmp_path: Path) -> None:
    async with core(tmp_path, batch.trainer()) as (desk, training):
        await desk.say(("core",), CellRegistered(cell=0, instance="core-a", url="", capacity=1, version=0))
        await desk.say(("cell", 0), CellJoined(step=1, cell=0, instance="core-a", version=0))
        await desk.heard()
        desk.held = replace(desk.held, step=1, in_hand={0: 7})
        await training.release()
        said = await desk.bus.ev.last(desk.place.subject("cell", 0))
    assert said is not None
    assert said.commit is not None
    (discarded,) = said.commit.events
    assert isinstance(discarded, ContributionDiscarded)
    assert not discarded.broken


class Refusing:
    """A trainer that cannot read what it is given; `meanwhile` is what happens while it tries."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.meanwhile = meanwhile

    def restore(self, weights: Path, optimizer: Path) -> None:
        self.meanwhile()
        raise WeightsRefused("they are of another model")


async def test_weights_that_nobody_can_read_end_the_cell_for_good(tmp_path: Path) -> None:
    async with core(tmp_path, Refusing()) as (desk, training):
        await desk.say(("core",), updated(tmp_path))
        await desk.heard()
        with pytest.raises(Hopeless, match=r"^cell 0: they are of another model$"):
            await training.join()
        with pytest.raises(Hopeless, match=r"^cell 0: they are of another model$"):
            await training.restore()


async def test_weights_of_a_step_that_is_over_by_now_are_not_missed(tmp_path: Path) -> None:
    trainer = Refusing()
    async with core(tmp_path, trainer) as (desk, training):
        first = updated(tmp_path)
        await desk.say(("core",), first)
        await desk.heard()
        loop = asyncio.get_running_loop()
        on = desk.say(("core",), first.model_copy(update={"step": 2, "version": 2}))
        trainer.meanwhile = lambda: asyncio.run_coroutine_threadsafe(on, loop).result()
        await training.join()
        assert desk.held.trainer_version == -1
        said = await desk.bus.ev.last(desk.place.subject("cell", 0))
    assert said is None


async def test_a_core_whose_weights_are_damaged_publishes_nothing_and_ends_for_good(tmp_path: Path) -> None:
    async with core(tmp_path) as (desk, training):
        await desk.say(("core",), updated(tmp_path))
        await desk.heard()
        (weights,) = (tmp_path / "weights").iterdir()
        weights.write_bytes(b"WEIGHTS")
        with pytest.raises(Hopeless, match="the file is damaged"):
            await training.publish()
        assert await desk.bus.ev.head() == 1


class Overflowing(Slow):
    """A trainer whose update gives no numbers."""

    def apply(self, reduced: torch.Tensor) -> Applied:
        raise UpdateSpoilt("weights that are not finite")


async def after_a_sum(desk: Desk, training: Training) -> None:
    """The core holds the sum of step 1."""
    for event in (
        CellRegistered(cell=0, instance="core-a", url="", capacity=1, version=0),
        CellJoined(step=1, cell=0, instance="core-a", version=0),
        StreamClosed(step=1, micro_steps=0),
        ReductionOpened(step=1, epoch=1, members=(0,), instances=("core-a",), contributions=()),
    ):
        await desk.say(("core",), event)
    await desk.heard()
    assert desk.view.ledger.reduction is not None
    await training.take_part()


async def test_an_update_without_numbers_is_not_said_and_ends_the_core_for_good(tmp_path: Path) -> None:
    trainer = Overflowing()
    trainer.let.set()
    async with core(tmp_path, trainer) as (desk, training):
        await after_a_sum(desk, training)
        with pytest.raises(Hopeless, match=r"^step 1: weights that are not finite$"):
            await training.step()
        said = await desk.bus.ev.last(desk.place.subject("core"))
    assert said is not None
    assert said.commit is not None
    assert not any(isinstance(event, OptimizerStepped) for event in said.commit.events)


class Misfit(Slow):
    """A trainer of one parameter, whose accumulator is not its own."""

    def __init__(self) -> None:
        super().__init__()
        self.let.set()
        self._adam = Adam({"a": torch.zeros(1)}, AdamSettings())

    @property
    def gradient(self) -> torch.Tensor:
        return torch.zeros(2)

    def apply(self, reduced: torch.Tensor) -> Applied:
        return self._adam.apply(reduced)


async def test_a_sum_that_is_refused_ends_this_process_of_the_core_and_the_step_is_redone(tmp_path: Path) -> None:
    """It need not come again: whether it does, its supervisor counts."""
    async with core(tmp_path, Misfit()) as (desk, training):
        await after_a_sum(desk, training)
        with pytest.raises(GradientRefused, match="2 elements: the model has 1"):
            await training.step()
