"""A run whose scheduler is whoever stages it: real server, runner, proxy, harnesses and cells of the nano model.

Executions are dispatched and granted, and cells asked to change their roles, as the caller says. The services are
processes of their own, or tasks of this one where their start-up would cost more than the rest.
"""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.jetstream import Bus
from bus.log import ReadLog, Stored
from gyre.config import Config
from gyre.core.routes import Routes, evolve
from schemas.calls import RecordsSealed
from schemas.dispatch import ExecutionDispatched, ExecutionTerminated, LaunchGranted
from schemas.envelope import Event
from schemas.roles import (
    CellRegistered,
    CellRole,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from services.place import Place, connect, started
from services.setup import open_run

Start = Callable[[Path, int], AbstractAsyncContextManager[None]]
"""Starts the services of a run in a folder, with so many cells, and ends them."""


def config_of(folder: Path, cells: int, places: int, handoff_seconds: float, *options: str) -> Config:
    """Agents that talk long (a warm policy), and that take a single failed call for the end of everything."""
    agent = ("{python}", "-I", "-S", "{reference}", "--retry-for", "0", "--max-turns", "5", "--keep-going", "4")
    return Config.of(
        {
            "run": {"name": "staged", "folder": str(folder)},
            "tasks": {"train": "words:16:train", "heldout": "words:16:heldout"},
            "cells": {
                "count": cells,
                "concurrency": places,
                "handoff_seconds": handoff_seconds,
                "heartbeat_seconds": 2.0,
            },
            "rollout": {"temperature": 1.6, "max_tokens": 120, "context_tokens": 1200},
            "packing": {"row_tokens": 1200},
            "harness": {"command": (*agent, "--max-tokens", "120", *options)},
        }
    )


@asynccontextmanager
async def as_processes(folder: Path, cells: int) -> AsyncIterator[None]:
    """Each service a process."""
    (folder / "logs").mkdir(exist_ok=True)
    wanted = [("cell", str(index)) for index in range(cells)] + [("proxy",), ("runner",)]
    running = []
    for words in wanted:
        with (folder / "logs" / f"{'-'.join(words)}.log").open("ab") as log:
            command = (sys.executable, "-m", "services.runtime", words[0], str(folder), *words[1:])
            pipe = asyncio.subprocess.PIPE  # their leash
            running.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=log, stderr=log))
    try:
        yield
    finally:
        for process in running:
            if process.returncode is None:
                process.terminate()
        await asyncio.gather(*(process.wait() for process in running))


