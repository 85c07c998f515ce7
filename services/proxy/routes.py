"""Saying where an execution's calls go: a route begins where the log's last one ends, or it is not said.

Of two proxies that move one execution at once, one is therefore heard; the other one goes on from what the log says. A
proxy's own routes follow one another: it uses each at once, and says them in order.
"""

import asyncio
import contextlib
import logging
from weakref import WeakValueDictionary

from bus.errors import Conflict, Unavailable
from bus.log import BusPort
from schemas.calls import RouteAssigned, RouteMoved
from services.proxy.world import World
from services.speaker import Speaker

Route = RouteAssigned | RouteMoved
_PAUSE_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


class RouteSpeech:
    """Says routes for all executions."""

    def __init__(self, bus: BusPort, world: World, speaker: Speaker) -> None:
        """`world` has folded the routes that are said."""
        self._bus, self._world, self._speaker = bus, world, speaker
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def say(self, route: Route) -> bool:
        """Say a route, or take over the other that the log has; whether it was said. Raises StreamFull and OSError."""
        turn = self._turns.setdefault(route.execution, asyncio.Lock())
        async with turn:
            while True:
                try:
                    return await self._said(route)
                except Conflict:
                    continue  # something was said meanwhile, perhaps of a call
                except Unavailable as error:
                    _LOG.warning("execution %s: waiting for the log: %s", route.execution, error)
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _said(self, route: Route) -> bool:
        cell, last = await self._told(route.execution)
        if cell == (route.from_cell if isinstance(route, RouteMoved) else None):
            await self._speaker.say(route.execution, route, self._world.sequence, expect=last)
            return True
        if cell is not None:
            _LOG.info("execution %s: another proxy has it at cell %d", route.execution, cell)
            self._world.fold(RouteAssigned(execution=route.execution, cell=cell))
        return False

    async def _told(self, execution: str) -> tuple[int | None, int]:
        """The cell that the log has, and the sequence of what proxies said of the execution last; 0: nothing."""
        subject = self._speaker.subject(execution)
        last = await self._bus.ev.last(subject)
        cell, known = self._world.told(execution)
        if last is None or last.sequence <= known:
            return cell, last.sequence if last else 0
        async with contextlib.aclosing(self._bus.ev.read(known, subject)) as stream:
            async for stored in stream:
                for event in stored.commit.events if stored.commit else ():
                    if isinstance(event, RouteAssigned | RouteMoved):
                        cell = event.cell if isinstance(event, RouteAssigned) else event.to_cell
                if stored.sequence >= last.sequence:
                    return cell, stored.sequence
        raise Unavailable(f"execution {execution}: what was said of it cannot be read")
