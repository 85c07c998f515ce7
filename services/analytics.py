"""The warehouse's sink: an independent reader that turns every event of EV and CALL into rows, each once.

It reads both streams from where the rows in the warehouse end, and writes what comes in batches. At most two batches of
a stream are in memory: one being written, one filling, behind which reading waits. Nobody waits for the sink: a
warehouse that does not answer costs a run nothing, and is caught up with afterwards.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from bus.log import BusPort, ReadLog, Stored
from gyre.warehouse.clickhouse import Warehouse, WarehouseError
from gyre.warehouse.rows import lines
from schemas.speakers import Stream
from services.place import Place
from services.source import Source, messages

TARGET = "GYRE_WAREHOUSE"
"""Environment variable: a folder or a URL. A URL may hold a password, so that it has no place in a configuration."""
FOLDER = "warehouse"
"""Beside the run's log, if nothing else is said."""
ROWS, BYTES = 32_000, 16 << 20
"""A batch is full at either. Every message has a row, so it spans fewer sequences than `tables.DOUBTFUL_SEQUENCES`."""
LINGER_SECONDS = 2.0
"""How long a batch that is not full waits for more."""
PAUSE_SECONDS = (1.0, 30.0)
"""Before trying again: at first, and at most."""
_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class OtherLog(WarehouseError):
    """The warehouse was filled from another log of this name."""


@dataclass(slots=True)
class Inbox:
    """Rows on their way; whoever puts some in waits while it is full."""

    rows: list[bytes] = field(default_factory=list)
    size: int = 0
    """Bytes."""
    ended: bool = False
    """Nothing more will come."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def full(self) -> bool:
        """Whether it holds a batch."""
        return len(self.rows) >= ROWS or self.size >= BYTES

    async def put(self, rows: list[bytes]) -> None:
        """All rows of one message: never torn apart."""
        if self.full:
            async with self.changed:
                await self.changed.wait_for(lambda: not self.full)
        first = not self.rows
        self.rows += rows
        self.size += sum(map(len, rows))
        if first or self.full:
            await self._tell()

    async def end(self) -> None:
        """Say that nothing more will come."""
        self.ended = True
        await self._tell()

    async def take(self, linger_seconds: float) -> list[bytes]:
        """A batch, once it is full or its first row has waited so long; [] at the end."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.rows or self.ended)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(linger_seconds):
                    await self.changed.wait_for(lambda: self.full or self.ended)
            taken, self.rows, self.size = self.rows, [], 0
            self.changed.notify_all()
            return taken

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


@dataclass(frozen=True, slots=True)
class Filled:
    """What one stream's part of the warehouse came to."""

    stream: Stream
    before: int
    """Sequence up to which it was there."""
    head: int
    """Sequence up to which it is there now: where the log ended when it was looked at."""
    rows: int
    """Written now."""


async def serve(place: Place, bus: BusPort) -> None:
    """Fill the run's warehouse until cancelled."""
    warehouse = Warehouse(os.environ.get(TARGET) or str(place.folder / FOLDER))
    turn = asyncio.Lock()
    streams: tuple[tuple[Stream, ReadLog], ...] = (("EV", bus.ev), ("CALL", bus.calls))
    tasks = [asyncio.ensure_future(follow(warehouse, turn, place.run, stream, log)) for stream, log in streams]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.to_thread(warehouse.close)


async def follow(warehouse: Warehouse, turn: asyncio.Lock, run: str, stream: Stream, log: ReadLog) -> None:
    """Write one stream and what comes in it, until cancelled. Raises `OtherLog`, `LogDamaged`, `NoStream`.

    Args:
        warehouse: shared by the streams.
        turn: held by whoever uses it.
        run: whose log it is.
        stream: EV or CALL.
        log: the stream.
    """

    async def write(rows: list[bytes]) -> None:
        async with turn:
            await asyncio.to_thread(warehouse.insert, rows)
            if len(rows) < ROWS:
                await asyncio.to_thread(warehouse.release)

    async def begin() -> int:
        async with turn:
            try:
                return await position(warehouse, run, stream, log)
            finally:
                await asyncio.to_thread(warehouse.release)

    after = await _at_last(begin)
    _LOG.info("%s: goes on after sequence %d of %d", stream, after, await log.head())
    async with aclosing(batches(log.read(after), run, stream)) as reading:
        async for rows in reading:
            await _at_last(partial(write, rows))


async def catch_up(warehouse: Warehouse, source: Source) -> list[Filled]:
    """Write what a log holds now and the warehouse does not. Raises `WarehouseError`."""
    return [
        await _catch_up(warehouse, source.run, "EV", source.ev),
        await _catch_up(warehouse, source.run, "CALL", source.calls),
    ]


async def position(warehouse: Warehouse, run: str, stream: Stream, log: ReadLog) -> int:
    """Where the warehouse ends in a stream, having made sure that its rows are of this log. Raises `OtherLog`."""
    found = await asyncio.to_thread(warehouse.position, run, stream)
    if found:
        kept = await asyncio.to_thread(warehouse.commit_at, run, stream, found)
        stored = await log.get(found)
        if stored is None or (stored.commit.commit if stored.commit else "") != kept:
            raise OtherLog(
                f"warehouse {warehouse.name}: {stream} sequence {found} of run {run} is of another log; "
                "remove the warehouse, or name another one with --warehouse"
            )
    return found


async def batches(stored: AsyncGenerator[Stored, None], run: str, stream: Stream) -> AsyncGenerator[list[bytes], None]:
    """Rows of a log in batches, read ahead by one; ends with the log, or with the error that ended it."""
    inbox = Inbox()
    reading = asyncio.ensure_future(_read(stored, run, stream, inbox))
    try:
        while rows := await inbox.take(LINGER_SECONDS):
            yield rows
        await reading
    finally:
        reading.cancel()
        await asyncio.wait([reading])


async def _read(stored: AsyncGenerator[Stored, None], run: str, stream: Stream, inbox: Inbox) -> None:
    try:
        async with aclosing(stored):
            async for each in stored:
                await inbox.put(lines(run, stream, each.sequence, each.subject, each.commit, each.reason))
    finally:
        await inbox.end()


async def _catch_up(warehouse: Warehouse, run: str, stream: Stream, log: ReadLog) -> Filled:
    before, head = await position(warehouse, run, stream, log), await log.head()
    written = 0
    async with aclosing(batches(messages(log, before, head), run, stream)) as reading:
        async for rows in reading:
            await asyncio.to_thread(warehouse.insert, rows)
            written += len(rows)
    return Filled(stream, before, head, written)


async def _at_last(work: Callable[[], Awaitable[T]]) -> T:
    """Try until the warehouse takes it: it may be away, starting, or full."""
    pause, longest = PAUSE_SECONDS
    while True:
        try:
            return await work()
        except OtherLog:
            raise
        except WarehouseError as error:
            _LOG.warning("%s; trying again in %g s", error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