@asynccontextmanager
async def as_tasks(folder: Path, cells: int) -> AsyncIterator[None]:
    """All services in this process, which has imported torch already."""
    from services.cell.service import CellAgent
    from services.replica import load_replica
    from services.runtime import module_of

    async with AsyncExitStack() as stack:

        async def joined(service: str) -> tuple[Place, Bus]:
            place, bus = await connect(service, folder)
            stack.push_async_callback(bus.close)
            return place, bus

        works = []
        for index in range(cells):
            place, bus = await joined("cell")
            works.append(CellAgent(place, bus, index, load_replica(place, index)).run())
        others = [importlib.import_module(module_of(name)).serve(*await joined(name)) for name in ("proxy", "runner")]
        tasks = [asyncio.create_task(work) for work in (*works, *others)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Stage:
    """A run under way, and the scheduler's voice in it."""

    place: Place
    bus: Bus
    cells: int
    tasks: tuple[str, ...]
    registered: dict[int, CellRegistered] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    """Executions granted and not terminated."""
    ended: int = 0
    sealed: int = 0
    switches: int = 0
    settled: dict[str, Event] = field(default_factory=dict)
    """Transition -> how it ended."""
    routes: Routes = field(default_factory=Routes)
    all_begun: bool = False
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def follow(self) -> None:
        """Keep the books, for ever."""
        async with aclosing(self.bus.ev.read(0)) as log:
            async for stored in log:
                for event in stored.commit.events if stored.commit else ():
                    self._note(event)
                async with self.news:
                    self.news.notify_all()

    def _note(self, event: Event) -> None:
        self.routes = evolve(self.routes, event)
        match event:
            case CellRegistered(cell=index):
                self.registered[index] = event
            case ExecutionTerminated(execution=execution):
                self.open.discard(execution)
                self.ended += 1
            case RecordsSealed():
                self.sealed += 1
            case RoleTransitionCompleted(transition=name) | RoleTransitionFailed(transition=name):
                self.settled[name] = event

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for the log to make it so."""
        async with self.news:
            await self.news.wait_for(holds)

    async def run_executions(self, count: int, width: int) -> None:
        """So many executions, so many of them at a time; all are sealed when this returns."""
        for number in range(count):
            name, group = f"x{number}-0", f"g{number}"
            await self.until(lambda: len(self.open) < width)
            self.open.add(name)
            task = self.tasks[number % len(self.tasks)]
            dispatched = ExecutionDispatched(execution=name, group=group, task=task, index=0, version=0, seed=number)
            await self._say(("execution", name, "dispatched"), dispatched, name)
            await self._say(("execution", name, "granted"), LaunchGranted(execution=name), name)
        self.all_begun = True
        await self.until(lambda: self.sealed == count)

    async def switch(self, index: int, to: CellRole) -> None:
        """Ask a cell to change its role, and wait until it has."""
        self.switches += 1
        name, instance = f"t{self.switches}", self.registered[index].instance
        request = RoleTransitionRequested(transition=name, cell=index, instance=instance, to=to)
        await self._say(("cell", str(index)), request, name)
        await self.until(lambda: name in self.settled)
        assert isinstance(self.settled[name], RoleTransitionCompleted), self.settled[name]

    async def bursts(self, rest_seconds: float) -> None:
        """As in a burst, for ever: cells go to training one by one, core first, all but the last, and come back.

        While executions are to come, a cell goes when it serves one: there is something to move.
        """
        while True:
            for index in range(self.cells - 1):
                await self.until(lambda index=index: self.all_begun or self._serves(index))  # type: ignore[misc]
                await self.switch(index, "train")
                await asyncio.sleep(rest_seconds)
            for index in reversed(range(self.cells - 1)):
                await self.switch(index, "rollout")
                await asyncio.sleep(rest_seconds)

    def _serves(self, index: int) -> bool:
        closing = set(self.routes.closing)
        return any(cell == index and name not in closing for name, cell in self.routes.assigned.items())

    async def _say(self, entity: tuple[str, ...], event: Event, correlation: str) -> None:
        commit = self.place.commit((event,), as_of=0, correlation=correlation)
        await self.bus.ev.append(self.place.subject(*entity), commit)


@asynccontextmanager
async def staged(config: Config, start: Start) -> AsyncIterator[Stage]:
    """The run with its services at work, every cell registered."""
    opened = await open_run(config)
    cells = config.cells.count
    try:
        async with start(opened.folder, cells):
            place, bus = await connect("scheduler", opened.folder)
            stage = Stage(place, bus, cells, (await started(bus.ev)).tasks)
            following = asyncio.create_task(stage.follow())
            try:
                await stage.until(lambda: len(stage.registered) == cells)
                yield stage
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                await bus.close()
    finally:
        if opened.server:
            await asyncio.to_thread(opened.server.stop)


async def play(config: Config, start: Start, executions: int, width: int, switches: int, rest: float) -> "Played":
    """A whole piece: executions run while cells switch, at least so many times; what the log says of it."""
    async with staged(config, start) as stage:
        moving = asyncio.create_task(stage.bursts(rest))
        working = asyncio.create_task(stage.run_executions(executions, width))
        try:
            await asyncio.wait((moving, working), return_when=asyncio.FIRST_COMPLETED)
            if moving.done():
                moving.result()
            await working
            await stage.until(lambda: len(stage.settled) >= switches)
        finally:
            moving.cancel()
            working.cancel()
            await asyncio.gather(moving, working, return_exceptions=True)
        _, reader = await connect("reader", stage.place.folder)  # a scheduler may not read what was called
        try:
            return Played(await _all(reader.ev), await _all(reader.calls))
        finally:
            await reader.close()


@dataclass(frozen=True)
class Played:
    """The two logs of a piece, from beginning to end."""

    ev: list[Stored]
    calls: list[Stored]

    def said(self, kind: type[Any]) -> list[Any]:
        """Every event of a kind, in order."""
        stored = [*self.ev, *self.calls]
        return [event for each in stored if each.commit for event in each.commit.events if isinstance(event, kind)]


async def _all(log: ReadLog) -> list[Stored]:
    head, found = await log.head(), []
    async with aclosing(log.read(0)) as messages:
        while head and (not found or found[-1].sequence < head):
            found.append(await anext(messages))
    return found
