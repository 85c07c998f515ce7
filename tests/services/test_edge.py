"""The edge of a service process: what it answers over HTTP and NATS, and that it never takes its service down."""

import asyncio
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import nats
import pytest
from nats.aio.client import Client
from prometheus_client.parser import text_string_to_metric_families

from bus import credentials, subjects
from bus.errors import Unavailable
from bus.jetstream import Bus
from bus.log import BusPort
from bus.memory import MemoryBroker, MemoryBus
from bus.server import NatsServer
from gyre.config import Config
from schemas.dispatch import ExecutionDispatched
from schemas.refs import WeightsRef
from schemas.runs import RunStarted, TimerFired
from services.address import LISTEN
from services.edge import READY_LAG, Positions, application, beside, serve_edge, status_of
from services.lag import FollowedBus, Position
from services.meters import Meters
from services.place import Note, Place
from tests.trainers.far import has_ipv6


def place_in(folder: Path, url: str = "memory", service: str = "builder", instance: str = "builder-1") -> Place:
    return Place(service, instance, "r", folder, url, Config())


async def memory_bus(folder: Path) -> MemoryBus:
    return await MemoryBus.connect(MemoryBroker(), "r", "builder", "builder-1", folder, create=True)


async def say(bus: BusPort, folder: Path, *services: str) -> None:
    """One commit of each of these services, in order."""
    for service in services:
        place = place_in(folder, service=service)
        commit = place.commit((TimerFired(timer="t"),), as_of=0, correlation="r")
        await bus.ev.append(place.subject("timer"), commit)


def at(sequence: int, head: int) -> Positions:
    async def positions() -> dict[str, Position]:
        return {"EV": Position(sequence, head)}

    return positions


async def unreachable() -> dict[str, Position]:
    raise Unavailable("url memory: no answer")


