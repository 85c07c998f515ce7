"""One run, followed: its log folded into rows and a timeline as it grows, and what a page shows of it as of a time."""

import asyncio
import logging
import sqlite3
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from bus.errors import BusError
from bus.log import Stored
from gyre.core.timeline import Lane
from gyre.core.timeline_fold import TimelineFold
from gyre.errors import GyreError
from schemas.envelope import Event
from schemas.runs import RunFinished, RunStarted
from services.dashboard import panels_rollout, panels_training
from services.dashboard.cells import cells
from services.dashboard.filling import is_large
from services.dashboard.kept import Kept, begun, rows_of
from services.dashboard.rows import changes
from services.dashboard.store import Ask, Store
from services.source import Source, open_source

KEEP_SECONDS = 0.1
"""How often what was read is shown."""
AGAIN_SECONDS = 2.0
_LOG = logging.getLogger(__name__)
_TROUBLE = (GyreError, BusError, OSError, ValueError, OverflowError)
"""What a log may be read with: an archive may come from anyone, and hold numbers that no date and no row takes."""
Sections = dict[str, bytes]
"""Name -> JSON: each is sent again only when it changed."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a page shows of a run needs besides the rows."""

    head: dict[str, Any]
    at: float
    use: bool
    """Whether the sums of the lanes hold."""
    lanes: tuple[Lane, ...]


