"""Caches that follow routes: whoever asks for one waits as long as it takes, and nobody else waits with it."""

import asyncio
from pathlib import Path
from typing import Any

from bus.memory import MemoryBroker, MemoryBus
from schemas.calls import RouteAssigned, RouteMoved
from schemas.dispatch import ExecutionDispatched
from schemas.roles import CellRegistered
from services.proxy.moves import Moves
from services.proxy.routes import RouteSpeech
from services.proxy.world import World
from services.speaker import Speaker


class Near:
    """An engine that has a cache as soon as it is told to fetch it."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    async def take_kv(self, key: str, source: str) -> int:
        self.fetched.append(key)
        return 0

    async def close(self) -> None:
        """Nothing to let go of."""


async def moves(folder: Path, near: Near) -> Moves:
    """Execution x1 was moved from cell 0 to cell 1."""
    bus = await MemoryBus.connect(MemoryBroker(), "r", "proxy", "proxy-1", folder, create=True)
    world = World(bus, b"secret", 0)
    for cell in (0, 1):
        world.fold(CellRegistered(cell=cell, instance=f"c{cell}", url=f"http://c{cell}", capacity=1, version=0))
    world.fold(ExecutionDispatched(execution="x1", group="g", task="t", index=0, version=0, seed=0))
    world.fold(RouteAssigned(execution="x1", cell=1))
    engine: Any = near
    speaker = Speaker(bus)
    return Moves(world, speaker, RouteSpeech(bus, world, speaker), lambda _: engine, 1.0)


async def test_asking_in_the_very_moment_in_which_a_cache_came_stops_nothing(tmp_path: Path) -> None:
    """The transfer ends in its first turn, and whoever asks has the turn before that end is heard of."""
    near = Near()
    moving = await moves(tmp_path, near)
    moving.follow(RouteMoved(execution="x1", from_cell=0, to_cell=1, reason="it left"))
    asking = asyncio.create_task(moving.settle("x1"))
    assert not near.fetched
    await asyncio.wait_for(asking, 10)
    assert near.fetched == ["x1"]
    await moving.close()