async def noted(path: Path) -> dict[str, Any]:
    """What an edge wrote about itself, once it did."""
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.01)
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def numbers(text: str) -> dict[tuple[str, str], float]:
    """(name, the one label besides run, service and instance) -> value, of an exposition."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            more = [value for label, value in sample.labels.items() if label not in ("run", "service", "instance")]
            found[sample.name, ",".join(more)] = sample.value
    return found


@asynccontextmanager
async def serving(place: Place, positions: Positions, cell: int | None = None) -> AsyncIterator[None]:
    task = asyncio.create_task(serve_edge(place, positions, cell))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    server = NatsServer(tmp_path_factory.mktemp("nats"), "laptop").start()
    yield server
    server.stop()


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    connected = await nats.connect(server.url)
    yield connected
    await connected.close()


async def test_a_reader_is_behind_by_what_it_has_not_asked_past(tmp_path: Path) -> None:
    bus = FollowedBus(await memory_bus(tmp_path))
    await say(bus, tmp_path, "scheduler", "scheduler", "scheduler")
    assert await bus.position() == Position(0, 3)
    stream = bus.ev.read(0)
    await anext(stream)
    await anext(stream)  # the first one is dealt with now, the second one is in hand
    assert (await bus.position()).lag == 2
    await anext(stream)
    assert (await bus.position()).lag == 1
    await stream.aclose()


async def test_a_filtered_reader_waits_for_its_own_subjects_only(tmp_path: Path) -> None:
    bus = FollowedBus(await memory_bus(tmp_path))
    await say(bus, tmp_path, "scheduler", "scheduler", "packer", "packer")
    stream = bus.ev.read(0, "ev.r.scheduler.>")
    await anext(stream)
    assert await bus.position() == Position(2, 4)
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert await bus.position() == Position(4, 4)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    await stream.aclose()


async def test_the_slowest_of_several_readers_counts_and_a_closed_one_does_not(tmp_path: Path) -> None:
    bus = FollowedBus(await memory_bus(tmp_path))
    await say(bus, tmp_path, "scheduler", "scheduler")
    slow, late = bus.ev.read(0), bus.ev.read(1)
    await anext(slow)
    await anext(late)
    assert (await bus.position()).lag == 2
    await slow.aclose()
    assert (await bus.position()).lag == 1
    await late.aclose()


async def test_who_only_works_through_a_queue_is_not_behind(tmp_path: Path) -> None:
    bus = FollowedBus(await memory_bus(tmp_path))
    await say(bus, tmp_path, "scheduler")
    bus.queue("eval")
    assert await bus.position() == Position(1, 1)


@pytest.mark.parametrize(("lag", "ready"), [(0, True), (READY_LAG - 1, True), (READY_LAG, False)])
async def test_ready_means_a_lag_below_the_bound(tmp_path: Path, lag: int, ready: bool) -> None:
    status = await status_of(place_in(tmp_path), at(5, 5 + lag))
    assert (status.ready, status.lag, status.sequence) == (ready, lag, 5)


async def test_a_log_that_does_not_answer_is_not_ready_and_no_error(tmp_path: Path) -> None:
    status = await status_of(place_in(tmp_path), unreachable)
    assert (status.ready, status.lag, status.sequence) == (False, None, None)


@pytest.mark.parametrize("listen", ["127.0.0.1", *(["::1"] if has_ipv6() else [])])
async def test_http_answers_with_the_status_where_the_run_folder_says(
    tmp_path: Path, server: NatsServer, monkeypatch: pytest.MonkeyPatch, listen: str
) -> None:
    monkeypatch.setenv(LISTEN, listen)
    place = place_in(tmp_path, server.url, "cell", "cell-a")
    note = tmp_path / "edge/cell-1.json"
    async with serving(place, at(7, 7 + READY_LAG), cell=1), aiohttp.ClientSession() as http:
        found = await noted(note)
        assert found["instance"] == "cell-a"
        async with http.get(f"{found['url']}/health") as answer:
            assert answer.status == 200
            assert (await answer.json())["sequence"] == 7
        async with http.get(f"{found['url']}/ready") as answer:
            assert answer.status == 503
            assert (await answer.json())["lag"] == READY_LAG
        async with http.get(f"{found['url']}/metrics") as answer:
            counted = numbers(await answer.text())
            assert counted["gyre_replay_lag", "EV"] == READY_LAG
            assert counted["gyre_ready", ""] == 0
        async with http.get(f"{found['url']}/asyncapi.json") as answer:
            assert "cmd.r.cell.status" in await answer.text()
    assert not note.exists()


async def test_the_schedulers_edge_tells_the_run_in_numbers(tmp_path: Path, server: NatsServer) -> None:
    bus = await memory_bus(tmp_path)
    place = place_in(tmp_path, server.url, "scheduler", "scheduler-1")
    event = ExecutionDispatched(execution="x", group="g", task="t", index=0, version=0, seed=1)
    async with beside(place, bus, None) as followed, aiohttp.ClientSession() as http, asyncio.timeout(60):
        commit = place.commit((event,), as_of=0, correlation="x")
        await followed.ev.append(place.subject("execution", "x", "dispatched"), commit)
        url = (await noted(tmp_path / "edge/scheduler.json"))["url"]
        counted: dict[tuple[str, str], float] = {}
        while counted.get(("gyre_run_waterlevel", "")) != 1:
            async with http.get(f"{url}/metrics") as answer:
                counted = numbers(await answer.text())
    assert counted["gyre_queue_length", "rollout"] == 1
    assert counted["gyre_events_total", "ExecutionDispatched"] == 1


async def test_every_process_of_a_service_answers_the_command(
    tmp_path: Path, server: NatsServer, client: Client
) -> None:
    one = place_in(tmp_path, server.url, "cell", "cell-a")
    other = place_in(tmp_path, server.url, "cell", "cell-b")
    async with serving(one, at(3, 4), cell=0), serving(other, at(4, 4), cell=1):
        await asyncio.gather(noted(tmp_path / "edge/cell-0.json"), noted(tmp_path / "edge/cell-1.json"))
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        said: dict[str, tuple[int, int]] = {}
        async with asyncio.timeout(60):
            while len(said) < 2:  # a question that comes before an edge listens is lost
                await client.publish(subjects.command("r", "cell", "status"), reply=inbox)
                with suppress(nats.errors.TimeoutError):
                    while len(said) < 2:
                        found = json.loads((await answers.next_msg(1)).data)
                        said[found["instance"]] = found["sequence"], found["lag"]
    assert said == {"cell-a": (3, 1), "cell-b": (4, 0)}


async def answered(folder: Path, url: str) -> object:
    """Who answers whoever may ask, once somebody does."""
    password = credentials.password(folder, "control")
    asking = await nats.connect(url, user="control", password=password, inbox_prefix="_INBOX.control")
    try:
        async with asyncio.timeout(60):
            while True:
                with suppress(nats.errors.NoRespondersError):
                    answer = await asking.request(subjects.command("r", "builder", "status"), timeout=60)
                    return json.loads(answer.data)["instance"]
    finally:
        await asking.close()


async def test_a_process_whose_password_was_renewed_answers_the_command_again(tmp_path: Path) -> None:
    own = credentials.server_of(tmp_path, "r", "laptop").start()
    try:
        place = place_in(tmp_path, own.url)
        broker, _ = application(place, at(0, 0), Meters(place))
        async with broker:
            await broker.start()
            assert await answered(tmp_path, own.url) == "builder-1"
            credentials.forget(tmp_path)
            own.stop()
            own.start()
            assert await answered(tmp_path, own.url) == "builder-1"
    finally:
        own.stop()


async def test_an_edge_subscribes_to_no_stream_and_changes_none(
    tmp_path: Path, server: NatsServer, client: Client
) -> None:
    before = [info.config for info in await client.jetstream().streams_info()]
    async with serving(place_in(tmp_path, server.url), at(0, 0)):
        await noted(tmp_path / "edge/builder.json")
    assert [info.config for info in await client.jetstream().streams_info()] == before


async def test_an_edge_that_cannot_be_noted_leaves_its_service_at_work(
    tmp_path: Path, server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "edge").write_text("in the way")
    bus = await memory_bus(tmp_path)
    with caplog.at_level(logging.WARNING, "gyre"):
        async with beside(place_in(tmp_path, server.url), bus, None) as followed, asyncio.timeout(60):
            await say(followed, tmp_path, "scheduler")
            assert (await anext(followed.ev.read(0))).sequence == 1
            while not caplog.records:
                await asyncio.sleep(0.01)
    assert "trying again" in caplog.text


async def test_stopping_the_service_stops_its_edge(tmp_path: Path, server: NatsServer) -> None:
    bus = await memory_bus(tmp_path)
    async with beside(place_in(tmp_path, server.url), bus, None):
        port = int((await noted(tmp_path / "edge/builder.json"))["url"].rpartition(":")[2])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_app_listens_under_an_inbox_prefix_of_its_service(tmp_path: Path) -> None:
    place = place_in(tmp_path, "nats://127.0.0.1:1")
    broker, _ = application(place, at(0, 0), Meters(place))
    assert broker._connection_kwargs["inbox_prefix"] == "_INBOX.builder"


async def test_a_served_process_has_an_edge_if_asked_and_still_stops_cleanly(
    tmp_path: Path, server: NatsServer
) -> None:
    bus = await Bus.connect(server.url, "r", "control", "control-1", tmp_path, create=True, sync="laptop")
    started = RunStarted(
        config=Config().table(),
        config_digest=Config().digest(),
        seed=0,
        code_version="0",
        weights=WeightsRef(digest="0" * 64, size=1, address="weights/0"),
        tasks=("t",),
        heldout=(),
    )
    place = place_in(tmp_path, server.url, "control", "control-1")
    await bus.ev.append(place.subject("run"), place.commit((started,), as_of=0, correlation="r"))
    await bus.close()
    Note("r", server.url, "laptop").write(tmp_path)
    command = (sys.executable, "-m", "services.cli", "serve", "builder", "--folder", str(tmp_path), "--edge")
    process = await asyncio.create_subprocess_exec(*command)
    try:
        url = (await noted(tmp_path / "edge/builder.json"))["url"]
        async with aiohttp.ClientSession() as http, asyncio.timeout(60):
            while True:
                async with http.get(f"{url}/ready") as answer:
                    if (await answer.json())["sequence"] == 1:
                        assert answer.status == 200
                        break
    finally:
        process.terminate()
    assert await process.wait() == 0