class Watch:
    """A run that is followed while this lives; `begin` starts its task."""

    def __init__(self, target: str, runs: Path) -> None:
        """`target`: name of a run in the folder `runs`, or path of an archive."""
        self.target, self.runs = target, runs
        self.store = Store()
        self.version = 0
        """Grows whenever there is more to show."""
        self.viewers = 0
        """Pages that are sent its news."""
        self.cost = 0.0
        """Processor seconds that the latest update took to make."""
        self.source: Source | None = None
        self._changed = asyncio.Condition()
        self._fold = TimelineFold()
        self._zero = self._last = 0
        self._finished = False
        self._sequence = self._head = 0
        self._begin: dict[str, Any] = {}
        self._lanes: tuple[Lane, ...] | None = None
        """Of an archive whose events were not heard."""
        self._counted = True
        """Whether the timeline has heard every event, so that it knows how far the cells were used."""
        self._state, self._problem = "opening", ""
        self._kept: tuple[int, Sections] = (-1, {})
        self._building = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> "asyncio.Task[None]":
        """Follow until the task is cancelled; then the rows are gone."""
        self._task = asyncio.create_task(self.follow())
        self._task.add_done_callback(lambda _: self.store.close())
        return self._task

    async def follow(self) -> None:
        """Read for ever; trouble is said and tried again. Rows that cannot be kept end it: what they lack is lost."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._keep())
                both.create_task(self._read_again())
        except* sqlite3.Error as errors:
            await self._trouble(errors.exceptions[0])

    async def opened(self) -> Source:
        """Its log, once it is open. Raises `GyreError` when that cannot be."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.source is not None or self._problem)
        if self.source is None:
            raise GyreError(self._problem)
        return self.source

    async def newer(self, version: int, patience_seconds: float) -> None:
        """Wait until there is more to show than at a version."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds), self._changed:
                await self._changed.wait_for(lambda: self.version > version)

    async def caught_up(self) -> None:
        """Wait until what the log held when it was opened is shown, or it cannot be opened."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._state not in ("opening", "reading") or self._problem)

    async def sections(self, at: float | None = None) -> Sections:
        """What a page shows: now, or as of seconds since the first event. Raises `GyreError`: its rows are lost."""
        try:
            return await self._sections(at)
        except sqlite3.Error as error:
            if self._task is not None and not self._task.done():
                await self._trouble(error)
                self._task.cancel()
            raise GyreError(self._problem or _line(error)) from error

    async def _sections(self, at: float | None) -> Sections:
        if at is not None:
            return await asyncio.to_thread(sections_of, self.store.ask, self._moment(at))
        async with self._building:
            self.store.keep()
            version = self.version
            if self._kept[0] != version:
                found, self.cost = await asyncio.to_thread(_timed, self.store.ask, self._moment(None))
                self._kept = version, found
            return self._kept[1]

    @property
    def seconds(self) -> float:
        """From the first event to the run's end, or the latest."""
        return (self._last - self._zero) / 1e9

    async def _read_again(self) -> None:
        while True:
            try:
                await self._read()
            except _TROUBLE as error:
                await self._trouble(error)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _read(self) -> None:
        async with open_source(self.target, self.runs) as source:
            try:
                self.source, self._head, self._problem = source, await source.ev.head(), ""
                self._state = "reading" if self._head > self._sequence else self._settled()
                await self._show()
                if self._sequence == 0 and await asyncio.to_thread(is_large, self.target):
                    self._fill(*await rows_of(Path(self.target)))
                async with aclosing(source.ev.read(self._sequence)) as log:
                    async for stored in log:
                        self._take(stored)
                self._state = self._settled()
                await asyncio.Event().wait()  # an archive never grows; its source stays open for whoever looks into it
            finally:
                self.source = None

    async def _trouble(self, error: Exception) -> None:
        line = _line(error)
        if line != self._problem:
            _LOG.warning("%s", line)
        self._problem = line
        await self._tell()

    def _take(self, stored: Stored) -> None:
        self._sequence = stored.sequence
        commit = stored.commit
        if commit is not None:
            self._zero = self._zero or commit.time
            self._last = self._last if self._finished else max(self._last, commit.time)
            for event in commit.events:
                self._hear(stored.sequence, commit.time, event)
        if stored.sequence >= self._head:
            self._state = self._settled()

    def _fill(self, store: Store, kept: Kept) -> None:
        """All of a large archive at once: nothing of its log has to be read for it."""
        self.store.take_over(store)
        self._lanes, self._begin = kept.lanes, kept.begin
        self._zero, self._last, self._counted = kept.zero, kept.latest, False
        self._sequence = kept.head

    def _hear(self, sequence: int, when: int, event: Event) -> None:
        at = (when - self._zero) / 1e9
        self._fold.add(at, event)
        self.store.apply(changes(sequence, at, event))
        self._finished = self._finished or isinstance(event, RunFinished)
        if isinstance(event, RunStarted):
            self._begin = begun(event)

    def _settled(self) -> str:
        return "archive" if self.source and self.source.folder is None else "live"

    async def _keep(self) -> None:
        shown = -1
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            if self._sequence != shown:
                shown = self._sequence
                await self._show()

    async def _show(self) -> None:
        self.store.keep()
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self.version += 1
            self._changed.notify_all()

    def _moment(self, at: float | None) -> Moment:
        head = {
            "run": self.source.run if self.source else Path(self.target).name,
            "state": self._state,
            "problem": self._problem,
            "seconds": self.seconds,
            "at": at,
            "began": _date(self._zero),
            "sequence": self._sequence,
            "head": max(self._head, self._sequence),
            **self._begin,
        }
        return Moment(
            head,
            self.seconds if at is None else min(max(at, 0.0), self.seconds),
            at is None and self._counted,
            self._fold.timeline().lanes if self._lanes is None else self._lanes,
        )


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _date(nanoseconds: int) -> str:
    """Nothing before the first event, and for a time that is in no calendar."""
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="seconds") if nanoseconds else ""
    return ""


def _timed(ask: Ask, moment: Moment) -> tuple[Sections, float]:
    began = time.thread_time()
    return sections_of(ask, moment), time.thread_time() - began


def sections_of(ask: Ask, moment: Moment) -> Sections:
    """All that a page shows at first sight; its size is bounded whatever the run's length."""
    at = moment.at
    ends = {
        name: [when, detail]
        for name, when, detail in ask("SELECT name, at, detail FROM ends WHERE at <= :at", {"at": at})
    }
    found = {
        "head": {**moment.head, "ends": ends},
        "counters": panels_rollout.counters(ask, at),
        "cells": cells(moment.lanes, at, use=moment.use),
        "levels": panels_rollout.levels(ask, at),
        "batch": panels_training.batch(ask, at),
        "steps": panels_training.steps(ask, at),
        "ends": panels_rollout.ends(ask, at),
        "groups": panels_rollout.groups(ask, at),
        "tasks": panels_rollout.tasks(ask, at),
    }
    return {name: orjson.dumps(section) for name, section in found.items()}
