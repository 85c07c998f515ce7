"""Recorded steps done again from the log, without cells, crashes or claims: one trainer, one micro-step after another.

`restep` does one step at the weights that it was done at, and holds loss, ratios, masks and the gradient against what
the run recorded. `reexecute` does the whole run: from policy version 0 through every update, and ends with how far
its weights went apart from the run's. The run's gradients are not kept; their sketches are (`gyre.trainers.sketch`), so
that gradients are compared as vectors, to about 9 % of their difference.
"""

import asyncio
import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gyre.config import Config
from gyre.core import recorded
from gyre.core.cell import batch_loss
from gyre.core.recorded import RecordedStep, Recording, Stats
from gyre.errors import GyreError
from gyre.trainers.checkpoint import load_tensors, locate
from gyre.trainers.port import Finished, Trainer
from schemas.refs import WeightsRef
from schemas.training import ExecutionStats, MicroStepEnqueued
from services.replica import load_trainer
from services.source import Source, messages

Told = Callable[[int, int], None]
"""(done, of so many): how far the work is."""


class ReexecutionError(GyreError):
    """A step cannot be done again here; one line with the way out."""


@dataclass(frozen=True, slots=True)
class Restep:
    """One step done again."""

    step: int
    at: Literal["recorded", "own"]
    """Whether at the weights that the run had, or at those that the re-execution had come to itself."""
    loss: float
    gradient_norm: float
    """Before clipping."""
    apart: float | None
    """`|g - g_run| / |g_run|` of the two gradients before clipping, from their sketches; None: the log has none."""
    ratios: Mapping[str, float]
    """Execution -> s_i, measured anew also where it lies in several micro-steps."""
    found: Mapping[str, ExecutionStats]
    """Execution -> what all of its targets gave now."""
    recorded: Mapping[str, ExecutionStats]
    """Execution -> what they gave in the run."""
    origin: RecordedStep

    def differences(self, tolerance: float = 1e-5) -> tuple[str, ...]:
        """What is not as recorded, to a relative tolerance of gradients and losses; () if all is."""
        where, stepped = f"step {self.step}", self.origin.stepped
        said = [f"{where}: {problem}" for problem in self.origin.problems]
        if self.apart is not None and self.apart > tolerance:
            said.append(f"{where}: the gradients are {self.apart:.1e} apart")
        pairs = {"gradient norm": (self.gradient_norm, stepped.gradient_norm), "loss": (self.loss, stepped.loss)}
        for name, (now, then) in pairs.items():
            if not math.isclose(now, then, rel_tol=tolerance, abs_tol=tolerance**2):
                said.append(f"{where}: {name} {now:.9g}, recorded {then:.9g}")
        for execution in sorted(self.found.keys() | self.recorded.keys()):
            told, before = _told(self.found.get(execution)), _told(self.recorded.get(execution))
            if told != before:
                said.append(f"{where}: execution {execution}: {told}, recorded {before}")
        return tuple(said)


@dataclass(frozen=True, slots=True)
class Rerun:
    """A run done again from its first weights."""

    steps: tuple[Restep, ...]
    update_apart: float | None
    """`|w - w_run| / |w_run - w_start|` after the last step; None: the run's weights are not here."""


async def recording(source: Source) -> Recording:
    """What the log says about every committed step."""
    state = Recording()
    async for stored in messages(source.ev):
        for event in stored.commit.events if stored.commit else ():
            state = recorded.evolve(state, stored.sequence, event)
    return state


def _untold(_: int, __: int) -> None:
    """Nobody watches."""


async def restep(source: Source, step: int, trainer: Trainer | None = None, told: Told = _untold) -> Restep:
    """Do one step again at the weights that the run had.

    Args:
        source: the run, with its folder.
        step: from 1.
        trainer: of the run's model; by default one is made.
        told: called with (micro-steps done, micro-steps) as they go by.
    Raises:
        ReexecutionError: no such step was committed, or its weights are not there any more.
    """
    origin = step_of(await recording(source), step, source.run)
    config = Config.recorded((await source.started()).config)
    work = Work(source, config, trainer or await _trainer(config, source), told)
    with scratch() as folder:
        await asyncio.to_thread(work.trainer.load, await weights_of(source, config, origin, folder))
        return await work.again(origin, "recorded")


