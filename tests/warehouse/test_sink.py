"""The sink: every event once, whoever is killed and whatever is away."""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus import subjects
from bus.blobs import Blobs
from bus.codec import decode, stub
from bus.log import Raw, Stored
from bus.memory import MemoryBroker, MemoryBus
from gyre.config import Config
from gyre.warehouse.clickhouse import Warehouse
from schemas.envelope import COMMIT
from schemas.runs import TimerFired
from services.analytics import batches as analytics_batches
from services.analytics import service as analytics
from services.analytics.batches import ROWS, Inbox
from services.analytics.service import OtherLog, catch_up
from services.place import Place
from services.source import Source
from tests.warehouse.sink_log import BLOBS, RUN, ToldLog, source
from tests.warehouse.stand_in import free_port, stand_in
from tests.warehouse.told import call, committed, healthy

ROOT = Path(__file__).parents[2]
COMMITS = 1500


def asked(warehouse: Warehouse, sql: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in warehouse.query(sql, {}, "JSONEachRow").splitlines()]


async def folded(commits: int) -> tuple[Counter[str], dict[str, float]]:
    """Rows by type and some sums, straight from the log."""
    counts: Counter[str] = Counter()
    sums = {"sequences": 0.0, "seconds": 0.0, "tokens": 0.0}
    logs = source(commits)
    for log in (logs.ev, logs.calls):
        async for stored in log.read(0):
            events = stored.commit.events if stored.commit else ()
            counts.update(event.type for event in events) if events else counts.update(["Malformed"])
            sums["sequences"] += stored.sequence * max(1, len(events))
            sums["seconds"] += sum(getattr(event, "seconds", 0.0) for event in events)
            sums["tokens"] += sum(len(getattr(event, "output_ids", b"")) // 4 for event in events)
    return counts, sums


def kill_after(batches: int, folder: Path, delay: float) -> bool:
    """Start the sink, kill it while it writes the n-th batch; whether it was done before."""
    command = [sys.executable, "-m", "tests.warehouse.sink_log", str(folder), str(COMMITS), "150"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        told = [process.stdout.readline() for _ in range(batches)]
        time.sleep(delay)  # somewhere within the write
        return "done\n" in told
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_killed_while_it_writes_it_leaves_every_event_once(tmp_path: Path) -> None:
    chance = random.Random(5)
    done = [kill_after(4, tmp_path, chance.random() * 0.02) for _ in range(3)]
    assert done == [False] * 3
    warehouse = Warehouse(str(tmp_path))
    kept = [warehouse.position(RUN, stream) for stream in ("EV", "CALL")]
    assert 0 < kept[0] < COMMITS, "it was killed on its way, and its work was not lost"
    assert [each.head for each in await catch_up(warehouse, source(COMMITS))] == [COMMITS, COMMITS // 2]
    counts, sums = await folded(COMMITS)
    rows = asked(warehouse, "SELECT type, count() AS n FROM events GROUP BY type")
    assert {row["type"]: row["n"] for row in rows} == counts
    found = asked(
        warehouse,
        "SELECT sum(sequence) AS sequences, sum(body.seconds::Float64) AS seconds, "
        "sum(body.output_tokens::UInt64) AS tokens FROM events",
    )
    assert found == [pytest.approx(sums)]
    again = await catch_up(warehouse, source(COMMITS))
    assert [each.rows for each in again] == [0, 0]
    warehouse.close()


async def test_what_was_added_to_a_log_is_all_that_is_written(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    await catch_up(warehouse, source(20))
    ev, calls = await catch_up(warehouse, source(30))
    assert (ev.before, ev.head, calls.before, calls.head) == (20, 30, 10, 15)
    assert calls.rows == 5
    warehouse.close()


async def test_a_warehouse_of_another_log_is_refused(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    await catch_up(warehouse, source(30))
    with pytest.raises(OtherLog, match="EV sequence 30 of run many is of another log; remove the warehouse"):
        await catch_up(warehouse, source(20))
    warehouse.close()


class Ended(ToldLog):
    """Ends with this."""

    def __init__(self, commits: int, last: bytes, blobs: Blobs = BLOBS) -> None:
        super().__init__("EV", commits)
        self._last, self._blobs = last, blobs

    def raw(self, sequence: int) -> Raw:
        return (sequence, f"ev.{RUN}.control.x", self._last) if sequence == self.commits else super().raw(sequence)

    def stored(self, sequence: int) -> Stored:
        return decode(*self.raw(sequence), self._blobs)


async def test_a_last_message_that_nobody_can_read_belongs_to_this_log(tmp_path: Path) -> None:
    """Its row has its id all the same: what an event holds is not looked at where rows are made."""
    body = json.loads(COMMIT.dump_json(committed(RUN, 1.0, TimerFired(timer="a"))))
    body["events"][0]["timer"] = 5
    log, calls = Ended(20, json.dumps(body).encode()), ToldLog("CALL", 0)
    stored = await log.get(20)
    assert stored is not None
    assert stored.commit is None
    warehouse = Warehouse(str(tmp_path))
    for written in (20, 0):
        ev, _ = await catch_up(warehouse, Source(RUN, log, calls, BLOBS, None))
        assert (ev.head, ev.rows > 0) == (20, written > 0)
    assert warehouse.commit_at(RUN, "EV", 20) == body["commit"]
    warehouse.close()


async def test_a_last_message_whose_body_was_away_for_a_while_belongs_to_this_log(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", durable=False)
    commit = committed(RUN, 1.0, TimerFired(timer="a"))
    data = stub(commit.commit, COMMIT.dump_json(commit), blobs)
    (blob,) = (path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
    log, calls = Ended(20, data, blobs), ToldLog("CALL", 0)
    body = blob.read_bytes()
    for turns in ((True, False), (False, True)):
        warehouse = Warehouse(str(tmp_path / f"warehouse-{turns[0]}"))
        for there in turns:
            blob.write_bytes(body) if there else blob.unlink(missing_ok=True)
            ev, _ = await catch_up(warehouse, Source(RUN, log, calls, blobs, None))
            assert ev.head == 20
        warehouse.close()


async def test_a_batch_in_memory_holds_reading_back() -> None:
    inbox = Inbox()
    await inbox.put([b"row"] * (ROWS - 1), 9)
    await inbox.put([b"row"] * 2, 10)
    waiting = asyncio.ensure_future(inbox.put([b"one more"], 11))
    await asyncio.sleep(0)
    assert not waiting.done()
    taken = await inbox.take(0)
    assert (len(taken.rows), taken.last) == (ROWS + 1, 10)
    await waiting
    assert (inbox.batch.rows, inbox.batch.last) == ([b"one more"], 11)


async def test_a_batch_that_is_not_full_is_written_after_a_while_and_the_end_at_once() -> None:
    inbox = Inbox()
    await inbox.put([b"1"], 1)
    assert (await inbox.take(0.01)).rows == [b"1"]
    await inbox.put([b"2"], 2)
    await inbox.end()
    assert (await inbox.take(1e9)).rows == [b"2"]
    assert (await inbox.take(1e9)).rows == []


async def test_who_waits_for_what_comes_lets_no_batch_linger() -> None:
    inbox = Inbox()
    await inbox.put([b"1"], 1)
    taking = asyncio.ensure_future(inbox.take(1e9))
    async with inbox.hurry():
        assert (await taking).rows == [b"1"]
        await inbox.put([b"2"], 2)
        assert (await inbox.take(1e9)).rows == [b"2"]
    await inbox.put([b"3"], 3)
    assert (await inbox.take(0.01)).rows == [b"3"]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


async def test_a_server_that_is_away_costs_the_run_nothing_and_is_caught_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in is not a server (see stand_in.py): it is away at first, killed on the way, and comes back."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv(analytics.TARGET, url)
    monkeypatch.setattr(analytics, "PAUSE_SECONDS", (0.02, 0.1))
    monkeypatch.setattr(analytics_batches, "LINGER_SECONDS", 0.05)
    broker = MemoryBroker()
    bus = await MemoryBus.connect(broker, RUN, "control", "control-1", tmp_path, create=True)
    place = Place("analytics", "analytics-1", RUN, tmp_path, "", Config.of({}))
    sink = asyncio.ensure_future(analytics.serve(place, bus))

    async def say(numbers: range) -> None:
        for number in numbers:
            events = [event for event in healthy() if not isinstance(event, str) and event.type != "ModelCallRecorded"]
            await bus.ev.append(
                subjects.ev(RUN, "control", "run"), committed(RUN, number, events[number % len(events)])
            )
            await bus.calls.append(subjects.call(RUN, "x0-0"), committed(RUN, number + 0.5, call("x0-0", 1)))

    def there(rows: int) -> bool:
        warehouse = Warehouse(url)
        try:
            return asked(warehouse, "SELECT count() AS n FROM events") == [{"n": rows}]
        finally:
            warehouse.close()

    try:
        async with asyncio.timeout(5):
            await say(range(40))
        with stand_in(tmp_path / "data", port):
            await until(lambda: there(80))
            await say(range(40, 60))
        await say(range(60, 100))
        with stand_in(tmp_path / "data", port):
            await until(lambda: there(200))
            assert not sink.done()
    finally:
        sink.cancel()
        await asyncio.wait([sink])
        await bus.close()
