"""Both implementations of the bus behind one door, and commits to say."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bus import streams, subjects
from bus.jetstream import Bus
from bus.log import BusPort, Log, Stored
from bus.memory import MemoryBroker, MemoryBus
from bus.server import NatsServer
from bus.streams import Limits
from schemas.dispatch import ExecutionDispatched
from schemas.envelope import Commit, Event, Producer
from schemas.runs import TimerFired

_NUMBERS = itertools.count(1)


def said(*events: Event, commit: str = "", run: str = "r", service: str = "tester") -> Commit:
    """A commit with an id of its own."""
    number = next(_NUMBERS)
    events = events or (TimerFired(timer=f"t{number}"),)
    return Commit(
        run=run,
        producer=Producer(service=service, instance="one"),
        commit=commit or f"commit-{number}",
        causation=0,
        as_of=0,
        correlation="r",
        time=number,
        events=events,
    )


def dispatched(execution: str) -> Commit:
    """One item of the rollout queue."""
    event = ExecutionDispatched(execution=execution, group="g", task="t", index=0, version=0, seed=1)
    return said(event, service="scheduler")


async def take(log: Log, count: int, after: int = 0, filter: str = "") -> list[Stored]:  # noqa: A002
    """The next so many messages of a log."""
    messages = log.read(after, filter)
    found: list[Stored] = []
    try:
        async with asyncio.timeout(30):
            while len(found) < count:
                found.append(await anext(messages))
    finally:
        await messages.aclose()
    return found


@dataclass
class World:
    """A broker of either kind; `connect` gives a service's bus, `store` writes bytes as a foreign client would."""

    connect: Callable[..., Awaitable[BusPort]]
    store: Callable[[str, bytes], Awaitable[int]]
    raw: Callable[[int], Awaitable[bytes]]
    buses: list[BusPort] = field(default_factory=list)

    async def open(self, limits: Limits | None = None, service: str = "tester") -> BusPort:
        """A connected bus of a provisioned run."""
        bus = await self.connect("r", service, "one", create=True, limits=limits)
        self.buses.append(bus)
        return bus


@pytest.fixture(params=["jetstream", "memory"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    place = _memory(tmp_path) if request.param == "memory" else _jetstream(request.getfixturevalue("server"), tmp_path)
    yield place
    for bus in place.buses:
        await bus.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "store").start()
    yield server
    server.stop()


def _memory(folder: Path) -> World:
    broker = MemoryBroker()

    async def connect(run: str, service: str, instance: str, **more: Any) -> BusPort:
        return await MemoryBus.connect(broker, run, service, instance, folder, **more)

    async def store(subject: str, data: bytes) -> int:
        return broker.store("r", subject, data)

    async def raw(sequence: int) -> bytes:
        return broker.run("r").ev.messages[sequence - 1][1]

    return World(connect, store, raw)


def _jetstream(server: NatsServer, folder: Path) -> World:
    world = World(None, None, None)  # type: ignore[arg-type]

    async def connect(run: str, service: str, instance: str, **more: Any) -> BusPort:
        return await Bus.connect(server.url, run, service, instance, folder, **more)

    async def store(subject: str, data: bytes) -> int:
        return (await world.buses[0]._link.nc.jetstream().publish(subject, data)).seq  # type: ignore[attr-defined]

    async def raw(sequence: int) -> bytes:
        message = await world.buses[0]._link.nc.jetstream().get_msg(streams.ev_stream("r"), sequence)  # type: ignore[attr-defined]
        return message.data or b""

    world.connect, world.store, world.raw = connect, store, raw
    return world


HERE = subjects.ev("r", "tester", "here")
THERE = subjects.ev("r", "tester", "there")
