"""What every work queue does, on a server and in memory."""

import asyncio
from contextlib import aclosing

import pytest

from bus import subjects
from bus.errors import Conflict
from bus.log import BusPort, Delivery, Expect
from bus.streams import Limits
from tests.bus.conftest import World, dispatched, said

SHORT = Limits(ack_wait_seconds=0.7, max_deliver=3)  # longer than a busy machine keeps a test waiting


def _subject(execution: str) -> str:
    return subjects.ev("r", "scheduler", "execution", execution, "dispatched")


async def _dispatch(bus: BusPort, *executions: str) -> list[int]:
    return [await bus.ev.append(_subject(name), dispatched(name)) for name in executions]


async def _one(bus: BusPort, wait_seconds: float = 10) -> Delivery:
    (delivery,) = await bus.queue("rollout").pull(1, wait_seconds)
    return delivery


async def test_what_is_said_is_work_at_once_under_the_sequence_of_the_log(world: World) -> None:
    bus = await world.open()
    await bus.ev.append(subjects.ev("r", "scheduler", "office"), said())
    (sequence,) = await _dispatch(bus, "x1")
    delivery = await _one(bus)
    assert (delivery.stored.sequence, delivery.stored.subject, delivery.attempts) == (sequence, _subject("x1"), 1)
    assert delivery.stored.commit == (await bus.ev.get(sequence)).commit  # type: ignore[union-attr]
    assert await bus.queue("eval").pull(5, 0) == []
    assert await bus.queue("step").pull(5, 0) == []


async def test_a_pull_waits_for_the_first_item_and_no_longer(world: World) -> None:
    bus = await world.open()
    loop = asyncio.get_running_loop()
    assert await bus.queue("rollout").pull(5, 0.2) == []
    pulling = asyncio.ensure_future(bus.queue("rollout").pull(5, 30))
    started = loop.time()
    await _dispatch(bus, "x1")
    assert len(await asyncio.wait_for(pulling, 10)) == 1
    assert loop.time() - started < 5


async def test_many_workers_get_each_item_once(world: World) -> None:
    bus, other = await world.open(), await world.open(service="other")
    names = [f"x{number}" for number in range(200)]
    await asyncio.gather(*(bus.ev.append(_subject(name), dispatched(name)) for name in names))
    seen: list[int] = []

    async def work(queue_bus: BusPort) -> None:
        queue = queue_bus.queue("rollout")
        while items := await queue.pull(7, 0.5):
            seen.extend(item.stored.sequence for item in items)
            for item in items:
                await item.ack()

    await asyncio.gather(work(bus), work(other), work(bus), work(other))
    assert sorted(seen) == list(range(1, 201))


async def test_an_item_comes_again_when_its_lease_runs_out_and_not_once_acknowledged(world: World) -> None:
    bus = await world.open(SHORT)
    await _dispatch(bus, "x1")
    assert (await _one(bus)).attempts == 1
    again = await _one(bus)
    assert again.attempts == 2
    await again.ack()
    assert await bus.queue("rollout").pull(1, 1.0) == []


async def test_a_lease_that_is_extended_holds(world: World) -> None:
    bus = await world.open(Limits(ack_wait_seconds=1.5))
    await _dispatch(bus, "x1")
    mine = await _one(bus)
    for _ in range(7):
        assert await bus.queue("rollout").pull(1, 0.25) == []
        await mine.extend()
    await mine.ack()
    assert await bus.queue("rollout").pull(1, 1.6) == []


async def test_an_item_given_back_comes_after_its_delay(world: World) -> None:
    bus = await world.open()
    loop = asyncio.get_running_loop()
    await _dispatch(bus, "x1")
    given_back = loop.time()
    await (await _one(bus)).nak(0.4)
    again = await _one(bus)
    assert again.attempts == 2
    assert loop.time() - given_back >= 0.35
    await again.nak()
    assert (await _one(bus)).attempts == 3


async def test_a_terminated_item_never_comes_again(world: World) -> None:
    bus = await world.open(SHORT)
    await _dispatch(bus, "x1", "x2")
    await (await _one(bus)).term("no such task\nat all")
    second = await _one(bus)
    assert second.stored.sequence == 2
    await second.ack()
    assert await bus.queue("rollout").pull(1, 0.8) == []


async def test_poison_is_parked_after_its_last_delivery_and_the_others_go_on(world: World) -> None:
    bus = await world.open(SHORT)
    poison, good = await _dispatch(bus, "x1", "x2")
    queue = bus.queue("rollout")
    deliveries: dict[int, int] = {}
    async with aclosing(bus.parked()) as parking:
        first = asyncio.ensure_future(anext(parking))
        async with asyncio.timeout(20):
            while not first.done():
                for item in await queue.pull(2, 0.1):
                    deliveries[item.stored.sequence] = item.attempts
                    if item.stored.sequence == good:
                        await item.ack()
                    else:
                        await item.nak()
        parked = first.result()
        assert (parked.queue, parked.stored.sequence, parked.attempts) == ("rollout", poison, 3)
        assert parked.stored.commit is not None
        assert deliveries == {poison: 3, good: 1}
        await parked.remove()
    async with aclosing(bus.parked()) as parking:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(parking), 0.5)
    await _dispatch(bus, "x3")
    assert (await _one(bus)).stored.sequence == 3


async def test_a_claim_is_fenced_by_the_log_and_not_by_the_queue(world: World) -> None:
    bus = await world.open()
    ready, life = subjects.ev("r", "packer", "step", 3, "0"), subjects.ev("r", "cell", "step", 3, "0")
    step = subjects.micro_step("r", 3, "0")
    enqueued = await bus.ev.append(ready, said())
    (hint,) = await bus.queue("step").pull(1, 10)
    assert hint.stored.sequence == enqueued
    dead = await bus.ev.append(life, said(), Expect(step, enqueued))
    with pytest.raises(Conflict):
        await bus.ev.append(life, said(), Expect(step, enqueued))
    reissued = await bus.ev.append(ready, said(), Expect(step, dead))
    claim = await bus.ev.append(life, said(), Expect(step, reissued))
    with pytest.raises(Conflict):
        await bus.ev.append(life, said(), Expect(step, dead))
    assert await bus.ev.append(life, said(), Expect(step, claim)) == claim + 1
    await hint.ack()
    assert [item.stored.sequence for item in await bus.queue("step").pull(5, 10)] == [reissued]


async def test_a_malformed_item_is_delivered_with_its_reason(world: World) -> None:
    bus = await world.open()
    await world.store(_subject("x1"), b"nothing")
    item = await _one(bus)
    assert item.stored.commit is None
    assert item.stored.reason
    await item.term(item.stored.reason)
