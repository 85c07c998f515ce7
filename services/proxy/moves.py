"""Routes that move off a cell which leaves rollout or is lost, and the caches that follow them (design §6).

A moved execution's cache is fetched by the cell that it moved to, once: at once when none of its requests is in flight
at the old cell, else by the first of them that comes back cut. Whoever asks for the execution waits for it, at most for
the time limit; a cache that cannot be had (other weights, a cell that is gone) is computed again, and nobody notices.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bus.errors import StreamFull
from gyre.core.routes import Cell, moves
from gyre.engines.port import EngineError, Generator
from schemas.calls import KvHandoffCompleted, RouteMoved
from services.proxy.routes import RouteSpeech
from services.proxy.world import World
from services.speaker import Speaker

Connect = Callable[[str], Generator]
_LAST_WORDS_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


class Moves:
    """The cells' engines by URL, and what is on its way between them."""

    def __init__(
        self, world: World, speaker: Speaker, routes: RouteSpeech, connect: Connect, handoff_seconds: float
    ) -> None:
        """`connect` makes a client of an engine; no cache moves where `handoff_seconds` is 0."""
        self._world, self._speaker, self._connect, self._seconds = world, speaker, connect, handoff_seconds
        self._routes = routes
        self._engines: dict[str, Generator] = {}
        self._due: dict[str, tuple[int, Cell]] = {}
        """Execution -> the cell that has its cache."""
        self._taking: dict[str, asyncio.Task[None]] = {}
        self._flying: Counter[str] = Counter()
        """Requests in the making, by execution."""
        self._telling: set[asyncio.Task[Any]] = set()
        self._closed = False

    def engine(self, url: str) -> Generator:
        """The client of the engine at a URL."""
        return self._engines.get(url) or self._engines.setdefault(url, self._connect(url))

    async def run(self) -> None:
        """Move what has to move, until cancelled; the log must have been caught up with."""
        seen: object = None
        while True:
            if self._world.routes.cells is not seen:
                seen = self._world.routes.cells
                self._move()
            await self._world.changed()

    def _move(self) -> None:
        """Whatever points at a cell that serves no more goes on."""
        for event in moves(self._world.routes):
            self._tell(event)
            self.follow(event)

    def follow(self, moved: RouteMoved) -> None:
        """A route moved: its cache is to follow. The one of an execution with requests in flight waits for them."""
        source = self._world.routes.cells.get(moved.from_cell)
        if source is None or not self._seconds:
            return
        self._due.setdefault(moved.execution, (moved.from_cell, source))
        if not self._flying[moved.execution]:
            self._take(moved.execution)

    @contextmanager
    def flying(self, execution: str) -> Iterator[None]:
        """While a request of the execution is in the making."""
        self._flying[execution] += 1
        try:
            yield
        finally:
            self._flying[execution] -= 1
            if not self._flying[execution]:
                del self._flying[execution]
                if not self._closed:
                    self._take(execution)

    async def settle(self, execution: str) -> None:
        """Wait until the execution's cache is where its route points, or cannot be had."""
        while (taking := self._take(execution)) is not None:
            await asyncio.wait((taking,))  # gives way even where it is done, so that `_taken` is heard of it

    async def close(self) -> None:
        """Let go of everything; what the log does not take at once is said by the next proxy's moves."""
        self._closed = True
        tasks = [*self._taking.values(), *self._telling]
        if self._telling:
            await asyncio.wait(self._telling, timeout=_LAST_WORDS_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in self._engines.values():
            await engine.close()

    def _take(self, execution: str) -> "asyncio.Task[None] | None":
        """The transfer that is under way, or that begins now since it is due; None where there is nothing to fetch."""
        if execution in self._taking or execution not in self._due:
            return self._taking.get(execution)
        source_index, source = self._due.pop(execution)
        index = self._world.routes.assigned.get(execution, source_index)
        cell = self._world.routes.cells.get(index)
        if index == source_index or cell is None:
            return None
        task = asyncio.create_task(self._transfer(execution, source_index, source, index, cell))
        self._taking[execution] = task
        task.add_done_callback(lambda _: self._taken(execution))
        return task

    def _taken(self, execution: str) -> None:
        """It may have moved again meanwhile."""
        del self._taking[execution]
        if not self._closed and not self._flying[execution]:
            self._take(execution)

    async def _transfer(self, execution: str, source_index: int, source: Cell, index: int, cell: Cell) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._seconds):
                tokens = await self.engine(cell.url).take_kv(execution, source.url)
        except (EngineError, TimeoutError) as error:
            _LOG.info("execution %s: its cache stays at cell %d: %s", execution, source_index, str(error) or "too slow")
            return
        if tokens:
            seconds = time.monotonic() - began
            event = KvHandoffCompleted(
                execution=execution, from_cell=source_index, to_cell=index, tokens=tokens, seconds=seconds
            )
            self._tell(event)

    def _tell(self, event: RouteMoved | KvHandoffCompleted) -> None:
        """Fold it and say it, without waiting: nobody's answer depends on it."""
        self._world.fold(event)
        task = asyncio.create_task(self._said(event))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _said(self, event: RouteMoved | KvHandoffCompleted) -> None:
        try:
            if isinstance(event, KvHandoffCompleted):
                await self._speaker.say(event.execution, event, self._world.sequence)
            elif not await self._routes.say(event):
                self._move()  # where another proxy had it may be no good either
        except (StreamFull, OSError) as error:
            _LOG.error("execution %s: %s cannot be said: %s", event.execution, event.type, error)
