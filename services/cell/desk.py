"""What one cell hears and says: the log folded into its view, and its own words, each on the right condition."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import TypeAdapter

from bus.consumers import Projection
from bus.errors import Conflict, Unavailable
from bus.log import BusPort, Expect, Stored
from gyre.config import Config
from gyre.core import cell, ledger, routes
from gyre.core.cell import Held, View
from gyre.core.routes import Routes
from gyre.errors import GyreError
from schemas.envelope import Event
from services import failpoints
from services.hearing import SAVE_SECONDS, filters_of, last_of, snapshot_file
from services.place import Place

log = logging.getLogger("gyre")


class CellReplaced(GyreError):
    """Another process is this cell now; this one must not say anything more."""


class CellLeftBehind(GyreError):
    """The log says that this process is lost: it counts no more, and has to come back as another instance."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a cell makes of EV."""

    view: View
    routes: Routes = Routes()
    """Who is served where, as the log has it by now."""


ADAPTER = TypeAdapter(Known)
FOLDS = cell.FOLDS | routes.FOLDS


def evolve(known: Known, sequence: int, event: Event) -> Known:
    """Fold one event."""
    return Known(cell.evolve(known.view, sequence, event), routes.evolve(known.routes, event))


def nothing_known(config: Config) -> Known:
    """Before the log's first word."""
    trainers = config.cells.trainers
    return Known(View(steps=config.run.steps, burst=config.schedule.mu, trainers=trainers), Routes(trainers=trainers))


class Desk:
    """The log as this cell has it, and its memory as the log should have it."""

    def __init__(self, place: Place, bus: BusPort, index: int) -> None:
        """Nothing was heard since the last snapshot, or said."""
        self.place, self.bus, self.index = place, bus, index
        file = snapshot_file(place, f"cell-{index}", ADAPTER, 3)
        self._known = Projection(nothing_known(place.config), evolve, file, seconds=SAVE_SECONDS, whole=False)
        self._filters = filters_of(place.run, FOLDS, place.service)
        self.held = Held(index, place.instance, engine_version=-1, trainer_version=-1)
        self._said = 0
        self._core_last = 0
        self._news = asyncio.Condition()

    @property
    def view(self) -> View:
        """As folded by now."""
        return self._known.state.view

    @property
    def routes(self) -> Routes:
        """As folded by now."""
        return self._known.state.routes

    def core_url(self) -> str:
        """Where the core was reached when it last registered; "" before it ever did."""
        core = self.view.engines.get(ledger.CORE)
        return core.url if core else ""

    @property
    def sequence(self) -> int:
        """The last one folded."""
        return self._known.sequence

    async def read(self) -> None:
        """Fold for ever."""
        core = await self.bus.ev.last(self.place.subject("core"))
        if core is not None and core.sequence <= self.sequence:
            self._core_last = core.sequence
        stream = self.bus.ev.read(self.sequence, *self._filters)
        async with contextlib.aclosing(stream):
            async for stored in stream:
                self._fold(stored)
                async with self._news:
                    self._news.notify_all()

    def _fold(self, stored: Stored) -> None:
        self._known.feed(stored)
        if stored.subject == self.place.subject("core"):
            self._core_last = stored.sequence

    def save(self) -> None:
        """Remember what is known, for the cell's next process."""
        self._known.save()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for the log to say so."""
        async with self._news:
            await self._news.wait_for(holds)

    async def heard(self, sequence: int = 0) -> None:
        """Wait until this sequence and all that was said here is folded."""
        await self.until(lambda: self.sequence >= max(sequence, self._said))

    async def caught_up(self) -> None:
        """Wait until all that concerns a cell and that the log holds by now is folded."""
        await self.heard(await last_of(self.bus.ev, self._filters))

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
            CellReplaced: another core speaks now; its words are no condition that would hold this one back.
            CellLeftBehind: this one was taken for lost.
        """
        self.check()
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
