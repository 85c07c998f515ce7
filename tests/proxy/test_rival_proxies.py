"""Two proxies of one run on a real nats-server: of what both want to say, one is heard, and the other takes it over."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bus.jetstream import Bus
from bus.memory import MemoryBus
from bus.server import NatsServer
from gyre.core import tree as trees
from schemas.calls import RouteAssigned, RouteMoved
from schemas.roles import RoleTransitionRequested
from services.proxy.routes import Route, RouteSpeech
from services.proxy.world import World
from services.speaker import Speaker
from tests.proxy.rig import RUN, SECRET, SYSTEM, TASK, Cell, Client, Rig


@dataclass
class Real(Rig):
    """A rig whose bus is a nats-server; a second rig on the same server is a rival."""

    buses: dict[str, Bus] = field(default_factory=dict)

    def bus(self, service: str) -> Any:
        return self.buses[service]


async def opened(server: NatsServer, folder: Path, names: Counter[str]) -> Real:
    folder.mkdir()
    (folder / "proxy.key").write_bytes(SECRET)
    rig = Real(folder)
    for service in ("proxy", "scheduler", "runner", "cell", "test"):
        names[service] += 1
        instance = f"{service}-{names[service]}"
        rig.buses[service] = await Bus.connect(server.url, RUN, service, instance, folder, create=instance == "proxy-1")
    return rig


@pytest.fixture
async def rivals(tmp_path: Path) -> AsyncIterator[tuple[Real, Real]]:
    server = NatsServer(tmp_path / "store").start()
    names: Counter[str] = Counter()
    first, second = [await opened(server, tmp_path / name, names) for name in ("first", "second")]
    second.cells = first.cells
    yield first, second
    for bus in itertools.chain(first.buses.values(), second.buses.values()):
        await bus.close()
    server.stop()


async def asked_until_answered(client: Client, token: str, messages: list[Any]) -> tuple[int, Any]:
    """As any client does, a server error is asked again; how often, and the answer."""
    for tries in range(5):
        status, body = await client.post(token, messages)
        if status == 200:
            return tries, body["choices"][0]["message"]
        assert status == 503
        assert "ask again" in body["error"]["message"]
    raise AssertionError(body)


async def test_a_call_id_is_given_once_though_two_proxies_answer_at_once(rivals: tuple[Real, Real]) -> None:
    one, other = rivals
    cell = await one.register(0, Cell(["here", "there", "more", "again"]))
    cell.tokens = 2
    cell.open.clear()
    token = await one.launch()
    async with one.proxy() as near, other.proxy() as far:
        asking = [asyncio.create_task(asked_until_answered(client, token, [SYSTEM, TASK])) for client in (near, far)]
        async with asyncio.timeout(30):
            while len(cell.asked) < 2:
                await asyncio.sleep(0.005)
        cell.open.set()
        (tries, reply), (others, same) = await asyncio.gather(*asking)
        assert sorted((tries, others)) == [0, 1]
        assert reply == same
        history = [SYSTEM, TASK, reply, {"role": "user", "content": "on"}]
        await asyncio.gather(*(asked_until_answered(client, token, history) for client in (near, far)))
    records = await one.records()
    assert len({record.call for record in records}) == len(records)
    tree = trees.fold("x1", records)
    assert not tree.rejected
    assert {node.parent for node in tree.nodes.values()} == {None, "x1-c0"}


async def test_a_route_moves_once_though_two_proxies_see_its_cell_leave(rivals: tuple[Real, Real]) -> None:
    one, other = rivals
    tokens = [await one.launch(f"x{number}") for number in range(1, 5)]
    await one.register(0, Cell(["one"] * 4))
    async with one.proxy() as near, other.proxy() as far:
        for token in tokens:
            assert (await near.reply(token, [SYSTEM, TASK]))["content"] == "one"
        two, three = [await one.register(number, Cell(["two"] * 100)) for number in (1, 2)]
        left = RoleTransitionRequested(transition="t1", cell=0, instance="i0", to="train")
        await one.say("scheduler", ("cell", "0"), left)
        later = await one.launch("x5")
        for client in (near, far):  # whoever knows it has heard that the cell left
            assert (await asked_until_answered(client, later, [SYSTEM, TASK]))[1]["content"] == "two"
        for token in tokens:
            for client in (near, far):
                more = [SYSTEM, TASK, {"role": "user", "content": client.url}]
                assert (await asked_until_answered(client, token, more))[1]["content"] == "two"
    moved = [event.execution for event in await one.said(RouteMoved)]
    assert sorted(moved) == ["x1", "x2", "x3", "x4"]
    assert len(await one.said(RouteAssigned)) == 5
    served = [{request.cache_key for request in cell.asked} for cell in (two, three)]
    assert served[0].isdisjoint(served[1])


async def test_of_two_routes_that_go_apart_the_second_is_not_said_and_the_first_taken_over(rig: Rig) -> None:
    await rig.launch()
    buses = [MemoryBus(rig.broker, RUN, "proxy", instance, rig.folder) for instance in ("ours", "theirs")]
    worlds = [World(bus, SECRET, 0) for bus in buses]
    following = [asyncio.create_task(world.follow()) for world in worlds]
    await asyncio.gather(*(world.caught_up() for world in worlds))
    ours, theirs = (RouteSpeech(bus, world, Speaker(bus)) for bus, world in zip(buses, worlds, strict=True))
    worlds[0].fold(RouteAssigned(execution="x1", cell=0))
    assert await ours.say(RouteAssigned(execution="x1", cell=0))
    await asyncio.gather(*(world.caught_up() for world in worlds))
    for task in following:  # from here on, each is behind what the other says
        task.cancel()
    for world, cell in zip(worlds, (1, 2), strict=True):
        world.fold(RouteMoved(execution="x1", from_cell=0, to_cell=cell, reason="r"))
    said = await asyncio.gather(
        ours.say(RouteMoved(execution="x1", from_cell=0, to_cell=1, reason="r")),
        theirs.say(RouteMoved(execution="x1", from_cell=0, to_cell=2, reason="r")),
    )
    assert sorted(said) == [False, True]
    (kept,) = await rig.said(RouteMoved)
    assert [world.routes.assigned["x1"] for world in worlds] == [kept.to_cell] * 2


async def test_a_proxys_own_routes_follow_one_another_though_it_does_not_wait(rig: Rig) -> None:
    await rig.launch()
    bus = MemoryBus(rig.broker, RUN, "proxy", "ours", rig.folder)
    world = World(bus, SECRET, 0)
    following = asyncio.create_task(world.follow())
    await world.caught_up()
    routes = RouteSpeech(bus, world, Speaker(bus))
    path: list[Route] = [RouteAssigned(execution="x1", cell=0)]
    path += [RouteMoved(execution="x1", from_cell=cell, to_cell=cell + 1, reason="r") for cell in range(5)]
    said = await asyncio.gather(*map(routes.say, path))
    following.cancel()
    assert said == [True] * 6
    assert [event.to_cell for event in await rig.said(RouteMoved)] == [1, 2, 3, 4, 5]
