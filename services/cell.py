"""A cell agent: an engine and a trainer in one process, doing what `gyre.core.cell` chooses (design §6, §8)."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aiohttp import web

from bus import subjects
from bus.log import BusPort
from gyre.core import cell
from gyre.core.cell import Deed
from gyre.engines.port import Engine
from schemas.roles import (
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionPhaseCompleted,
    RoleTransitionRequested,
)
from services.cell_desk import Desk
from services.cell_training import Training, weights_path
from services.engine_server import engine_app, engine_runner
from services.memory import give_back, share_one_arena
from services.place import Place
from services.replica import Replica, load_replica


class CellAgent:
    """One cell at work: fold, choose, do, say."""

    def __init__(self, place: Place, bus: BusPort, index: int, replica: Replica) -> None:
        """Nothing happens before `run`."""
        self._desk = Desk(place, bus, index)
        self._engine: Engine = replica.engine
        self._training = training = Training(self._desk, replica)
        self._admitting = False
        self._deeds: dict[Deed, Callable[[], Awaitable[None]]] = {
            "move": self._move,
            "serve": self._load_engine,
            "discard": training.discard,
            "join": training.join,
            "claim": training.claim,
            "reduce": training.open_reduction,
            "sum": training.take_part,
            "step": training.step,
            "publish": training.publish,
        }

    async def run(self) -> None:
        """Be this cell until cancelled. Raises `CellReplaced`, `CellLeftBehind`."""
        runner = engine_runner(engine_app(self._engine, lambda: self._admitting))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        tasks = [asyncio.create_task(work) for work in (self._desk.read(), self._beat(), self._act(url))]
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
        place, bus = self._desk.place, self._desk.bus
        subject = subjects.hint(place.run, "heartbeat", self._desk.index)
        while True:
            await bus.tell(subject, place.instance.encode())
            await asyncio.sleep(place.config.cells.heartbeat_seconds)

    async def _act(self, url: str) -> None:
        desk = self._desk
        await desk.heard(await desk.bus.ev.head())
        await self._load_engine()
        registered = CellRegistered(
            cell=desk.index,
            instance=desk.place.instance,
            url=url,
            capacity=desk.place.config.cells.concurrency,
            version=desk.held.engine_version,
        )
        self._admitting = True
        await desk.register(registered)
        while True:
            await desk.heard()
            desk.check()
            before = desk.sequence
            deed = cell.choose(desk.view, desk.held)
            if deed == "wait":
                await desk.until(lambda before=before: desk.sequence > before)  # type: ignore[misc]
            else:
                await self._deeds[deed]()

    async def _load_engine(self) -> None:
        desk = self._desk
        version, reference = desk.view.target
        weights = weights_path(desk.place, reference)
        if desk.held.engine_version == -1:
            await self._engine.resume(weights, version)
        else:
            await self._engine.load(weights, version)
        desk.held = replace(desk.held, engine_version=version)

    async def _move(self) -> None:
        desk = self._desk
        request = desk.view.requests[desk.index]
        if request.to == "train":
            self._admitting = False
            phases = (("drain", self._engine.abort_all), ("offload", self._offload))
        else:
            phases = (("release", self._training.release), ("load", self._load_engine))
        events = [await self._phase(request, name, work) for name, work in phases]
        give_back()
        version = desk.held.engine_version if request.to == "rollout" else desk.view.ledger.version
        done = RoleTransitionCompleted(
            transition=request.transition,
            cell=desk.index,
            instance=desk.place.instance,
            to=request.to,
            version=max(0, version),
        )
        self._admitting = request.to == "rollout"
        await desk.say(("cell", desk.index), *events, done)

    async def _phase(
        self, request: RoleTransitionRequested, name: str, work: Callable[[], Awaitable[None]]
    ) -> RoleTransitionPhaseCompleted:
        began = time.monotonic()
        await work()
        return RoleTransitionPhaseCompleted(
            transition=request.transition, cell=self._desk.index, phase=name, seconds=time.monotonic() - began
        )

    async def _offload(self) -> None:
        await self._engine.release()
        self._desk.held = replace(self._desk.held, engine_version=-1)


async def serve(place: Place, bus: BusPort, index: int) -> None:
    """Be cell `index` until cancelled."""
    share_one_arena()
    replica = await asyncio.to_thread(load_replica, place, index)
    await CellAgent(place, bus, index, replica).run()
