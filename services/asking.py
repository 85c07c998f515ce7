"""Ask SQL of a run or an archive by name: opened where it lies, brought up to date with its log first.

    async with asking("demo", Path("runs")) as asked:
        for row in await asked.rows("SELECT step, score FROM steps WHERE run = {run:String} ORDER BY step"):
            ...
        await asked.refresh()            # what the log has got since then

The views and their columns are in docs/analytics.md and `gyre.warehouse.opening`. A run that goes on is asked through
its sink, if it has one (`gyre serve analytics`); else its warehouse lies in the run's folder and is held while it is
open. An archive is asked through its columnar part, which is made beside it when it is opened for the first time.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.engine import WarehouseError
from gyre.warehouse.live import Live
from gyre.warehouse.opening import Answering, open_warehouse
from services.analytics.archive_columns import columns_of
from services.analytics.service import FOLDER, STREAMS, Filled, catch_up
from services.place import NOTE, way_to
from services.source import Source, SourceNotFound, open_source


@dataclass(frozen=True, slots=True)
class Part:
    """How far one stream is in the warehouse, beside its log."""

    stream: str
    rows: int
    """Written to bring it there; 0 where somebody else writes."""
    reached: int
    """Sequence up to which it is there."""
    head: int
    """Last sequence of the log, looked at afterwards."""

    @property
    def behind(self) -> int:
        """Sequences that the log has and the warehouse does not."""
        return max(0, self.head - self.reached)


@dataclass(slots=True)
class Asked:
    """What is asked, opened."""

    run: str
    warehouse: Answering
    refresh: Callable[[], Awaitable[list[Part]]]
    """Bring it up to date with its log."""
    parts: list[Part] = field(default_factory=list)
    """What was found when it was opened."""

    async def answer(self, sql: str, parameters: Mapping[str, Any] | None = None, form: str = "JSONEachRow") -> bytes:
        """The answer in a format of ClickHouse. Raises `QueryRefused`, `WarehouseAway`."""
        return await asyncio.to_thread(self.warehouse.query, sql, {"run": self.run, **(parameters or {})}, form)

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The answer's rows; whole numbers of 64 bits are numbers."""
        return [json.loads(line) for line in (await self.answer(sql, parameters)).splitlines()]


@asynccontextmanager
async def asking(target: str, runs: Path, warehouse: str | None = None, *, stale: bool = False) -> AsyncIterator[Asked]:
    """Open a run by name or an archive by path.

    Args:
        target: the run's name, or the archive's path.
        runs: the folder that holds the runs.
        warehouse: a folder or a URL, if it is not where it usually is.
        stale: take what is there already; the log is not read.

    Raises:
        SourceNotFound, ArchiveError, WarehouseError, BusError: one line.
    """
    if Path(target).is_file() and warehouse is None:
        async with columns_of(Path(target)) as (found, columns):
            parts = [Part("EV", 0, found.ev, found.ev), Part("CALL", 0, found.call, found.call)]
            yield Asked(found.run, columns, _nothing, parts)
        return
    place = warehouse or str((runs / target / FOLDER).absolute())
    if stale:
        name = await _name(target, runs, warehouse)
        opened = await asyncio.to_thread(_there, place)
        try:
            yield Asked(name, opened, _nothing)
        finally:
            await asyncio.to_thread(opened.close)
        return
    async with open_source(target, runs) as source:
        opened = await asyncio.to_thread(open_warehouse, place)
        try:
            asked = Asked(source.run, opened, lambda: _fresh(opened, source))
            asked.parts = await asked.refresh()
            yield asked
        finally:
            await asyncio.to_thread(opened.close)


async def _nothing() -> list[Part]:
    return []


def _there(place: str) -> Answering:
    """Open a warehouse that there is: one that is made now would answer with nothing."""
    if not place.startswith(("http://", "https://")) and not Path(place).is_dir():
        raise WarehouseError(f"warehouse {place}: there is none yet; ask without --stale")
    return open_warehouse(place)


async def _name(target: str, runs: Path, warehouse: str | None) -> str:
    """Of the run: a warehouse elsewhere may hold runs that are not here."""
    if not Path(target).is_file():
        if warehouse is None and not (runs / target / NOTE).is_file():
            raise SourceNotFound(f"{target}: neither an archive nor a run in {runs}; {way_to(target, runs)}")
        return target
    async with open_source(target, runs) as source:
        return source.run


async def _fresh(opened: Answering, source: Source) -> list[Part]:
    """Bring a warehouse up to date; a live one is waited for."""
    heads = {"EV": await source.ev.head(), "CALL": await source.calls.head()}
    if isinstance(opened, Live):
        reached = await asyncio.to_thread(opened.reach, heads)
        filled = [Filled(stream, 0, reached.get(stream, 0), 0) for stream in STREAMS]
    else:
        assert isinstance(opened, Warehouse)
        filled = await catch_up(opened, source)
    heads = {"EV": await source.ev.head(), "CALL": await source.calls.head()}
    return [Part(each.stream, each.rows, each.head, heads[each.stream]) for each in filled]
