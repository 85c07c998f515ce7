"""A cell agent: an engine and a trainer in one process, doing what `gyre.core.cell` chooses (design §6, §8)."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from bus import subjects
from bus.errors import Conflict
from bus.log import BusPort, Delivery, Expect, Stored
from gyre.core import cell, ledger
from gyre.core.cell import Deed, Held, View
from gyre.engines.port import Engine
from gyre.errors import GyreError
from gyre.trainers.checkpoint import locate, prune
from gyre.trainers.port import AccumulatorSpoilt, FencedOut, MicroStepRefused, ReductionFailed, Trainer
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.roles import (
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionPhaseCompleted,
    RoleTransitionRequested,
)
from schemas.training import (
    CellJoined,
    CheckpointSaved,
    ContributionDiscarded,
    GradientReduced,
    JoinWindowClosed,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    MicroStepReissued,
    OptimizerStepped,
    ReductionOpened,
    WeightsBroadcast,
    WeightsPublished,
)
from services.engine_server import engine_app, engine_runner
from services.place import Place
from services.replica import Replica, load_replica

CLAIM_WAIT_SECONDS = 0.3


class CellReplaced(GyreError):
    """Another process is this cell now; this one must not say anything more."""


class CellAgent:
    """One cell at work: fold, choose, do, say."""

    def __init__(self, place: Place, bus: BusPort, index: int, replica: Replica) -> None:
        """Nothing happens before `run`."""
        config = place.config
        self._place, self._bus, self._index = place, bus, index
        self._engine: Engine = replica.engine
        self._trainer: Trainer = replica.trainer
        self._reducer = replica.reducer
        self._queue = bus.queue("step")
        self._view = View(steps=config.run.steps, burst=config.schedule.mu)
        self._held = Held(index, place.instance, engine_version=-1, trainer_version=-1)
        self._sequence = 0
        self._said = 0
        self._core_last = 0
        self._sum: object = None
        self._norm_seconds = 0.0
        self._admitting = False
        self._news = asyncio.Condition()
        self._deeds: dict[Deed, Callable[[], Awaitable[None]]] = {
            "move": self._move,
            "serve": self._serve_published,
            "discard": self._discard,
            "join": self._join,
            "claim": self._claim,
            "reduce": self._open_reduction,
            "sum": self._take_part,
            "step": self._step,
            "publish": self._publish,
        }

    async def run(self) -> None:
        """Be this cell until cancelled. Raises `CellReplaced`."""
        runner = engine_runner(engine_app(self._engine, lambda: self._admitting))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        tasks = [asyncio.create_task(work) for work in (self._read(), self._beat(), self._act(url))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._engine.close()
            await runner.cleanup()

    async def _beat(self) -> None:
        subject = subjects.hint(self._place.run, "heartbeat", self._index)
        while True:
            await self._bus.tell(subject, self._place.instance.encode())
            await asyncio.sleep(self._place.config.cells.heartbeat_seconds)

    async def _read(self) -> None:
        stream = self._bus.ev.read(0)
        async with contextlib.aclosing(stream):
            async for stored in stream:
                self._fold(stored)
                async with self._news:
                    self._news.notify_all()

    def _fold(self, stored: Stored) -> None:
        for event in stored.commit.events if stored.commit else ():
            self._view = cell.evolve(self._view, stored.sequence, event)
        if stored.subject == self._place.subject("core"):
            self._core_last = stored.sequence
        self._sequence = stored.sequence

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(holds)

    async def _act(self, url: str) -> None:
        head = await self._bus.ev.head()
        await self._until(lambda: self._sequence >= head)
        await self._load_engine()
        registered = CellRegistered(
            cell=self._index,
            instance=self._place.instance,
            url=url,
            capacity=self._place.config.cells.concurrency,
            version=self._held.engine_version,
        )
        self._admitting = True
        await self._say(("cell", self._index), registered)
        while True:
            await self._until(lambda: self._sequence >= self._said)
            self._refuse_if_replaced()
            before = self._sequence
            deed = cell.choose(self._view, self._held)
            if deed == "wait":
                await self._until(lambda before=before: self._sequence > before)  # type: ignore[misc]
            else:
                await self._deeds[deed]()

    def _refuse_if_replaced(self) -> None:
        known = self._view.ledger.cells.get(self._index)
        if known is not None and known.instance != self._place.instance:
            raise CellReplaced(f"cell {self._index}: {known.instance} took its place; {self._place.instance} stops")

    async def _say(self, entity: tuple[str | int, ...], *events: Event, expect: Expect | None = None) -> int:
        commit = self._place.commit(
            events, as_of=self._sequence, correlation=f"cell-{self._index}", causation=self._sequence
        )
        self._said = await self._bus.ev.append(self._place.subject(*entity), commit, expect)
        return self._said

    def _path(self, reference: WeightsRef | None) -> Path:
        if reference is None:
            raise GyreError(f"run {self._place.run}: the log names no weights; it is not whole")
        return locate(self._place.folder, reference)

    # -- roles ----------------------------------------------------------------------------------------------------

    async def _load_engine(self) -> None:
        version, weights = self._view.published, self._path(self._view.published_weights)
        if self._held.engine_version == -1:
            await self._engine.resume(weights, version)
        else:
            await self._engine.load(weights, version)
        self._held = replace(self._held, engine_version=version)

    async def _serve_published(self) -> None:
        await self._load_engine()

    async def _move(self) -> None:
        request = self._view.requests[self._index]
        if request.to == "train":
            self._admitting = False
            phases = (("drain", self._engine.abort_all), ("offload", self._offload))
        else:
            phases = (("release", self._release), ("load", self._load_engine))
        events = [await self._phase(request, name, work) for name, work in phases]
        version = self._held.engine_version if request.to == "rollout" else self._view.ledger.version
        done = RoleTransitionCompleted(
            transition=request.transition,
            cell=self._index,
            instance=self._place.instance,
            to=request.to,
            version=max(0, version),
        )
        self._admitting = request.to == "rollout"
        await self._say(("cell", self._index), *events, done)

    async def _phase(
        self, request: RoleTransitionRequested, name: str, work: Callable[[], Awaitable[None]]
    ) -> RoleTransitionPhaseCompleted:
        began = time.monotonic()
        await work()
        return RoleTransitionPhaseCompleted(
            transition=request.transition, cell=self._index, phase=name, seconds=time.monotonic() - began
        )

    async def _offload(self) -> None:
        await self._engine.release()
        self._held = replace(self._held, engine_version=-1)

    async def _release(self) -> None:
        self._forget()
        self._trainer.release()
        self._held = replace(self._held, trainer_version=-1)

    def _forget(self) -> None:
        self._sum = None
        self._held = replace(self._held, accumulated={}, summed_epoch=0, tried_epoch=0)

    # -- training -------------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        state = self._view.ledger
        if self._held.trainer_version != state.version:
            await asyncio.to_thread(self._load_trainer)
        self._trainer.zero()
        self._forget()
        self._held = replace(self._held, trainer_version=state.version)
        joined = CellJoined(step=state.step, cell=self._index, instance=self._place.instance, version=state.version)
        await self._say(("cell", self._index), joined)

    def _load_trainer(self) -> None:
        weights = self._path(self._view.weights)
        if self._index == ledger.CORE and self._view.optimizer is not None:
            self._trainer.restore(weights, self._path(self._view.optimizer))
        else:
            self._trainer.load(weights)

    async def _discard(self) -> None:
        state = self._view.ledger
        self._trainer.zero()
        held = bool(self._held.accumulated)
        self._forget()
        if held and state.joined.get(self._index) == self._place.instance:
            await self._say_discarded(state.step, "its gradient is not what the ledger counts")

    async def _say_discarded(self, step: int, reason: str) -> None:
        event = ContributionDiscarded(step=step, cell=self._index, instance=self._place.instance, reason=reason[:300])
        await self._say(("cell", self._index), event)

    async def _claim(self) -> None:
        for delivery in await self._queue.pull(1, CLAIM_WAIT_SECONDS):
            sequence = delivery.stored.sequence
            await self._until(lambda sequence=sequence: self._sequence >= sequence)  # type: ignore[misc]
            state = self._view.ledger
            if not ledger.may_claim(state, self._index, self._place.instance):
                await delivery.nak(0.1)
                return
            work = await self._work_of(delivery)
            if work is not None:
                await self._train(delivery, work)
            await delivery.ack()

    async def _work_of(self, delivery: Delivery) -> MicroStepEnqueued | None:
        """The micro-step's rows, if it is of this step; what is of another one is over."""
        event = delivery.stored.commit.events[0] if delivery.stored.commit else None
        if isinstance(event, MicroStepReissued) and event.step == self._view.ledger.step:
            original = await self._bus.ev.get(event.enqueued)
            event = original.commit.events[0] if original and original.commit else None
        current = isinstance(event, MicroStepEnqueued) and event.step == self._view.ledger.step
        return event if isinstance(event, MicroStepEnqueued) and current else None

    async def _train(self, delivery: Delivery, work: MicroStepEnqueued) -> None:
        entity = ("step", work.step, work.micro_step)
        shared = subjects.micro_step(self._place.run, work.step, work.micro_step)
        claimed = MicroStepClaimed(
            step=work.step, micro_step=work.micro_step, cell=self._index, instance=self._place.instance
        )
        try:
            claim = await self._say(entity, claimed, expect=Expect(shared, delivery.stored.sequence))
        except Conflict:  # somebody else's, or reissued since: its own entry comes
            return
        began = time.monotonic()
        try:
            found = await asyncio.to_thread(self._trainer.micro_step, work)
        except (MicroStepRefused, AccumulatorSpoilt) as error:
            self._trainer.zero()
            self._forget()
            await self._say_discarded(work.step, str(error))
            return
        completed = MicroStepCompleted(
            step=work.step,
            micro_step=work.micro_step,
            cell=self._index,
            instance=self._place.instance,
            claim=claim,
            stats=found.stats,
            seconds=time.monotonic() - began,
        )
        try:
            await self._say(entity, *found.measured, completed, expect=Expect(shared, claim))
        except Conflict:
            self._trainer.zero()
            self._forget()
            await self._say_discarded(work.step, f"micro-step {work.micro_step}: completed after it was reissued")
            return
        if work.kind == "train":
            self._held = replace(self._held, accumulated=self._held.accumulated | {work.micro_step: claim})

    async def _open_reduction(self) -> None:
        due = cell.reduction(self._view)
        if due is None:
            return
        step = self._view.ledger.step
        problems = ledger.check(due.contributions, ledger.training(self._view.ledger))
        if problems:
            raise GyreError(f"step {step}: the ledger does not match: {'; '.join(problems)}")
        window = JoinWindowClosed(step=step, members=due.members)
        opened = ReductionOpened(
            step=step,
            epoch=due.epoch,
            members=due.members,
            instances=due.instances,
            contributions=due.contributions,
        )
        await self._say_as_core(window, opened)

    async def _say_as_core(self, *events: Event) -> None:
        """Conditional on the core's own last word: a core that was replaced is refused."""
        subject = self._place.subject("core")
        try:
            await self._say(("core",), *events, expect=Expect(subject, self._core_last))
        except Conflict as conflict:
            raise CellReplaced(f"core {self._place.instance}: another core speaks now ({conflict}); it stops") from None

    async def _take_part(self) -> None:
        opened = self._view.opened
        if opened is None:
            return
        began = time.monotonic()
        self._held = replace(self._held, tried_epoch=opened.epoch)
        try:
            total = await asyncio.to_thread(self._reducer.sum, opened, self._trainer.gradient)
        except ReductionFailed:
            return
        except FencedOut:
            self._trainer.zero()
            self._forget()
            return
        self._held = replace(self._held, summed_epoch=opened.epoch)
        if self._index != ledger.CORE:
            return
        self._sum = total
        reduced = GradientReduced(
            step=opened.step,
            epoch=opened.epoch,
            members=opened.members,
            micro_steps=len(opened.contributions),
            gradient_norm=float(total.double().norm()),
            seconds=time.monotonic() - began,
        )
        await self._say_as_core(reduced)

    async def _step(self) -> None:
        state, config = self._view.ledger, self._place.config
        began = time.monotonic()
        total, self._sum = self._sum, None
        applied = await asyncio.to_thread(self._trainer.apply, total)  # type: ignore[arg-type]
        saved = await asyncio.to_thread(self._trainer.save, self._place.folder)
        version = state.version + 1
        stepped = OptimizerStepped(
            step=state.step,
            version=version,
            weights=saved.weights,
            optimizer=saved.optimizer,
            loss=cell.batch_loss(self._view, config.schedule.groups, config.schedule.executions),
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
            sequence=self._sequence,
        )
        others = tuple(sorted(each for each in state.joined if each != self._index))
        self._forget()
        self._held = replace(self._held, trainer_version=version)
        await self._say_as_core(stepped, checkpoint)
        if others and not (version % config.schedule.mu == 0 or version == config.run.steps):
            await self._until(lambda: self._sequence >= self._said)
            await self._say_as_core(WeightsBroadcast(step=state.step, version=version, members=others))

    async def _publish(self) -> None:
        view = self._view
        began = time.monotonic()
        path = self._path(view.weights)  # its digest is checked before anyone is told to load it
        keep = [each for each in (view.weights, view.optimizer, view.published_weights) if each is not None]
        published = WeightsPublished(version=view.ledger.version, weights=keep[0], seconds=time.monotonic() - began)
        await self._say_as_core(published)
        prune(path.parents[1], keep)


async def serve(place: Place, bus: BusPort, index: int) -> None:
    """Be cell `index` until cancelled."""
    replica = await asyncio.to_thread(load_replica, place, index)
    await CellAgent(place, bus, index, replica).run()
