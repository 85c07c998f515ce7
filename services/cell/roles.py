"""A cell's role and how it changes, phase by phase: a phase that fails leaves the cell in the role that it had.

Rollout to training (design §6): stop admitting; wait until the proxy has moved the routes; pin the caches; cancel what
is in flight, which the proxy takes up elsewhere; wait until the caches are fetched; offload; restore. Nothing that
fails here strands a request: it was cancelled, and so is on its way, or it is served as before.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gyre.core.routes import vacated
from gyre.engines.port import Engine
from gyre.process import give_back, resident_bytes
from gyre.trainers.port import WeightsRefused
from gyre.weights.port import Weights
from schemas.envelope import Event
from schemas.roles import (
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionPhaseCompleted,
    RoleTransitionRequested,
)
from services.cell.desk import Desk
from services.cell.training import Training, named, refuse_unless
from services.exits import Hopeless

log = logging.getLogger("gyre")
Work = Callable[[], Awaitable[None]]


class Roles:
    """One cell's engine, in service or out of it."""

    def __init__(self, desk: Desk, engine: Engine, training: Training, weights: Weights) -> None:
        """It admits nothing before it is told to."""
        self._desk, self._engine, self._training, self._weights = desk, engine, training, weights
        self.admitting = False
        self._cancelled = 0

    async def begin(self) -> None:
        """Serve and admit; a cell that trains for good holds nothing until it is asked to."""
        if self._only_trains:
            await self._engine.release()
        else:
            await self.serve()
            await self._admit()

    @property
    def _only_trains(self) -> bool:
        return self._desk.index < self._desk.view.trainers

    async def serve(self) -> None:
        """Hold what rollout engines are to serve; raises as `Training.restore`."""
        desk = self._desk
        target = version, reference = desk.view.target
        resume = desk.held.engine_version == -1
        try:
            await self._weights.bring(self._engine, named(desk.place, reference), version, resume=resume)
        except WeightsRefused as refused:
            await refuse_unless(lambda: desk.view.target != target, desk, refused)
            raise
        desk.held = replace(desk.held, engine_version=version)

    async def move(self) -> None:
        """Make the transition that is asked of this cell, and say each phase. What cannot be undone is raised.

        So is what would fail again whenever it is asked for.
        """
        request = self._desk.view.requests[self._desk.index]
        phases = self._to_train() if request.to == "train" else self._to_rollout()
        events: list[Event] = []
        for name, work in phases:
            try:
                events.append(await self._phase(request, name, work))
            except Hopeless:
                raise
            except Exception as error:
                log.exception("%s: %s failed; the cell keeps its role", request.transition, name)
                await (self._serve_again() if request.to == "train" else self._train_again())
                events.append(self._failed(request, name, error))
                break
        else:
            events.append(self._completed(request))
        await self._desk.say(("cell", self._desk.index), *events)

    def _to_train(self) -> tuple[tuple[str, Work], ...]:
        if self._only_trains:  # nobody was ever routed here
            return (("restore", self._training.restore),)
        return (
            ("stop", self._stop),
            ("reroute", self._reroute),
            ("pin", self._pin),
            ("cancel", self._cancel),
            ("handoff", self._handoff),
            ("offload", self._offload),
            ("restore", self._training.restore),
        )

    def _to_rollout(self) -> tuple[tuple[str, Work], ...]:
        return (("offload", self._training.release), ("restore", self.serve), ("admit", self._admit))

    async def _stop(self) -> None:
        self.admitting = False

    async def _admit(self) -> None:
        self.admitting = True

    async def _reroute(self) -> None:
        """A heartbeat's time for the proxy: one that is away finds the cell shut, and moves the routes later."""
        desk = self._desk
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(desk.place.config.cells.heartbeat_seconds):
                await desk.until(lambda: vacated(desk.routes, desk.index))

    async def _pin(self) -> None:
        """Of executions that go on: nobody will come for the others'."""
        known = self._desk.routes
        await self._engine.pin_kv(known.assigned.keys() - set(known.closing))

    async def _cancel(self) -> None:
        self._cancelled = self._engine.running
        await self._engine.abort_all()

    async def _handoff(self) -> None:
        """Until everything pinned was fetched; what is not fetched in time is computed again elsewhere."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._desk.place.config.cells.handoff_seconds):
                await self._engine.unpinned()

    async def _offload(self) -> None:
        await self._engine.release()
        self._desk.held = replace(self._desk.held, engine_version=-1)

    async def _serve_again(self) -> None:
        await self._training.release()
        if self._only_trains:
            return
        if not (await self._engine.health()).admitting:  # also where it failed to let go
            self._desk.held = replace(self._desk.held, engine_version=-1)
            await self.serve()
        self.admitting = True

    async def _train_again(self) -> None:
        self.admitting = False
        await self._offload()  # also where it failed to serve: it may hold memory by then
        await self._training.restore()

    async def _phase(self, request: RoleTransitionRequested, name: str, work: Work) -> RoleTransitionPhaseCompleted:
        began = time.monotonic()
        await work()
        if name in ("offload", "restore"):
            give_back()
        return RoleTransitionPhaseCompleted(
            transition=request.transition,
            cell=self._desk.index,
            phase=name,
            seconds=time.monotonic() - began,
            requests=self._cancelled if name == "cancel" else 0,
            resident_bytes=resident_bytes(),
        )

    def _completed(self, request: RoleTransitionRequested) -> RoleTransitionCompleted:
        desk = self._desk
        version = desk.held.engine_version if request.to == "rollout" else desk.view.ledger.version
        return RoleTransitionCompleted(
            transition=request.transition,
            cell=desk.index,
            instance=desk.place.instance,
            to=request.to,
            version=max(0, version),
        )

    def _failed(self, request: RoleTransitionRequested, phase: str, error: Exception) -> RoleTransitionFailed:
        return RoleTransitionFailed(
            transition=request.transition,
            cell=self._desk.index,
            instance=self._desk.place.instance,
            phase=phase,
            reason=f"{type(error).__name__}: {error}"[:300],
        )
