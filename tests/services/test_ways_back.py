"""Cells, proxy and builder come back from a snapshot and the tail behind it, and hear of the log what they fold."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bus.log import Stored
from bus.memory import MemoryBus
from bus.streams import Limits
from gyre.config import Config
from gyre.core.routes import Routes
from schemas.calls import RecordsSealed, RouteAssigned
from schemas.rewards import TreeBuilt
from schemas.roles import CellLost
from schemas.runs import EvaluationStarted
from services.builder import ADAPTER as WAITING
from services.builder import Waiting, serve_builder
from services.cell.desk import Desk
from services.hearing import snapshot_file
from services.place import Place
from services.proxy.world import ADAPTER as ROUTES
from services.proxy.world import World
from tests.core import facts
from tests.proxy.rig import RUN, SECRET, Rig
from tests.proxy.rig import Cell as Rollout


class Reading(MemoryBus):
    """It notes what is read through it."""

    def __init__(self, rig: Rig, service: str) -> None:
        super().__init__(rig.broker, RUN, service, f"{service}-{rig.starts}", rig.folder)
        self.given: list[Stored] = []
        read = self.ev.read

        async def noted(after: int = 0, *filters: str) -> AsyncIterator[Stored]:
            async for stored in read(after, *filters):
                self.given.append(stored)
                yield stored

        self.ev.read = noted  # type: ignore[method-assign,assignment]


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    """Two cells came, one execution is open, three are sealed; others have said much that is nobody's matter here."""
    made = Rig(tmp_path)
    made.broker.provision(RUN, Limits())
    for index in range(2):
        await made.register(index, Rollout([]))
    for name in ("x1", "x2", "x3", "x4"):
        await made.launch(name)
    for name in ("x2", "x3", "x4"):
        await made.terminate(name)
        await made.say("proxy", ("execution", name), sealed(name))
    await made.say("admission", ("group", "g"), facts.group_ready(0, 2))
    return made


def sealed(name: str) -> RecordsSealed:
    return RecordsSealed(execution=name, last_sequence=0, count=0, digest="0" * 64)


def place(rig: Rig, service: str) -> Place:
    return Place(service, f"{service}-{rig.starts}", RUN, rig.folder, "", Config())


@asynccontextmanager
async def at_work(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    running = asyncio.ensure_future(work())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_cell_comes_back_by_its_snapshot_and_what_was_said_since(rig: Rig) -> None:
    first = Desk(place(rig, "cell"), Reading(rig, "cell"), 0)
    async with at_work(first.read):
        await first.caught_up()
    first.save()
    await rig.say("scheduler", ("cell", "1"), CellLost(cell=1, instance="i1", reason="silent"))
    bus = Reading(rig, "cell")
    again, whole = Desk(place(rig, "cell"), bus, 0), Desk(place(rig, "cell"), Reading(rig, "cell"), 1)
    assert (again.view, again.routes, again.sequence) == (first.view, first.routes, first.sequence)
    async with at_work(again.read), at_work(whole.read):
        await again.caught_up()
        await whole.caught_up()
    assert (again.view, again.routes) == (whole.view, whole.routes)
    assert list(again.routes.cells) == [0]
    assert len(bus.given) == 1


async def test_a_proxy_comes_back_by_its_snapshot_with_its_evaluations_and_never_with_unsaid_routes(rig: Rig) -> None:
    started = EvaluationStarted(evaluation="e0", version=0, episodes=2)
    await rig.say("scheduler", ("evaluation", "e0"), started)

    def world(bus: MemoryBus) -> World:
        return World(bus, SECRET, 0, file=snapshot_file(place(rig, "proxy"), "proxy", ROUTES, 1))

    first = world(Reading(rig, "proxy"))
    async with at_work(first.follow):
        await first.caught_up()
    told: Routes = first.routes
    first.fold(RouteAssigned(execution="x1", cell=1))  # not said yet when it dies
    first.save()
    bus = Reading(rig, "proxy")
    again = world(bus)
    assert again.routes == told
    assert again.is_open("e0-1")
    async with at_work(again.follow):
        await again.caught_up()
    assert bus.given == []


async def test_a_builder_comes_back_by_its_snapshot_to_what_is_not_built_and_builds_it_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    file = snapshot_file(place(rig, "builder"), "builder", WAITING, 1)
    assert file is not None
    await rig.say(
        "builder", ("execution", "x2"), TreeBuilt(execution="x2", digest="0" * 64, nodes=0, leaves=(), body=None)
    )
    head = await rig.bus("test").ev.head()
    waiting: Waiting = {"x3": (head - 4, sealed("x3")), "x4": (head - 2, sealed("x4"))}
    file.save(waiting, head)
    bus = Reading(rig, "builder")
    async with at_work(lambda: serve_builder(bus, file)):
        await rig.until(TreeBuilt, "x3")
        await rig.until(TreeBuilt, "x4")
        await rig.say("proxy", ("execution", "x1"), sealed("x1"))
        await rig.until(TreeBuilt, "x1")
    assert [each.execution for each in await rig.said(TreeBuilt)] == ["x2", "x3", "x4", "x1"]
    assert all(stored.sequence > head for stored in bus.given)
    assert len(caplog.records) == 3  # each is built from other records than were sealed


@pytest.mark.parametrize("service", ["cell", "proxy", "builder"])
async def test_what_is_not_folded_is_not_asked_for(rig: Rig, service: str) -> None:
    bus = Reading(rig, service)
    if service == "builder":
        work: Callable[[], Awaitable[None]] = lambda: serve_builder(bus)  # noqa: E731
    else:
        work = Desk(place(rig, service), bus, 0).read if service == "cell" else World(bus, SECRET, 0).follow
    async with at_work(work):
        await rig.say("admission", ("group", "g1"), facts.group_ready(1, 2))
        last = await rig.say("proxy", ("execution", "x1"), sealed("x1"))
        async with asyncio.timeout(30):
            while not bus.given or bus.given[-1].sequence < last:
                await asyncio.sleep(0.01)
    assert not [stored for stored in bus.given if ".admission." in stored.subject]


def test_under_laptop_durability_nothing_is_remembered(rig: Rig) -> None:
    there = place(rig, "cell")
    config = Config.of({"bus": {"durability": "laptop"}})
    other = Place(there.service, there.instance, there.run, there.folder, "", config)
    assert snapshot_file(other, "cell-0", ROUTES, 1) is None