async def restep_from_start(source: Source, step: int, trainer: Trainer | None = None, told: Told = _untold) -> Restep:
    """Do one step again after all steps before it, from the run's first weights on: for a run that kept no others.

    Args:
        source: the run; an archive will do.
        step: from 1.
        trainer: of the run's model, and no update made; by default one is made.
        told: called with (steps done, steps) as they go by.
    Raises:
        ReexecutionError: no such step was committed, or the model's files are not those that the run began with.
    """
    state, started = await recording(source), await source.started()
    last, config = step_of(state, step, source.run), Config.recorded(started.config)
    work = Work(source, config, trainer or await _trainer(config, source))
    with scratch() as folder:
        await asyncio.to_thread(work.trainer.load, await _beginning(source, config, started.weights, folder))
        for origin in state.steps:
            told(origin.step - 1, step)
            done = await work.again(origin, "own")
            if origin is last:
                break
            await asyncio.to_thread(work.trainer.apply, work.trainer.gradient)
    return done


def step_of(state: Recording, step: int, run: str) -> RecordedStep:
    """A committed step by its number. Raises `ReexecutionError`."""
    origin = next((each for each in state.steps if each.step == step), None)
    if origin is None:
        committed = f"{len(state.steps)} steps were committed"
        raise ReexecutionError(f"step = {step}: {committed} in run {run}; give one of them")
    return origin


async def weights_of(source: Source, config: Config, origin: RecordedStep, folder: Path) -> Path:
    """The file of the weights that a step was taken at; `folder` takes what is made anew. Raises `ReexecutionError`."""
    kept = _on_disk(source, origin.weights)
    weights = kept or (await _first(config, origin.weights, folder) if origin.optimizer is None else None)
    if weights is None:
        way = (
            "only a run with run.keep_weights = all keeps them; --from-start, without --set, does the steps before too"
        )
        raise ReexecutionError(
            f"step = {origin.step}: weights {origin.weights.digest[:12]} are not there any more; {way}"
        )
    return weights


async def _beginning(source: Source, config: Config, reference: WeightsRef, folder: Path) -> Path:
    first = _on_disk(source, reference) or await _first(config, reference, folder)
    if first is None:
        raise ReexecutionError(f"run {source.run}: its first weights are not there and its model makes others now")
    return first


async def reexecute(source: Source, trainer: Trainer | None = None) -> Rerun:
    """Do a run again, every committed step from its first weights on.

    A step's gradient is compared at the weights that the run had, where these are on disk (`run.keep_weights`), else
    at those that the re-execution has come to.

    Args:
        source: the run; an archive has no weights to compare with.
        trainer: of the run's model, and no update made; by default one is made.
    Raises:
        ReexecutionError: the model's files are not those that the run began with.
    """
    started = await source.started()
    config, state = Config.recorded(started.config), await recording(source)
    work = Work(source, config, trainer or await _trainer(config, source))
    with scratch() as folder:
        first = await _beginning(source, config, started.weights, folder)
        kept = {each.step: path for each in state.steps if (path := _on_disk(source, each.weights)) is not None}
        own = await work.chain(first, state.steps, kept.keys())
        end = _on_disk(source, state.steps[-1].stepped.weights) if state.steps else None
        moved = None
        if end is not None:
            final = await asyncio.to_thread(work.trainer.save, folder)
            moved = await asyncio.to_thread(update_apart, first, folder / final.weights.address, end)
        compared = (*own, *(await work.at_recorded(state.steps, kept)))
        return Rerun(tuple(sorted(compared, key=lambda each: each.step)), moved)


def update_apart(start: Path, found: Path, reference: Path) -> float:
    """`|w_found - w_reference| / |w_reference - w_start|`, 2-norms over all tensors of three weights files."""
    first, mine, other = (load_tensors(each) for each in (start, found, reference))
    wrong = math.sqrt(sum(float((mine[name].double() - each.double()).square().sum()) for name, each in other.items()))
    moved = math.sqrt(sum(float((each.double() - first[name].double()).square().sum()) for name, each in other.items()))
    if moved == 0.0:
        return 0.0 if wrong == 0.0 else math.inf
    return wrong / moved


