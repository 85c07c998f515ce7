"""A cell's part in training: join, claim, contribute, sum; and what only the core does (design §8)."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gyre.core import cell, ledger
from gyre.core.cell import View
from gyre.engines.port import EngineUnavailable
from gyre.engines.remote import RemoteEngine
from gyre.errors import GyreError
from gyre.trainers.checkpoint import locate, prune, spare
from gyre.trainers.port import (
    FencedOut,
    ReductionFailed,
    Trainer,
    UpdateSpoilt,
    WeightsRefused,
)
from gyre.weights.port import Weights
from schemas.refs import WeightsRef
from schemas.roles import CellRegistered
from schemas.training import (
    CellJoined,
    CheckpointSaved,
    ContributionDiscarded,
    GradientReduced,
    JoinWindowClosed,
    OptimizerStepped,
    ReductionOpened,
    WeightsBroadcast,
    WeightsPublished,
)
from services import failpoints
from services.cell.claims import Claims
from services.cell.desk import Desk
from services.exits import Hopeless
from services.place import Place
from services.replica import Replica

if TYPE_CHECKING:
    from torch import Tensor

ENGINE_CHECK_SECONDS = 0.05
Result = TypeVar("Result")


class Training:
    """The trainer of one cell, and its words about it."""

    def __init__(self, desk: Desk, replica: Replica, weights: Weights) -> None:
        """Nothing is loaded."""
        self._weights = weights
        self._desk = desk
        self._replica = replica
        self._reducer = replica.reducer
        self._sum: Tensor | None = None
        self._failure = ""
        """Why the last reduction came to nothing."""
        self._claims = None if replica.trainer is None else Claims(desk, replica.trainer, self._drop)

    @property
    def _trainer(self) -> Trainer:
        if self._replica.trainer is None:
            raise self._standalone()
        return self._replica.trainer

    @property
    def _claimed(self) -> Claims:
        if self._claims is None:
            raise self._standalone()
        return self._claims

    def _standalone(self) -> GyreError:
        return GyreError(f"cell {self._desk.index}: a standalone engine has no trainer; it cannot be asked to train")

    async def claim(self) -> None:
        """Claim the next micro-step of the queue, if one comes, and begin it."""
        await self._claimed.claim()

    async def advance(self) -> None:
        """Complete what ends without further input."""
        await self._claimed.advance()

    async def drain(self) -> None:
        """Complete everything in hand."""
        await self._claimed.drain()

    async def release(self) -> None:
        """Let go of everything: the cell returns to rollout. What it held for a step under way is queued again."""
        desk = self._desk
        owed = cell.owes(desk.view, desk.held)
        self._forget()
        desk.held = replace(desk.held, trainer_version=-1)  # also if it breaks half-way
        if self._replica.trainer is not None:
            await asyncio.to_thread(self._replica.trainer.release)
        if owed:
            await self._say_discarded(desk.view.ledger.step, "the cell returns to rollout")

    async def join(self) -> None:
        """Hold the step's weights and an empty gradient, and say so."""
        desk = self._desk
        state = desk.view.ledger
        try:
            await self.restore()
        except WeightsRefused:
            return  # the step is over by now, and its weights are gone
        await asyncio.to_thread(self._trainer.zero)
        self._forget()
        desk.held = replace(desk.held, step=state.step)
        joined = CellJoined(step=state.step, cell=desk.index, instance=desk.place.instance, version=state.version)
        await desk.say(("cell", desk.index), joined)

    async def restore(self) -> None:
        """Hold the weights of the step that is collecting, on the core the optimizer's state too.

        Raises:
            WeightsRefused: the step is over by now.
            Hopeless: they cannot be read, nor will they be.
            TrainerError: it does not hold them.
        """
        desk, view = self._desk, self._desk.view
        version = view.ledger.version
        if desk.held.trainer_version != version:
            try:
                await asyncio.to_thread(self._load, view)
            except WeightsRefused as refused:
                await refuse_unless(lambda: desk.view.ledger.version != version, desk, refused)
                raise
            desk.held = replace(desk.held, trainer_version=version)

    def _load(self, view: View) -> None:
        desk = self._desk
        weights = weights_path(desk.place, view.weights)
        if desk.index == ledger.CORE and view.optimizer is not None:
            self._trainer.restore(weights, weights_path(desk.place, view.optimizer))
        else:
            self._trainer.load(weights)

    def _forget(self) -> None:
        self._sum = None
        self._desk.held = replace(self._desk.held, accumulated={}, summed_epoch=0, tried_epoch=0)
        if self._claims is not None:
            self._claims.forget()

    async def discard(self) -> None:
        """The gradient in memory is not what the ledger counts; of a step that is over, it needs no word."""
        desk = self._desk
        owed = cell.owes(desk.view, desk.held)
        await asyncio.to_thread(self._trainer.zero)
        self._forget()
        if owed:
            await self._say_discarded(desk.view.ledger.step, "its gradient is not what the ledger counts")

    async def _say_discarded(self, step: int, reason: str, broken: bool = False) -> None:
        desk = self._desk
        event = ContributionDiscarded(
            step=step, cell=desk.index, instance=desk.place.instance, reason=reason[:300], broken=broken
        )
        await desk.say(("cell", desk.index), event)

    async def _drop(self, step: int, reason: str, broken: bool) -> None:
        await asyncio.to_thread(self._trainer.zero)
        self._forget()
        await self._say_discarded(step, reason, broken)

    async def open_reduction(self) -> None:
        """The core freezes members and claims."""
        desk = self._desk
        due = cell.reduction(desk.view)
        if due is None:
            return
        step = desk.view.ledger.step
        problems = ledger.check(due.contributions, ledger.training(desk.view.ledger))
        if problems:
            raise GyreError(f"step {step}: the ledger does not match: {'; '.join(problems)}")
        window = JoinWindowClosed(step=step, members=due.members)
        opened = ReductionOpened(
            step=step,
            epoch=due.epoch,
            members=due.members,
            instances=due.instances,
            contributions=due.contributions,
            reason=self._failure,
        )
        self._failure = ""
        await desk.say_as_core(window, opened)

    async def take_part(self) -> None:
        """Add this cell's gradient to the sum; the core says when it holds it."""
        desk = self._desk
        opened = desk.view.opened
        if opened is None:
            return
        began = time.monotonic()
        desk.held = replace(desk.held, tried_epoch=opened.epoch)
        try:
            total = await self._unless_broken(opened, await self._summing(opened))
        except ReductionFailed as error:
            self._failure = str(error)[:300]
            return
        except FencedOut as error:
            await self._drop(opened.step, str(error), False)
            return
        if total is None:
            self._failure = f"epoch {opened.epoch}: a member lost its share"
            return
        desk.held = replace(desk.held, summed_epoch=opened.epoch)
        if desk.index == ledger.CORE:
            self._sum = total
            await self._say_reduced(opened, total, time.monotonic() - began)

    async def _summing(self, opened: ReductionOpened) -> "Awaitable[Tensor]":
        """The sum to come. It may be abandoned, so the trainer, whom the next deed asks, has given its part before."""
        from gyre.trainers.reduction import checked_sum

        gradient = await asyncio.to_thread(lambda: self._trainer.gradient)
        return asyncio.to_thread(checked_sum, self._reducer, opened, gradient, self._desk.held.accumulated)

    async def _say_reduced(self, opened: ReductionOpened, total: "Tensor", seconds: float) -> None:
        from gyre.trainers.optimizer import global_norm
        from gyre.trainers.sketch import sketch

        norm, shadow = await asyncio.to_thread(lambda: (global_norm(total), sketch(total)))
        reduced = GradientReduced(
            step=opened.step,
            epoch=opened.epoch,
            members=opened.members,
            micro_steps=len(opened.contributions),
            gradient_norm=norm,
            seconds=seconds,
            sketch=shadow,
        )
        await self._desk.say_as_core(reduced)

    async def _unless_broken(self, opened: ReductionOpened, work: Awaitable[Result]) -> Result | None:
        """The sum, or None once a member is lost: its peers do not wait for it until their time limit."""
        desk = self._desk
        summing = asyncio.ensure_future(work)
        broken = asyncio.create_task(desk.until(lambda: cell.broken(desk.view, opened)))
        try:
            await asyncio.wait((summing, broken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            broken.cancel()
        if summing.done():
            return summing.result()
        summing.add_done_callback(_let_go)  # its thread works on a copy, and ends at its own time limit
        return None

    async def step(self) -> None:
        """The optimizer update: durable first, then said."""
        desk = self._desk
        state, config = desk.view.ledger, desk.place.config
        began = time.monotonic()
        total, self._sum = self._sum, None
        if total is None:
            raise GyreError(f"step {state.step}: no sum is held; the step is redone by another instance of the core")
        try:
            applied = await asyncio.to_thread(self._trainer.apply, total)
        except UpdateSpoilt as error:  # of a sound sum; where that is refused, the step is redone: it may be a slip
            raise Hopeless(f"step {state.step}: {error}") from error
        sequence = desk.sequence
        saved = await asyncio.to_thread(self._trainer.save, desk.place.folder, sequence)
        failpoints.reach(desk.place.folder, "stepped")
        version = state.version + 1
        if self._published(version):  # before anyone hears of it, and comes for it
            await self._weights.offer(saved.weights, desk.view.published_weights)
        stepped = OptimizerStepped(
            step=state.step,
            version=version,
            weights=saved.weights,
            optimizer=saved.optimizer,
            loss=cell.batch_loss(desk.view.stats.values(), config.schedule.groups, config.schedule.executions),
            gradient_norm=applied.gradient_norm,
            clip_coefficient=applied.clip_coefficient,
            learning_rate=config.optimizer.lr,
            seconds=time.monotonic() - began,
        )
        checkpoint = CheckpointSaved(
            step=state.step,
            version=version,
            weights=saved.weights,
            optimizer=saved.optimizer,
            sequence=sequence,
        )
        others = tuple(sorted(each for each in state.joined if each != desk.index))
        self._forget()
        said = await desk.say_as_core(stepped, checkpoint)
        desk.held = replace(desk.held, trainer_version=version if said else -1)
        if said and others and not self._published(version):
            await desk.heard()
            await desk.say_as_core(WeightsBroadcast(step=state.step, version=version, members=others))

    async def publish(self) -> None:
        """Say what is served from now on, once every engine has it."""
        desk = self._desk
        view = desk.view
        began = time.monotonic()
        weights = named(desk.place, view.weights)
        try:
            await asyncio.to_thread(locate, desk.place.folder, weights)  # digested before anyone is told to load it
            offered = await self._weights.offer(weights, view.published_weights)  # again: this may be another core
        except WeightsRefused as refused:
            await refuse_unless(lambda: desk.view.published >= view.ledger.version, desk, refused)
            raise
        await asyncio.gather(*(self._has_it(each, view.ledger.version) for each in view.engines.values()))
        spared = await self._spare(weights) if desk.place.config.run.keep_weights == "latest" else ()
        published = WeightsPublished(
            version=view.ledger.version,
            weights=weights,
            seconds=time.monotonic() - began,
            transport=desk.place.config.weights.transport,
            sent=offered.sent,
            changed=offered.changed,
        )
        if await desk.say_as_core(published):
            await asyncio.to_thread(prune, spared)

    async def _spare(self, weights: WeightsRef) -> tuple[Path, ...]:
        """What nobody needs once these are published, found before: from then on a successor may save at any time."""
        view = self._desk.view
        keep = [each for each in (weights, view.optimizer, view.published_weights) if each is not None]
        return await asyncio.to_thread(spare, self._desk.place.folder, keep)

    def _published(self, version: int) -> bool:
        """Whether an update ends a burst."""
        config = self._desk.place.config
        return version % config.schedule.mu == 0 or version == config.run.steps

    async def _has_it(self, cell_there: CellRegistered, version: int) -> None:
        """Wait until another cell's engine serves a version, or that cell is gone."""
        index, instance = cell_there.cell, cell_there.instance
        async with RemoteEngine(cell_there.url) as engine:
            while index != self._desk.index and cell.serves(self._desk.view, index, instance):
                with contextlib.suppress(EngineUnavailable):
                    if (await engine.health()).version >= version:
                        failpoints.reach(self._desk.place.folder, "half_published")
                        return
                await asyncio.sleep(ENGINE_CHECK_SECONDS)


def named(place: Place, reference: WeightsRef | None) -> WeightsRef:
    """Weights that the log has to name. Raises `GyreError`."""
    if reference is None:
        raise GyreError(f"run {place.run}: the log names no weights; it is not whole")
    return reference


def weights_path(place: Place, reference: WeightsRef | None) -> Path:
    """Where they lie, checked against their digest. Raises `GyreError`."""
    return locate(place.folder, named(place, reference))


async def refuse_unless(over: Callable[[], bool], desk: Desk, refused: WeightsRefused) -> None:
    """Weights that cannot be read are no matter once the log has gone on from them.

    Raises:
        Hopeless: it still names them, as it will to whoever starts again.
    """
    await desk.caught_up()
    if not over():
        raise Hopeless(f"cell {desk.index}: {refused}") from refused


def _let_go(future: "asyncio.Future[Any]") -> None:
    """Nobody waits for it any more, so nobody hears of its error either."""
    if not future.cancelled():
        future.exception()
