"""What every log does, on a server and in memory."""

import asyncio
from contextlib import aclosing

import pytest

from bus import codec, subjects
from bus.errors import Conflict, NoStream, StreamFull, Unavailable
from bus.log import Expect, Log, Raw
from bus.streams import Limits
from schemas.runs import EventQuarantined, TimerFired
from schemas.upcast import load
from tests.bus.conftest import HERE, THERE, World, said, take


async def test_sequences_count_from_one_and_lead_back_to_what_was_said(world: World) -> None:
    bus = await world.open()
    first, second = said(), said()
    assert await bus.ev.head() == 0
    assert await bus.ev.last("") is None
    assert [await bus.ev.append(HERE, first), await bus.ev.append(THERE, second)] == [1, 2]
    assert await bus.ev.head() == 2
    found = await bus.ev.get(1)
    assert found is not None
    assert (found.subject, found.commit) == (HERE, first)
    last = await bus.ev.last("ev.r.tester.here")
    assert last is not None
    assert last.sequence == 1
    assert (await bus.ev.last("")).commit == second  # type: ignore[union-attr]
    assert await bus.ev.get(3) is None
    assert await bus.ev.get(0) is None
    assert await bus.ev.last("ev.r.nobody.>") is None


async def test_reading_gives_the_past_in_order_and_then_what_is_said_meanwhile(world: World) -> None:
    bus = await world.open()
    before = [said() for _ in range(600)]
    await asyncio.gather(*(bus.ev.append(HERE, commit) for commit in before))
    async with aclosing(bus.ev.read(after=100)) as messages:
        past = [await anext(messages) for _ in range(500)]
        assert [stored.sequence for stored in past] == list(range(101, 601))
        live = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        assert not live.done()
        late = said()
        await bus.ev.append(HERE, late)
        assert (await asyncio.wait_for(live, 10)).commit == late


async def test_chunks_give_the_stored_bytes_of_the_past_and_then_of_what_is_said_meanwhile(world: World) -> None:
    bus = await world.open()
    before = [said() for _ in range(300)]
    for place, commit in zip((HERE, THERE) * 150, before, strict=True):
        await bus.ev.append(place, commit)
    found: list[Raw] = []
    async with aclosing(bus.ev.chunks(after=40)) as chunks:
        while len(found) < 260:
            found += await asyncio.wait_for(anext(chunks), 10)
        assert [raw[0] for raw in found] == list(range(41, 301))
        assert [raw[1] for raw in found] == [HERE, THERE] * 130
        assert [load(raw[2]) for raw in found] == before[40:]
        late = said()
        await bus.ev.append(THERE, late)
        (last,) = await asyncio.wait_for(anext(chunks), 10)
        assert (last[:2], load(last[2])) == ((301, THERE), late)


async def test_a_filter_lets_through_its_subjects_only(world: World) -> None:
    bus = await world.open()
    for place in (HERE, THERE, HERE, THERE):
        await bus.ev.append(place, said())
    assert [stored.sequence for stored in await take(bus.ev, 2, filter=THERE)] == [2, 4]
    assert [stored.sequence for stored in await take(bus.ev, 1, after=2, filter="ev.r.*.there")] == [4]


async def test_several_filters_give_what_lies_under_any_of_them_in_order(world: World) -> None:
    bus = await world.open()
    for place in (HERE, THERE, "ev.r.other.place.deep", HERE, "ev.r.other.elsewhere"):
        await bus.ev.append(place, said())
    async with aclosing(bus.ev.read(0, THERE, "ev.r.other.place.>", "ev.r.other.elsewhere")) as messages:
        found = [(await asyncio.wait_for(anext(messages), 10)).sequence for _ in range(3)]
        late = await bus.ev.append(THERE, said())
        assert (await asyncio.wait_for(anext(messages), 10)).sequence == late
    assert found == [2, 3, 5]
    async with aclosing(bus.ev.read(3, "", THERE)) as messages:  # an empty one means all
        assert (await asyncio.wait_for(anext(messages), 10)).sequence == 4