class Work:
    """One trainer that does recorded steps again."""

    def __init__(self, source: Source, config: Config, trainer: Trainer, told: Told = _untold) -> None:
        """Nothing is loaded; `told` hears of each micro-step."""
        self._source, self._config, self.trainer, self._told = source, config, trainer, told
        self._done, self._all = 0, 0

    async def chain(self, first: Path, steps: tuple[RecordedStep, ...], kept: Collection[int]) -> list[Restep]:
        """Every update from these weights on; what is compared here is what cannot be at recorded weights."""
        await asyncio.to_thread(self.trainer.load, first)
        done = []
        for origin in steps:
            here = await self.again(origin, "own")
            if origin.step not in kept:
                done.append(here)
            await asyncio.to_thread(self.trainer.apply, self.trainer.gradient)
        return done

    async def at_recorded(self, steps: tuple[RecordedStep, ...], kept: Mapping[int, Path]) -> list[Restep]:
        """Each of the steps whose weights were kept, at these."""
        done = []
        for origin in (each for each in steps if each.step in kept):
            await asyncio.to_thread(self.trainer.load, kept[origin.step])
            done.append(await self.again(origin, "recorded"))
        return done

    async def again(self, origin: RecordedStep, at: Literal["recorded", "own"]) -> Restep:
        """All of a step's micro-steps at the weights that the trainer has; its gradient stays in the trainer."""
        from gyre.trainers.optimizer import global_norm
        from gyre.trainers.sketch import apart, sketch

        self.trainer.zero()
        self._done, self._all = 0, len(origin.trained) + len(origin.measured)
        measured = await self._measured(origin)
        stats = [await self._trained(sequence) for sequence in origin.trained.values()]
        found, schedule = recorded.merged(stats), self._config.schedule
        gradient, shadow = self.trainer.gradient, origin.reduced.sketch
        return Restep(
            step=origin.step,
            at=at,
            loss=batch_loss(stats, schedule.groups, schedule.executions),
            gradient_norm=global_norm(gradient),
            apart=apart(sketch(gradient), shadow) if shadow else None,
            ratios={name: each.ratio for name, each in found.items()} | measured,
            found=found,
            recorded=recorded.merged(origin.stats),
            origin=origin,
        )

    async def _trained(self, sequence: int) -> Stats:
        return (await self._micro_step(sequence)).stats

    async def _micro_step(self, sequence: int) -> Finished:
        found = await asyncio.to_thread(self.trainer.micro_step, await self._work(sequence))
        self._done += 1
        self._told(self._done, self._all)
        return found

    async def _measured(self, origin: RecordedStep) -> dict[str, float]:
        """s_i of the executions that lie in several micro-steps."""
        sums: dict[str, tuple[float, int]] = {}
        for sequence in origin.measured.values():
            for each in (await self._micro_step(sequence)).measured:
                total, count = sums.get(each.execution, (0.0, 0))
                sums[each.execution] = (total + each.log_ratio_sum, count + each.count)
        return {name: math.exp(total / count) for name, (total, count) in sums.items()}

    async def _work(self, sequence: int) -> MicroStepEnqueued:
        stored = await self._source.ev.get(sequence)
        event = stored.commit.events[0] if stored and stored.commit else None
        if not isinstance(event, MicroStepEnqueued):
            raise ReexecutionError(f"EV sequence {sequence}: holds no MicroStepEnqueued; the log is not whole")
        return event


async def _trainer(config: Config, source: Source) -> Trainer:
    return await asyncio.to_thread(load_trainer, config, source.blobs)


async def _first(config: Config, reference: WeightsRef, folder: Path) -> Path | None:
    """Policy version 0 as the model's files give it now; None if that is another one."""
    from services.initial import write_initial

    written = await asyncio.to_thread(write_initial, folder, config.model.path)
    return folder / written.address if written.digest == reference.digest else None


def _on_disk(source: Source, reference: WeightsRef) -> Path | None:
    """The file of these weights in the run's folder, whole; None if it is not there. Raises `WeightsRefused`."""
    there = source.folder is not None and (source.folder / reference.address).is_file()
    return locate(source.folder, reference) if there and source.folder is not None else None


def _told(stats: ExecutionStats | None) -> str:
    """What must be equal exactly."""
    return "nothing" if stats is None else f"{stats.targets} targets under mask {stats.mask}"


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for weights that are made anew."""
    with tempfile.TemporaryDirectory(prefix="gyre-again-") as name:
        yield Path(name)
