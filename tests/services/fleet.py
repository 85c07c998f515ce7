"""A batch's cells as real processes over a real server; the test is scheduler and admission, a real packer packs."""

import asyncio
import multiprocessing
import os
import random
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from bus import subjects
from bus.jetstream import Bus
from bus.log import Expect, Stored
from bus.server import NatsServer
from bus.streams import Limits
from gyre.config import Config
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.torch import file_state
from schemas.envelope import Event
from schemas.roles import CellLost, CellRegistered
from schemas.runs import RunStarted
from schemas.training import CellJoined
from services import packer
from services.place import Note, Place, connect
from services.source import Source
from tests.core.facts import group_ready
from tests.services import training_cell
from tests.trainers import batch
from tests.trainers.trained_world import admitted

GROUPS = 10
RUN = "fleet"
CONFIG = {
    "run": {"steps": 99},
    "schedule": {"groups": GROUPS, "executions": 2, "mu": 99, "phi": 0.0},
    "cells": {"count": 3},
    "rollout": {"max_tokens": 1, "context_tokens": 12},
    "packing": {"row_tokens": 12, "micro_step_tokens": 12},
    "bus": {"durability": "laptop"},
}


class Fleet:
    """One run of such cells."""

    def __init__(self, folder: Path, bus: Bus, log: AsyncGenerator[Stored, None]) -> None:
        self.folder, self._bus, self._log = folder, bus, log
        self._context = multiprocessing.get_context("forkserver")
        slow = "transformers.models.llama.modeling_llama"
        self._context.set_forkserver_preload(["tests.services.training_cell", slow])
        self._chance = random.Random(3)
        self._groups = 0
        self.cells: dict[int, BaseProcess] = {}
        self.instances: dict[int, str] = {}
        """The latest that registered, by cell."""

    @property
    def source(self) -> Source:
        """Its log, for who reads it."""
        return Source(RUN, self._bus.ev, self._bus.calls, self._bus.blobs, self.folder)

    async def heard(self, holds: Callable[[Event], bool]) -> Event:
        """The next event that holds."""
        async with asyncio.timeout(60):
            async for stored in self._log:
                found = None
                for event in stored.commit.events if stored.commit else ():
                    if isinstance(event, CellRegistered):
                        self.instances[event.cell] = event.instance
                    found = event if found is None and holds(event) else found
                if found is not None:
                    return found
        raise AssertionError("the log ended")

    async def start(self, cell: int, failpoint: str = "", stages: int = 1) -> None:
        """A process becomes this cell, whose trainer has so many stages."""
        given = (self.folder, cell, failpoint, stages)
        process = self._context.Process(target=training_cell.main, args=given, daemon=True)
        self.cells[cell] = process
        await asyncio.to_thread(process.start)

    async def joined(self, cell: int) -> None:
        """A cell joins the step."""
        await self.heard(lambda event: isinstance(event, CellJoined) and event.cell == cell)

    async def kill(self, cell: int) -> None:
        """SIGKILL, and the scheduler's word that it is lost."""
        self.signal(cell, signal.SIGKILL)
        await self.ended(cell)
        await self.lose(cell)

    async def lose(self, cell: int) -> None:
        """The scheduler takes it for lost, whether it lives or not."""
        event = CellLost(cell=cell, instance=self.instances[cell], reason="no heartbeat")
        await self._say("scheduler", ("cell", cell), event)

    async def ended(self, cell: int) -> int | None:
        """Its exit code."""
        await asyncio.to_thread(self.cells[cell].join, 60)
        return self.cells[cell].exitcode

    def signal(self, cell: int, number: signal.Signals) -> None:
        """Send it a signal."""
        pid = self.cells[cell].pid
        assert pid is not None
        os.kill(pid, number)

    async def admit(self, count: int) -> None:
        """The next groups are ready, one execution of each to be encouraged and one to be discouraged."""
        for index in range(self._groups, self._groups + count):
            await self._say("admission", ("group", f"g{index}"), group_ready(index, 2))
            for place, advantage in enumerate((1.0, -1.0)):
                event = admitted(self._chance, index, place, advantage)
                await self._say("admission", ("execution", event.execution), event)
        self._groups += count

    async def _say(self, service: str, entity: tuple[str | int, ...], event: Event) -> None:
        place = Place(service, "told", RUN, self.folder, "", Config())
        await self._bus.ev.append(place.subject(*entity), place.commit((event,), as_of=0, correlation=RUN))


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    """A run that is begun, its packer at work, without cells yet."""
    config = Config.of(CONFIG)
    weights = save_tensors(file_state(batch.tiny_model())[0], folder, "weights")
    started = RunStarted(
        config=config.table(),
        config_digest=config.digest(),
        seed=0,
        code_version="0",
        weights=weights,
        tasks=("t",),
        heldout=("h",),
    )
    server = await asyncio.to_thread(NatsServer(folder / "nats", "laptop").start)
    try:
        Note(RUN, server.url, "laptop").write(folder)
        limits = Limits(ack_wait_seconds=1.0)  # what a killed cell had pulled and not claimed comes back soon
        how = {"create": True, "sync": "laptop", "limits": limits}
        bus = await Bus.connect(server.url, RUN, "control", "control", folder, **how)  # type: ignore[arg-type]
        place = Place("control", "control", RUN, folder, server.url, config)
        commit = place.commit((started,), as_of=0, correlation=RUN)
        await bus.ev.append(place.subject("run"), commit, Expect(subjects.everything(RUN), 0))
        async with _packing(folder), aclosing(bus.ev.read(0)) as log:
            made = Fleet(folder, bus, log)
            try:
                yield made
            finally:
                for each in made.cells.values():
                    each.kill()
        await bus.close()
    finally:
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def _packing(folder: Path) -> AsyncIterator[None]:
    place, bus = await connect("packer", folder)
    serving = asyncio.create_task(packer.serve(place, bus))
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await bus.close()
