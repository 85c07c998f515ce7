"""A real server is killed, cut off and restarted: nothing acknowledged is lost, nothing is stored twice."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from bus import session, streams, subjects
from bus.errors import Conflict, LogDamaged, Unavailable
from bus.group import Group, SaidBefore, commit_group
from bus.ingest import Ingest
from bus.jetstream import Bus
from bus.log import Expect, Stored
from bus.server import NatsServer, Sync
from schemas.envelope import COMMIT
from tests.bus.conftest import HERE, THERE, dispatched, said, take


@pytest.fixture
async def bus(server: NatsServer, tmp_path: Path) -> AsyncIterator[Bus]:
    bus = await Bus.connect(server.url, "r", "tester", "one", tmp_path, create=True)
    yield bus
    await bus.close()


async def _restart(server: NatsServer) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def _say_many(bus: Bus, callers: int, each: int) -> dict[int, str]:
    """Sequence -> commit id as acknowledged."""
    acknowledged: dict[int, str] = {}

    async def caller(place: str) -> None:
        for _ in range(each):
            commit = said()
            acknowledged[await bus.ev.append(place, commit)] = commit.commit

    await asyncio.gather(*(caller(subjects.ev("r", "tester", "caller", number)) for number in range(callers)))
    return acknowledged


def _ids(messages: list[Stored]) -> dict[int, str]:
    return {stored.sequence: stored.commit.commit for stored in messages if stored.commit}


@pytest.mark.parametrize(("callers", "sync"), [(4, "always"), (200, "always"), (200, "laptop")])
async def test_a_killed_server_costs_producers_time_and_nothing_else(
    server: NatsServer, tmp_path: Path, callers: int, sync: Sync
) -> None:
    bus = await Bus.connect(server.url, "r", "tester", "one", tmp_path, create=True, sync=sync)
    saying = asyncio.ensure_future(_say_many(bus, callers, 6000 // callers))
    for part in (1, 2, 3):
        async with asyncio.timeout(60):
            while await bus.ev.head() < part * 1000:
                await asyncio.sleep(0.01)
        assert not saying.done()
        await _restart(server)
    acknowledged = await asyncio.wait_for(saying, 60)
    stored = await take(bus.ev, 6000)
    assert len(acknowledged) == 6000
    assert _ids(stored) == acknowledged
    assert await bus.ev.head() == 6000
    await bus.close()


async def test_a_conditional_chain_survives_kills_without_conflict_or_double(server: NatsServer, bus: Bus) -> None:
    async def chain() -> None:
        sequence = 0
        for _ in range(800):
            sequence = await bus.ev.append(HERE, said(), Expect(HERE, sequence))

    saying = asyncio.ensure_future(chain())
    for part in (200, 400):
        async with asyncio.timeout(60):
            while await bus.ev.head() < part:
                await asyncio.sleep(0.005)
        await _restart(server)
    await asyncio.wait_for(saying, 60)
    assert await bus.ev.head() == 800


async def test_a_reader_goes_on_where_it_was_after_a_kill(server: NatsServer, bus: Bus) -> None:
    async with aclosing(bus.ev.read()) as messages:
        await _say_many(bus, 20, 10)
        first = [await anext(messages) for _ in range(150)]
        await _restart(server)
        await _say_many(bus, 20, 10)
        async with asyncio.timeout(30):
            rest = [await anext(messages) for _ in range(250)]
    assert [stored.sequence for stored in first + rest] == list(range(1, 401))


async def test_a_queue_goes_on_after_a_kill_and_loses_no_item(server: NatsServer, bus: Bus) -> None:
    queue = bus.queue("rollout")
    waiting = asyncio.ensure_future(queue.pull(1, 60))
    await asyncio.sleep(0)
    await _restart(server)
    await bus.ev.append(subjects.ev("r", "scheduler", "execution", "x1", "dispatched"), dispatched("x1"))
    items = await asyncio.wait_for(waiting, 30)
    async with asyncio.timeout(30):
        while not items:
            items = await queue.pull(1, 1)
    assert [item.stored.sequence for item in items] == [1]


async def test_patience_ends_when_the_server_stays_away(server: NatsServer, tmp_path: Path) -> None:
    bus = await Bus.connect(server.url, "r", "tester", "one", tmp_path, create=True, patience_seconds=1)
    await asyncio.to_thread(server.kill)
    outcomes = await asyncio.gather(
        *(bus.ev.append(HERE, said()) for _ in range(40)),
        bus.ev.append(THERE, said(), Expect(THERE, 0)),
        bus.ev.head(),
        return_exceptions=True,
    )
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    await bus.close()


async def test_what_waits_when_the_bus_is_closed_learns_it(server: NatsServer, bus: Bus) -> None:
    await asyncio.to_thread(server.kill)
    waiting = [asyncio.ensure_future(bus.ev.append(HERE, said())) for _ in range(40)]
    await asyncio.sleep(0)
    await bus.close()
    assert {type(outcome) for outcome in await asyncio.gather(*waiting, return_exceptions=True)} == {Unavailable}


@pytest.mark.parametrize("sync", ["laptop", "always"])
async def test_however_early_the_bus_is_closed_each_of_many_callers_learns_it(
    server: NatsServer, tmp_path: Path, sync: Sync
) -> None:
    for turns in range(12):
        bus = await Bus.connect(server.url, "r", "tester", f"i{turns}", tmp_path, create=True, sync=sync)
        saying = [asyncio.create_task(bus.ev.append(HERE, said())) for _ in range(80)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await bus.close()
        told = await asyncio.wait_for(asyncio.gather(*saying, return_exceptions=True), 5)
        assert all(isinstance(each, int | Unavailable) for each in told)


async def test_no_server_at_a_url_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no NATS server answers .*; start one or correct the URL$"):
        await Bus.connect("nats://127.0.0.1:1", "r", "tester", "one", tmp_path, patience_seconds=0.5)


async def test_a_power_cut_loses_nothing_acknowledged(server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    acknowledged = await _say_many(bus, 64, 20)
    saying = asyncio.ensure_future(_say_many(bus, 64, 20))
    shutil.copytree(tmp_path / "store", tmp_path / "copy", ignore=shutil.ignore_patterns("server.json"))
    await saying
    image = NatsServer(tmp_path / "copy").start()
    try:
        other = await Bus.connect(image.url, "r", "tester", "two", tmp_path)
        found = _ids(await take(other.ev, len(acknowledged)))
        await other.close()
    finally:
        image.stop()
    assert found == acknowledged


async def test_many_callers_share_batches_and_conditional_commits_never_do(bus: Bus) -> None:
    chain = [
        bus.ev.append(subjects.ev("r", "a", number), said(), Expect(f"ev.r.a.{number}", 0)) for number in range(30)
    ]
    await asyncio.gather(*chain, _say_many(bus, 100, 5))
    batched: dict[str, int] = {}
    for sequence in range(1, 531):
        message = await bus._link.nc.jetstream().get_msg(streams.ev_stream("r"), sequence)
        batch = (message.headers or {}).get("Nats-Batch-Id")
        if batch:
            batched[batch] = batched.get(batch, 0) + 1
            assert message.subject.startswith("ev.r.tester.caller.")
    assert sum(batched.values()) > 300
    assert max(batched.values()) >= 16


async def test_a_batch_whose_acknowledgement_was_lost_is_found_again(bus: Bus) -> None:
    commits = [said() for _ in range(20)]
    members = [(HERE, COMMIT.dump_json(commit), commit.commit) for commit in commits]
    await bus.ev.append(THERE, said())
    batch = Group(members, asyncio.get_running_loop().time() + 30)
    assert await commit_group(bus._link, batch) == 2
    await bus.ev.append(THERE, said())
    with pytest.raises(SaidBefore):
        await commit_group(bus._link, batch)
    assert await asyncio.gather(*(bus.ev.append(HERE, commit) for commit in commits)) == list(range(2, 22))
    assert await bus.ev.head() == 22
    assert [stored.commit for stored in await take(bus.ev, 20, after=1)] == commits


async def test_under_laptop_sync_many_callers_share_one_answer_and_each_learns_its_own_sequence(
    server: NatsServer, tmp_path: Path
) -> None:
    bus = await Bus.connect(server.url, "r", "tester", "one", tmp_path, create=True, sync="laptop")
    other = await Bus.connect(server.url, "r", "tester", "two", tmp_path, sync="laptop")
    commits = [said() for _ in range(300)]
    alone = await asyncio.gather(*(bus.ev.append(HERE, each) for each in commits[:100]))
    crowded = await asyncio.gather(
        *(bus.ev.append(HERE, each) for each in commits[100:]), _say_many(other, 20, 10), _say_many(bus, 20, 10)
    )
    stored = {each.sequence: each.commit for each in await take(bus.ev, 700)}
    assert [stored[sequence] for sequence in (*alone, *crowded[:200])] == commits
    assert await bus.ev.head() == 700
    first = await bus._link.nc.jetstream().get_msg(streams.ev_stream("r"), 60)
    assert "Nats-Batch-Id" not in (first.headers or {})
    await other.close()
    await bus.close()


async def test_a_fast_group_tells_its_first_sequence_only_when_nobody_spoke_in_between(bus: Bus) -> None:
    ingest = Ingest(bus._link)
    await ingest.start()
    members = [(HERE, COMMIT.dump_json(said()), f"one-{place}") for place in range(20)]
    await bus.ev.append(THERE, said())
    assert await ingest.store(members) == 2
    assert await ingest.store(members) is None  # all of it was there: nothing new can be counted
    assert await bus.ev.head() == 21


async def test_callers_that_go_away_in_a_fast_group_leave_nothing_behind(server: NatsServer, tmp_path: Path) -> None:
    bus = await Bus.connect(server.url, "r", "tester", "one", tmp_path, create=True, sync="laptop")
    callers = [asyncio.ensure_future(bus.ev.append(HERE, said())) for _ in range(100)]
    await asyncio.sleep(0)
    for caller in callers[20:60]:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert not any(caller.exception() for caller in callers if not caller.cancelled())
    assert not bus.ev._publisher._singles
    await bus.close()


async def test_a_reader_whose_consumer_vanished_makes_another(bus: Bus) -> None:
    await bus.ev.append(HERE, said())
    async with aclosing(bus.ev.read()) as messages:
        assert (await anext(messages)).sequence == 1
        following = asyncio.ensure_future(anext(messages))
        (consumer,) = await bus._link.nc.jetstream().consumers_info(streams.ev_stream("r"))
        await bus._link.nc.jetstream().delete_consumer(streams.ev_stream("r"), consumer.name)
        await bus.ev.append(HERE, said())
        assert (await asyncio.wait_for(following, 20)).sequence == 2


async def test_a_reader_leaves_no_consumer_behind(bus: Bus) -> None:
    await bus.ev.append(HERE, said())
    await take(bus.ev, 1)
    async with asyncio.timeout(10):
        while await bus._link.nc.jetstream().consumers_info(streams.ev_stream("r")):
            await asyncio.sleep(0.02)


async def test_a_sequence_that_is_gone_stops_the_reader(bus: Bus) -> None:
    js = bus._link.nc.jetstream()
    await js.add_stream(name="HOLED", subjects=["holed.>"])
    for _ in range(5):
        await js.publish("holed.a", b"{}")
    await js.delete_msg("HOLED", 3)
    reading = session.Session(bus._link, "HOLED", 0, "")
    await reading.open()
    assert [raw[0] for raw in await reading.next()] == [1, 2]
    assert await reading.next() == []
    await reading.close()
    fresh = session.Session(bus._link, "HOLED", 2, "")
    await fresh.open()
    with pytest.raises(LogDamaged, match="sequence 3 is missing before 4"):
        await fresh.next()
    await fresh.close()


async def test_nothing_can_be_deleted_from_the_truth(bus: Bus) -> None:
    await bus.ev.append(HERE, said())
    for refused in (
        bus._link.nc.jetstream().delete_msg(streams.ev_stream("r"), 1),
        bus._link.nc.jetstream().purge_stream(streams.ev_stream("r")),
    ):
        with pytest.raises(Exception, match=r"not permitted|denied|deny"):
            await refused
    assert await bus.ev.head() == 1


async def test_a_cancelled_append_leaves_room_for_others(server: NatsServer, bus: Bus) -> None:
    await asyncio.to_thread(server.kill)
    waiting = [asyncio.ensure_future(bus.ev.append(HERE, said())) for _ in range(5000)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.to_thread(server.start)
    assert await asyncio.wait_for(bus.ev.append(THERE, said()), 30) > 0


async def test_a_server_that_is_behind_makes_no_conflict_of_ones_own_commit(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = said()
    assert await bus.ev.append(HERE, mine, Expect(HERE, 0)) == 1
    ask, behind = bus._link.ask, iter([True, True])

    async def late(subject: str, request: dict[str, Any] | None = None) -> Msg:
        if "DIRECT.GET" in subject and next(behind, False):
            return Msg(_client=bus._link.nc, data=b"", headers={"Status": "404"})
        return await ask(subject, request)

    monkeypatch.setattr(bus._link, "ask", late)
    assert await bus.ev.append(HERE, mine, Expect(HERE, 0)) == 1
    with pytest.raises(Conflict):
        await bus.ev.append(HERE, said(), Expect(HERE, 0))


async def test_a_stream_without_a_leader_is_waited_for_and_is_not_taken_for_none(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, leaderless = bus._link.api, iter([True, True])

    async def electing(call: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        if next(leaderless, False):
            return {"error": {"code": 503, "err_code": 10008, "description": "temporarily unavailable"}}
        return await api(call, request)

    monkeypatch.setattr(bus._link, "api", electing)
    assert await bus.ev.append(HERE, said()) == await bus.ev.head() == 1
    assert next(leaderless, False) is False
