"""A cell agent: an engine and a trainer in one process, doing what `gyre.core.cell` chooses (design §6, §8)."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from bus.log import BusPort
from gyre.addresses import listener
from gyre.core import cell
from gyre.core.cell import Deed
from gyre.engines.port import Engine, EngineError
from gyre.errors import GyreError
from gyre.process import share_one_arena
from schemas.roles import CellRegistered
from services.address import listening, url
from services.alongside import until_one_ends
from services.beats import beat, last_word
from services.cell.desk import Desk
from services.cell.roles import Roles
from services.cell.training import Training
from services.engine_server import engine_app, engine_runner
from services.exits import Hopeless
from services.place import Place
from services.replica import Replica, load_replica
from services.slots import in_slot
from services.weights import cell_weights, weights_route


class EngineGone(GyreError):
    """The engine ended or answers nothing, and its cell ends with it: whoever supervises the cell starts both anew."""


class CellAgent:
    """One cell at work: fold, choose, do, say."""

    def __init__(self, place: Place, bus: BusPort, index: int, replica: Replica) -> None:
        """Nothing happens before `run`."""
        self._desk = Desk(place, bus, index)
        self._engine: Engine = replica.engine
        self._weights = weights = cell_weights(place, index, self._desk.core_url)
        self._training = training = Training(self._desk, replica, weights)
        self._roles = roles = Roles(self._desk, replica.engine, training, weights)
        self._deeds: dict[Deed, Callable[[], Awaitable[None]]] = {
            "move": roles.move,
            "serve": roles.serve,
            "discard": training.discard,
            "join": training.join,
            "claim": training.claim,
            "advance": training.advance,
            "drain": training.drain,
            "reduce": training.open_reduction,
            "sum": training.take_part,
            "step": training.step,
            "publish": training.publish,
        }

    async def run(self) -> None:
        """Be this cell until cancelled. Raises `CellReplaced`, `CellLeftBehind`, `EngineGone`."""
        app = engine_app(self._engine, lambda: self._roles.admitting)
        app.add_routes([weights_route(self._weights)])
        runner = engine_runner(app)
        await runner.setup()
        await web.SockSite(runner, listener(listening())).start()
        where = url(runner.addresses[0][1])
        desk = self._desk
        beats = beat(desk.place, desk.bus, desk.index)
        try:
            await until_one_ends(desk.read(), beats, self._watch_engine(), self._act(where))
        except EngineGone as gone:
            await last_word(desk.place, desk.bus, desk.index, str(gone))
            raise
        finally:
            desk.save()
            await self._engine.close()
            await self._weights.close()
            await runner.cleanup()

    async def _watch_engine(self) -> None:
        while True:
            try:
                await self._engine.health()
            except EngineError as error:
                raise EngineGone(f"cell {self._desk.index}: {error}") from error
            await asyncio.sleep(self._desk.place.config.cells.heartbeat_seconds)

    async def _act(self, where: str) -> None:
        desk = self._desk
        await desk.caught_up()
        await self._training.release()
        await self._roles.begin()
        registered = CellRegistered(
            cell=desk.index,
            instance=desk.place.instance,
            url=where,
            capacity=desk.place.config.cells.concurrency,
            version=max(0, desk.held.engine_version),
        )
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


async def serve(place: Place, bus: BusPort, index: int | None = None) -> None:
    """Be cell `index` until cancelled; None: whichever no other process is. Raises `Hopeless` for one of no run."""
    share_one_arena()
    every = place.config.cells.count + place.config.cells.standalone
    if index is None:
        await in_slot(place.folder, every, lambda found: _serve(place, bus, found))
    elif index < every:
        await _serve(place, bus, index)
    else:
        raise Hopeless(f"--cell {index}: the cells of run {place.run} are 0 to {every - 1}; give one of them, or none")


async def _serve(place: Place, bus: BusPort, index: int) -> None:
    replica = await asyncio.to_thread(load_replica, place, index)
    await CellAgent(place, bus, index, replica).run()
