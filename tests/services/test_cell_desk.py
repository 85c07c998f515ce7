"""What a cell may still say, once the log counts another process as that cell, or none."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bus.memory import MemoryBroker, MemoryBus
from bus.streams import Limits
from gyre.config import Config
from schemas.roles import CellLost, CellRegistered
from schemas.training import JoinWindowClosed
from services.cell.desk import CellLeftBehind, CellReplaced, Desk
from services.place import Place

RUN = "desk"


@asynccontextmanager
async def desk(broker: MemoryBroker, folder: Path, index: int, instance: str) -> AsyncGenerator[Desk]:
    """A cell's process, reading."""
    place = Place("cell", instance, RUN, folder, "", Config())
    made = Desk(place, MemoryBus(broker, RUN, "cell", instance, folder), index)
    reading = asyncio.create_task(made.read())
    try:
        yield made
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker()
    made.provision(RUN, Limits())
    return made


def registered(cell: int, instance: str) -> CellRegistered:
    return CellRegistered(cell=cell, instance=instance, url="http://127.0.0.1:1", capacity=1, version=0)


async def test_a_cell_that_is_taken_for_lost_says_nothing_more(broker: MemoryBroker, tmp_path: Path) -> None:
    async with desk(broker, tmp_path, 1, "cell-a") as cell:
        await cell.register(registered(1, "cell-a"))
        await cell.heard()
        cell.check()
        await cell.say(("cell", 1), CellLost(cell=1, instance="cell-a", reason="silent"))
        await cell.heard()
        with pytest.raises(CellLeftBehind, match="cell-a was taken for lost"):
            cell.check()


async def test_a_former_core_is_refused_from_the_registration_of_the_next_one(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    async with desk(broker, tmp_path, 0, "core-a") as former, desk(broker, tmp_path, 0, "core-b") as new:
        await former.register(registered(0, "core-a"))
        await former.heard()
        await new.register(registered(0, "core-b"))
        with pytest.raises(CellReplaced, match="core-b took its place; core-a stops"):
            await former.say_as_core(JoinWindowClosed(step=1, members=(0,)))
        assert await new.bus.ev.head() == 2
