"""What one cell hears and says: the log folded into its view, and its own words, each on the right condition."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from bus.errors import Conflict, Unavailable
from bus.log import BusPort, Expect, Stored
from gyre.core import cell, ledger, routes
from gyre.core.cell import Held, View
from gyre.core.routes import Routes
from gyre.errors import GyreError
from schemas.envelope import Event
from services import failpoints
from services.place import Place

log = logging.getLogger("gyre")


class CellReplaced(GyreError):
    """Another process is this cell now; this one must not say anything more."""


class CellLeftBehind(GyreError):
    """The log says that this process is lost: it counts no more, and has to come back as another instance."""


class Desk:
    """The log as this cell has it, and its memory as the log should have it."""

    def __init__(self, place: Place, bus: BusPort, index: int) -> None:
        """Nothing was heard or said."""
        self.place, self.bus, self.index = place, bus, index
        config = place.config
        self.view = View(steps=config.run.steps, burst=config.schedule.mu, trainers=config.cells.trainers)
        self.routes = Routes()
        """Who is served where, as the log has it by now."""
        self.held = Held(index, place.instance, engine_version=-1, trainer_version=-1)
        self.sequence = 0
        self._said = 0
        self._core_last = 0
        self._news = asyncio.Condition()

    async def read(self) -> None:
        """Fold for ever."""
        stream = self.bus.ev.read(0)
        async with contextlib.aclosing(stream):
            async for stored in stream:
                self._fold(stored)
                async with self._news:
                    self._news.notify_all()

    def _fold(self, stored: Stored) -> None:
        for event in stored.commit.events if stored.commit else ():
            self.view = cell.evolve(self.view, stored.sequence, event)
            self.routes = routes.evolve(self.routes, event)
        if stored.subject == self.place.subject("core"):
            self._core_last = stored.sequence
        self.sequence = stored.sequence

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for the log to say so."""
        async with self._news:
            await self._news.wait_for(holds)

    async def heard(self, sequence: int = 0) -> None:
        """Wait until this sequence and all that was said here is folded."""
        await self.until(lambda: self.sequence >= max(sequence, self._said))

    def check(self) -> None:
        """Raises `CellReplaced` or `CellLeftBehind` once the log counts this process no more."""
        known = self.view.ledger.cells.get(self.index)
        mine = self.place.instance
        if known is not None and known.instance != mine:
            raise CellReplaced(f"cell {self.index}: {known.instance} took its place; {mine} stops")
        if known is not None and not known.alive:
            raise CellLeftBehind(f"cell {self.index}: {mine} was taken for lost; it comes again as another instance")

    async def say(self, entity: tuple[str | int, ...], *events: Event, expect: Expect | None = None) -> int:
        """Store one commit, however long the server is away; its sequence. Raises `Conflict`, `StreamFull`."""
        commit = self.place.commit(
            events, as_of=self.sequence, correlation=f"cell-{self.index}", causation=self.sequence
        )
        while True:
            try:
                self._said = await self.bus.ev.append(self.place.subject(*entity), commit, expect)
            except Unavailable as error:
                log.warning("%s; still trying", error)  # the same commit again: it cannot be stored twice
                continue
            failpoints.said(self.place.folder, events)
            return self._said

    async def say_as_core(self, *events: Event) -> bool:
        """Say it on the condition of the core's own last word; False when that was another than we knew.

        Raises:
            CellReplaced: another core speaks now.
        """
        subject = self.place.subject("core")
        try:
            await self.say(("core",), *events, expect=Expect(subject, self._core_last))
        except Conflict as conflict:
            await self.heard(conflict.found)
            self.check()
            return False
        return True

    async def register(self, event: Event) -> None:
        """Say that this process is the cell now. A core's registration is a core's word: it fences the former one."""
        if self.index != ledger.CORE:
            await self.say(("cell", self.index), event)
            return
        subject = self.place.subject("core")
        while True:
            try:
                await self.say(("core",), event, expect=Expect(subject, self._core_last))
            except Conflict as conflict:
                await self.heard(conflict.found)
                continue
            return