async def test_readers_do_not_disturb_each_other(world: World) -> None:
    bus = await world.open()
    await asyncio.gather(*(bus.ev.append(HERE, said()) for _ in range(300)))
    every, some = await asyncio.gather(take(bus.ev, 300), take(bus.ev, 50, after=250))
    assert [stored.sequence for stored in every] == list(range(1, 301))
    assert [stored.sequence for stored in some] == list(range(251, 301))


async def test_a_condition_holds_over_its_whole_filter(world: World) -> None:
    bus = await world.open()
    whole = subjects.producer("r", "tester")
    first = await bus.ev.append(HERE, said(), Expect(whole, 0))
    second = await bus.ev.append(THERE, said(), Expect(whole, first))
    with pytest.raises(Conflict, match="expected last sequence 1, found 2; reload") as conflict:
        await bus.ev.append(HERE, said(), Expect(whole, first))
    assert (conflict.value.expected, conflict.value.found, second) == (1, 2, 2)
    assert await bus.ev.head() == 2


async def test_never_written_is_a_condition_that_only_one_of_many_meets(world: World) -> None:
    bus, other = await world.open(), await world.open(service="other")
    racers = [(bus if number % 2 else other).ev.append(HERE, said(), Expect(HERE, 0)) for number in range(20)]
    outcomes = await asyncio.gather(*racers, return_exceptions=True)
    assert [outcome for outcome in outcomes if not isinstance(outcome, Conflict)] == [1]
    assert await bus.ev.head() == 1


async def test_a_conditional_commit_whose_acknowledgement_was_lost_is_found_again(world: World) -> None:
    bus = await world.open()
    mine = said()
    assert await bus.ev.append(HERE, mine, Expect(HERE, 0)) == 1
    assert await bus.ev.append(HERE, mine, Expect(HERE, 0)) == 1
    await bus.ev.append(HERE, said(), Expect(HERE, 1))
    assert await bus.ev.append(HERE, mine, Expect(HERE, 0)) == 1
    assert await bus.ev.head() == 2


async def test_an_unconditional_commit_sent_twice_is_stored_once(world: World) -> None:
    bus = await world.open()
    mine = said()
    assert await bus.ev.append(HERE, mine) == 1
    assert await bus.ev.append(THERE, said()) == 2
    assert await bus.ev.append(HERE, mine) == 1
    assert await bus.ev.head() == 2


async def test_many_that_are_sent_twice_in_another_order_are_stored_once(world: World) -> None:
    bus = await world.open()
    commits = [said() for _ in range(100)]
    first = await asyncio.gather(*(bus.ev.append(HERE, commit) for commit in commits))
    new = said()
    again = await asyncio.gather(*(bus.ev.append(HERE, commit) for commit in (new, *reversed(commits))))
    assert again == [101, *reversed(first)]
    assert await bus.ev.head() == 101


async def _fill(log: Log) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await log.append(HERE, said())
            except StreamFull:
                return


async def test_a_full_stream_refuses_at_once_and_can_still_be_read(world: World) -> None:
    bus = await world.open(Limits(ev_bytes=20_000))
    await _fill(bus.ev)
    stored = await bus.ev.head()
    assert stored > 10
    with pytest.raises(StreamFull, match=r"full.*raise its size limit"):
        await bus.ev.append(HERE, said())
    with pytest.raises(StreamFull):
        await bus.ev.append(HERE, said(), Expect(THERE, 0))
    assert len(await take(bus.ev, stored)) == stored
    await world.open(Limits(ev_bytes=40_000))
    assert await bus.ev.append(HERE, said()) == stored + 1


