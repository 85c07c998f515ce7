"""What holds when the log is ahead of a proxy, or another proxy is at work."""

import asyncio

import pytest

from bus.log import Stored
from bus.memory import MemoryBus, MemoryLog
from gyre.proxy.adapters.reference import Reference
from gyre.proxy.errors import Unauthorized
from gyre.proxy.session import Limits, Session
from gyre.proxy.template import Template
from schemas.calls import RecordsSealed, RouteAssigned, RouteMoved
from services.proxy.calls import Calls
from services.proxy.draw import Engines
from services.proxy.moves import Moves
from services.proxy.routes import RouteSpeech
from services.proxy.world import World
from services.speaker import Speaker
from tests.proxy.rig import RUN, SECRET, Rig


class FarLog(MemoryLog):
    """An answer from here takes as long as it takes others to write."""

    async def last(self, filter: str) -> Stored | None:  # noqa: A002
        found = await super().last(filter)
        await asyncio.sleep(0)
        return found


def calls_of(rig: Rig, template: Template, instance: str) -> Calls:
    bus = MemoryBus(rig.broker, RUN, "proxy", instance, rig.folder)
    bus.ev = FarLog(rig.broker, RUN, bus._state.ev, f"ev.{RUN}.", bus.blobs)
    world = World(bus, SECRET, 0)
    speaker = Speaker(bus)
    routes = RouteSpeech(bus, world, speaker)
    engines = Engines(world, Moves(world, speaker, routes, rig._connect, 1.0), instance, ())
    limits = Limits(1.0, 8, 64)
    return Calls(
        bus, world, engines, speaker, routes, lambda name, seed: Session(name, seed, template, limits, Reference())
    )


async def test_of_two_proxies_that_seal_at_once_one_is_heard(rig: Rig, template: Template) -> None:
    await rig.launch()
    await rig.terminate()
    await asyncio.gather(*(calls_of(rig, template, f"p{number}").seal("x1") for number in range(3)))
    assert len(await rig.said(RecordsSealed)) == 1


async def test_a_token_whose_launch_is_in_the_log_but_not_read_yet_is_waited_for(rig: Rig) -> None:
    token = await rig.launch()
    world = World(rig.bus("proxy"), SECRET, 0)
    asking = asyncio.create_task(world.execution(token))
    await asyncio.sleep(0)
    assert not asking.done()
    following = asyncio.create_task(world.follow())
    assert await asking == "x1"
    with pytest.raises(Unauthorized):
        await world.execution("other")
    following.cancel()


async def test_a_proxys_own_routes_are_not_set_back_by_its_log_and_anothers_are_taken_over(rig: Rig) -> None:
    await rig.launch("x1")
    await rig.launch("x2")
    buses = [MemoryBus(rig.broker, RUN, "proxy", instance, rig.folder) for instance in ("ours", "other")]
    ours, other = (World(bus, SECRET, 0) for bus in buses)
    following = [asyncio.create_task(world.follow()) for world in (ours, other)]
    await ours.caught_up()
    assigned = RouteAssigned(execution="x1", cell=0)
    moved = RouteMoved(execution="x1", from_cell=0, to_cell=1, reason="r")
    ours.fold(assigned)
    ours.fold(moved)
    await Speaker(buses[0]).say("x1", assigned, 0)
    await Speaker(buses[1]).say("x2", RouteAssigned(execution="x2", cell=0), 0)
    await asyncio.gather(ours.caught_up(), other.caught_up())
    assert ours.routes.assigned == {"x1": 1, "x2": 0}
    assert other.routes.assigned == {"x1": 0}
    for task in following:
        task.cancel()
