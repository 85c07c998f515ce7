"""Where a command reads a run's log from: its server (started for the while, if need be), or an archive."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bus.archive_log import open_archive
from bus.blobs import Blobs
from bus.log import ReadLog, Stored
from gyre.errors import GyreError
from schemas.runs import RunStarted
from services.place import started, way_to
from services.serving import connected


class SourceNotFound(GyreError):
    """Neither a run nor an archive has that name."""


@dataclass(frozen=True, slots=True)
class Source:
    """A run's log, wherever it lies."""

    run: str
    ev: ReadLog
    calls: ReadLog
    blobs: Blobs
    folder: Path | None
    """The run folder; None for an archive."""

    async def started(self) -> RunStarted:
        """What the run was started with. Raises `RunNotFound`."""
        return await started(self.ev)


@asynccontextmanager
async def open_source(target: str, runs: Path) -> AsyncIterator[Source]:
    """Open a run by name, or an archive by path. Raises `SourceNotFound`, `ArchiveError`, `BusError`."""
    path = Path(target)
    if path.is_file():
        with open_archive(path) as archive:
            yield Source(archive.run, archive.ev, archive.calls, archive.blobs, None)
        return
    folder = (runs / target).absolute()
    if not (folder / "run.json").is_file():
        raise SourceNotFound(f"{target}: neither an archive nor a run in {runs}; {way_to(target, runs)}")
    async with connected("reader", folder) as bus:
        yield Source(bus.run, bus.ev, bus.calls, bus.blobs, folder)


async def messages(
    log: ReadLog,
    after: int = 0,
    until: int | None = None,
    filter: str = "",  # noqa: A002 - the word of the Log port
) -> AsyncGenerator[Stored, None]:
    """What the log holds now (or up to `until`) under a filter ("" for all), in order."""
    newest = await log.last(filter) if filter else None
    head = await log.head() if not filter else newest.sequence if newest else 0
    last = head if until is None else min(until, head)
    if after >= last:
        return
    stream = log.read(after, filter)
    try:
        async for stored in stream:
            if stored.sequence > last:
                return
            yield stored
            if stored.sequence == last:
                return
    finally:
        await stream.aclose()
