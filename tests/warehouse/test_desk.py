"""A sink answers for the folder it holds: questions, refusals, and how far it is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus import subjects
from bus.memory import MemoryBroker, MemoryBus
from gyre.config import Config
from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.engine import QueryRefused, WarehouseAway
from gyre.warehouse.live import DESK, Live
from gyre.warehouse.opening import open_warehouse
from services.analytics import batches
from services.analytics import service as analytics
from services.place import Place
from tests.warehouse.told import committed, healthy

RUN = "attended"


@pytest.fixture
async def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryBus]:
    """A log with a sink, none of whose batches is ever written for having waited."""
    monkeypatch.setattr(batches, "LINGER_SECONDS", 1e9)
    left = tmp_path / "gyre-desk-of-one-that-was-killed" / "s"
    left.parent.mkdir()
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "warehouse" / DESK).write_text(json.dumps({"socket": str(left)}))
    bus = await MemoryBus.connect(MemoryBroker(), RUN, "control", "control-1", tmp_path, create=True)
    place = Place("analytics", "analytics-1", RUN, tmp_path, "", Config.of({}))
    sink = asyncio.ensure_future(analytics.serve(place, bus))
    async with asyncio.timeout(30):
        while left.parent.is_dir() or not (tmp_path / "warehouse" / DESK).is_file():
            assert not sink.done(), sink.result()
            await asyncio.sleep(0.01)
    yield bus
    sink.cancel()
    await asyncio.wait([sink])
    await bus.close()
    assert not (tmp_path / "warehouse" / DESK).exists()


async def say(bus: MemoryBus, count: int) -> None:
    events = [event for event in healthy() if not isinstance(event, str) and event.type != "ModelCallRecorded"]
    for number in range(count):
        await bus.ev.append(subjects.ev(RUN, "control", "run"), committed(RUN, number, events[number]))


async def test_who_asks_is_answered_once_the_log_is_there_as_it_was(bus: MemoryBus, tmp_path: Path) -> None:
    live = open_warehouse(str(tmp_path / "warehouse"))
    assert isinstance(live, Live)
    await say(bus, 30)
    assert await asyncio.to_thread(live.reach, {"EV": 30, "CALL": 0}) == {"EV": 30, "CALL": 0}
    found = await asyncio.to_thread(live.query, "SELECT count() AS n FROM facts WHERE run = {run:String}", {"run": RUN})
    assert json.loads(found) == {"n": 30}
    with pytest.raises(QueryRefused, match="Unknown expression identifier `nothing`"):
        await asyncio.to_thread(live.query, "SELECT nothing FROM facts", {})
    with pytest.raises(QueryRefused, match="DROP: ask with SELECT"):
        await asyncio.to_thread(live.query, "DROP TABLE stored", {})
    live.close()


@pytest.mark.usefixtures("bus")
async def test_what_is_no_question_is_refused_and_the_sink_goes_on(tmp_path: Path) -> None:
    place = json.loads((tmp_path / "warehouse" / DESK).read_text())["socket"]
    reader, writer = await asyncio.open_unix_connection(place)
    for line in (b"no JSON\n", b"[]\n", b'{"sql": 3, "parameters": 3, "form": 3}\n', b'{"reach": 7}\n'):
        writer.write(line)
        assert b"error" in await reader.readline()
    writer.write(b"x" * (2 << 20))
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    live = await asyncio.to_thread(Live, tmp_path / "warehouse")
    assert await asyncio.to_thread(live.query, "SELECT 1", {}, "CSV") == b"1\n"
    live.close()


async def test_the_note_of_a_sink_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / DESK).write_text('{"socket": "/nowhere/at/all"}')
    with pytest.raises(WarehouseAway, match="no sink answers for it"):
        Live(tmp_path)
    found = open_warehouse(str(tmp_path))
    assert isinstance(found, Warehouse)
    assert found.query("SELECT count() FROM facts", {}, "CSV") == b"0\n"
    found.close()