async def test_a_full_stream_refuses_all_of_many_concurrent_callers(world: World) -> None:
    bus = await world.open(Limits(ev_bytes=20_000))
    outcomes = await asyncio.gather(*(bus.ev.append(HERE, said()) for _ in range(300)), return_exceptions=True)
    stored = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert {type(outcome) for outcome in outcomes} <= {int, StreamFull}
    assert sorted(stored) == list(range(1, await bus.ev.head() + 1))
    assert len(stored) < 300


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no json at all", "Invalid JSON"),
        (b"", "Invalid JSON"),
        (b'{"run":"r"}', "Field required"),
        (b'{"blob":{"digest":"' + b"0" * 64 + b'","size":3,"address":"blob:0"},"commit":"x"}', "blob 0000"),
        (b'{"blob":"/etc/passwd","commit":"x"}', "blob"),
        (b'{"blob":', "unexpected end"),
    ],
)
async def test_what_is_no_commit_comes_with_its_reason_and_reading_goes_on(
    world: World, data: bytes, reason: str
) -> None:
    bus = await world.open()
    after = said()
    await world.store(HERE, data)
    await bus.ev.append(HERE, after)
    bad, good = await take(bus.ev, 2)
    assert bad.commit is None
    assert reason.lower() in bad.reason.lower()
    assert "\n" not in bad.reason
    assert good.commit == after


@pytest.mark.parametrize(("run", "service"), [("another", "tester"), ("r", "scheduler")])
async def test_a_commit_in_anothers_name_is_none_of_this_subject(world: World, run: str, service: str) -> None:
    """Readers choose by subjects and go by commits: both say the same, or nothing was said."""
    bus = await world.open()
    await world.store(HERE, codec.COMMIT.dump_json(said(run=run, service=service)))
    (bad,) = await take(bus.ev, 1)
    assert bad.commit is None
    assert {"another": "run r", "r": "subject of tester"}[run] in bad.reason
    assert await bus.ev.get(1) == await bus.ev.last(HERE) == bad


async def test_an_unknown_event_type_is_no_commit(world: World) -> None:
    bus = await world.open()
    body = codec.COMMIT.dump_json(said(TimerFired(timer="a"))).replace(b"TimerFired", b"TimerForgotten")
    await world.store(HERE, body)
    (bad,) = await take(bus.ev, 1)
    assert bad.commit is None
    assert "TimerForgotten" in bad.reason


async def test_a_large_commit_lies_in_the_blob_store_and_reads_like_any_other(world: World) -> None:
    bus = await world.open()
    long = EventQuarantined(stream="s" * 300_000, sequence=1, subject="x", digest="0" * 64, reason="r")
    large = said(long)
    sequence = await bus.ev.append(HERE, large)
    assert len(await world.raw(sequence)) < 500
    assert len(list(bus.blobs.digests())) == 1
    assert (await take(bus.ev, 1))[0].commit == large
    assert await bus.ev.append(HERE, large, Expect(HERE, 0)) == sequence
    assert (await bus.ev.get(sequence)).commit == large  # type: ignore[union-attr]


async def test_the_two_logs_of_a_run_count_apart_and_keep_to_their_subjects(world: World) -> None:
    bus = await world.open()
    assert await bus.ev.append(HERE, said()) == 1
    assert await bus.calls.append(subjects.call("r", "x1"), said()) == 1
    with pytest.raises(ValueError, match="stream EV_r takes"):
        await bus.ev.append(subjects.call("r", "x1"), said())
    assert [stored.subject for stored in await take(bus.calls, 1)] == ["call.r.x1"]


async def test_a_run_that_was_never_provisioned_is_refused(world: World) -> None:
    with pytest.raises(NoStream, match="provision"):
        await world.connect("nobody", "tester", "one")


async def test_a_closed_bus_takes_nothing_more(world: World) -> None:
    bus = await world.open()
    await bus.close()
    with pytest.raises(Unavailable, match="closed"):
        await bus.ev.append(HERE, said())


async def test_who_listens_hears_what_is_told(world: World) -> None:
    bus, other = await world.open(), await world.open(service="other")
    async with aclosing(bus.listen(subjects.hint("r", "beat", "a"))) as heard:
        first = asyncio.ensure_future(anext(heard))
        async with asyncio.timeout(10):
            while not first.done():
                await other.tell(subjects.hint("r", "beat", "a"), b"alive")
                await asyncio.wait([first], timeout=0.05)
        assert first.result() == ("hint.r.beat.a", b"alive")
