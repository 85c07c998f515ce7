"""Which cell a process is, where nobody says."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bus.memory import MemoryBroker, MemoryBus
from gyre.config import Config
from services import slots
from services.cell.service import serve
from services.exits import Hopeless
from services.place import Place
from services.slots import LowerSlot, held, in_slot, take

FAST = 0.01


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "LOOK_SECONDS", FAST)


async def test_each_process_gets_the_lowest_index_that_is_free(tmp_path: Path) -> None:
    async with held(tmp_path, 3) as first, held(tmp_path, 3) as second:
        assert (first, second) == (0, 1)
    async with held(tmp_path, 3) as again:
        assert again == 0


async def test_one_more_than_there_are_cells_stands_by_and_takes_the_place_of_the_one_that_ends(tmp_path: Path) -> None:
    async with AsyncExitStack() as others:
        await others.enter_async_context(held(tmp_path, 1))
        waiting = asyncio.create_task(_index(tmp_path, 1))
        done, _ = await asyncio.wait((waiting,), timeout=5 * FAST)
        assert not done
        await others.aclose()
    assert await waiting == 0


async def test_a_lower_index_that_nobody_comes_back_for_is_filled_by_the_highest_alone(tmp_path: Path) -> None:
    core = take(tmp_path, 3)
    assert core is not None
    middle, highest = (asyncio.create_task(in_slot(tmp_path, 3, _for_ever)) for _ in range(2))
    while slots._free(tmp_path, 2):
        await asyncio.sleep(0)
    core[1].close()
    with pytest.raises(LowerSlot, match="cell 2"):
        await highest
    assert not middle.done()
    async with held(tmp_path, 3) as moved:
        assert moved == 0
    middle.cancel()
    with pytest.raises(asyncio.CancelledError):
        await middle


async def test_an_index_that_is_taken_again_in_time_moves_nobody(tmp_path: Path) -> None:
    core = take(tmp_path, 2)
    assert core is not None
    other = asyncio.create_task(in_slot(tmp_path, 2, _for_ever))
    for _ in range(3):
        await asyncio.sleep(slots.PATIENCE_LOOKS / 4 * FAST)
        core[1].close()
        core = take(tmp_path, 2)
        assert core is not None
        assert core[0] == 0
    assert not other.done()
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    core[1].close()


async def _index(folder: Path, count: int) -> int:
    async with held(folder, count) as index:
        return index


async def _for_ever(_: int) -> None:
    await asyncio.Event().wait()


async def test_a_cell_that_the_run_does_not_have_is_refused_before_it_says_anything(tmp_path: Path) -> None:
    place = Place("cell", "cell-1", "r", tmp_path, "memory", Config.of({"cells": {"count": 2, "standalone": 1}}))
    bus = await MemoryBus.connect(MemoryBroker(), "r", "cell", "cell-1", tmp_path, create=True)
    with pytest.raises(Hopeless, match="--cell 3: the cells of run r are 0 to 2"):
        await serve(place, bus, 3)
    assert await bus.ev.head() == 0
