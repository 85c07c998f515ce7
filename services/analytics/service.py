"""The warehouse's sink: an independent reader that turns every event of EV and CALL into rows, each once.

It reads both streams from where the rows in the warehouse end, and writes what comes in batches. At most two batches of
a stream are in memory: one being written, one filling, behind which reading waits. Nobody waits for the sink: a
warehouse that does not answer costs a run nothing, and is caught up with afterwards.

As a service it holds the warehouse's folder, and answers whoever asks about it (`services.analytics.desk`).
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bus.blobs import Blobs
from bus.log import BusPort, ReadLog
from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.engine import WarehouseError
from schemas.speakers import Stream
from services.analytics.batches import Batch, Inbox, Reading, batches
from services.analytics.desk import Desk, desk
from services.place import Place
from services.source import Source

TARGET = "GYRE_WAREHOUSE"
"""Environment variable: a folder or a URL. A URL may hold a password, so that it has no place in a configuration."""
FOLDER = "warehouse"
"""Beside the run's log, if nothing else is said."""
PAUSE_SECONDS = (1.0, 30.0)
"""Before trying again: at first, and at most."""
STREAMS: tuple[Stream, Stream] = ("EV", "CALL")
_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class OtherLog(WarehouseError):
    """The warehouse was filled from another log of this name."""


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
    target = os.environ.get(TARGET) or place.config.analytics.url or str(place.folder / FOLDER)
    warehouse, turn = Warehouse(target), asyncio.Lock()
    at = Desk(warehouse, {stream: Inbox() for stream in STREAMS})
    logs: Mapping[Stream, ReadLog] = {"EV": bus.ev, "CALL": bus.calls}
    tasks = [
        asyncio.ensure_future(follow(at, turn, Reading(place.run, stream, logs[stream], bus.blobs, 0)))
        for stream in STREAMS
    ]
    try:
        async with desk(at):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.to_thread(warehouse.close)


async def follow(at: Desk, turn: asyncio.Lock, reading: Reading) -> None:
    """Write one stream and what comes in it, until cancelled. Raises `OtherLog`, `LogDamaged`, `NoStream`.

    Args:
        at: the warehouse, and who wants to know how far it is.
        turn: held by whoever writes.
        reading: the stream; where it begins is found out here.
    """
    warehouse, run, stream = at.warehouse, reading.run, reading.stream

    async def write(batch: Batch) -> None:
        async with turn:
            await asyncio.to_thread(warehouse.insert, batch.rows)
        await at.reached(stream, batch.last)

    async def begin() -> int:
        async with turn:
            return await position(warehouse, run, stream, reading.log)

    after = await _at_last(begin)
    await at.reached(stream, after)
    _LOG.info("%s: goes on after sequence %d of %d", stream, after, await reading.log.head())
    begun = Reading(run, stream, reading.log, reading.blobs, after)
    async with aclosing(batches(begun, at.inboxes[stream])) as coming:
        async for batch in coming:
            await _at_last(partial(write, batch))


async def catch_up(warehouse: Warehouse, source: Source) -> list[Filled]:
    """Write what a log holds now and the warehouse does not. Raises `WarehouseError`."""
    return [
        await _catch_up(warehouse, source.run, "EV", source.ev, source.blobs),
        await _catch_up(warehouse, source.run, "CALL", source.calls, source.blobs),
    ]


async def position(warehouse: Warehouse, run: str, stream: Stream, log: ReadLog) -> int:
    """Where the warehouse ends in a stream, having made sure that its rows are of this log. Raises `OtherLog`.

    A message that nobody can read (now, or when its row was written) says nothing of that: rows have the id of one
    whose envelope is whole, and none of one whose blob was away.
    """
    found = await asyncio.to_thread(warehouse.position, run, stream)
    if found:
        kept = await asyncio.to_thread(warehouse.commit_at, run, stream, found)
        stored = await log.get(found)
        if stored is None or (kept and stored.commit and stored.commit.commit != kept):
            raise OtherLog(
                f"warehouse {warehouse.name}: {stream} sequence {found} of run {run} is of another log; "
                "remove the warehouse, or name another one with --warehouse"
            )
    return found


async def _catch_up(warehouse: Warehouse, run: str, stream: Stream, log: ReadLog, blobs: Blobs) -> Filled:
    before, head = await position(warehouse, run, stream, log), await log.head()
    written = 0
    async with aclosing(batches(Reading(run, stream, log, blobs, before, head), Inbox())) as coming:
        async for batch in coming:
            await asyncio.to_thread(warehouse.insert, batch.rows)
            written += len(batch.rows)
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
