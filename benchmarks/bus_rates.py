"""The bus against nats-py's raw rates, same run, same server: `python benchmarks/bus_rates.py [--json] [--rounds N]`.

`--fsync-ms 0.5` measures the shared sync alone, with every fsync of the server that much longer: a virtual machine's
disk may say "synced" after 0.1 ms, others need milliseconds; the ratio follows that time. It needs Linux and strace.

Each pair is measured in alternation and the medians are compared, so that a busy machine slows both sides. Bodies are
whole commits of one small event (about 330 bytes): models that our side encodes and validates, bytes on the raw side.
Clients and server share the machine; `cpu_ratio` compares
the client's processor time an event, which neighbours disturb less than rates.

    typed publish         `Log.append` from 256 callers, default sync    against `js.publish_async`, window 2000
    shared sync           `Log.append` from 256 callers, sync always     against 256 callers of `js.publish`
    fenced work           pull 20, claim + done as conditional commits, ack; 8 workers   against fetch 20 + ack
    replay                `Log.read` into typed commits, in order        against a push consumer's raw callback
    latency               commit said -> folded by a projector, p50 and p99, sync always
"""

import argparse
import asyncio
import gc
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Self

import nats
import uvloop
from nats.aio.client import Client
from nats.js import JetStreamContext, api

from bus import server as bus_server
from bus import streams, subjects
from bus.consumers import Projection
from bus.jetstream import Bus
from bus.log import Expect, Stored
from bus.server import NatsServer, Sync
from schemas.dispatch import ExecutionDispatched
from schemas.envelope import COMMIT, Commit, Event, Producer

CALLERS = 256
WORKERS = 8
NUMBERS = itertools.count(1)

Measure = Callable[[], Awaitable[tuple[float, float]]]


def commit(number: int) -> Commit:
    """A small commit with an id of its own."""
    return Commit(
        run="bench",
        producer=Producer(service="scheduler", instance="bench-1"),
        commit=f"commit-{number}",
        causation=number,
        as_of=number,
        correlation=f"x{number}",
        time=time.time_ns(),
        events=(ExecutionDispatched(execution=f"x{number}", group="g1", task="t1", index=0, version=3, seed=number),),
    )


class Bench:
    """A server, our bus and raw clients on it."""

    def __init__(self, sync: Sync, folder: Path) -> None:
        self.sync, self.folder = sync, folder
        self.server = NatsServer(folder / f"store-{sync}", sync)
        self.clients: list[Client] = []

    async def __aenter__(self) -> Self:
        self.server.start()
        self.bus = await self.connect()
        self.js = await self.raw()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bus.close()
        for client in self.clients:
            await client.close()
        self.server.stop()

    async def connect(self) -> Bus:
        return await Bus.connect(self.server.url, "bench", "bench", "one", self.folder, create=True, sync=self.sync)

    async def raw(self) -> JetStreamContext:
        client = await nats.connect(self.server.url, pending_size=8 << 20)
        self.clients.append(client)
        return client.jetstream(timeout=30, publish_async_max_pending=2000)

    async def fresh(self, name: str, subject: str) -> None:
        """An empty stream of the raw side."""
        if name in {info.config.name for info in await self.js.streams_info()}:
            await self.js.delete_stream(name)
        await self.js.add_stream(name=name, subjects=[subject], storage=api.StorageType.FILE)


async def rate(count: int, work: Awaitable[object]) -> tuple[float, float]:
    """(events per second, microseconds of client CPU per event)."""
    started, used = time.perf_counter(), time.process_time()
    await work
    return count / (time.perf_counter() - started), (time.process_time() - used) / count * 1e6


async def compare(ours: Measure, raw: Measure, rounds: int) -> dict[str, float]:
    """Medians of alternating rounds and their ratios, above 1 where ours is better; the first round warms up."""
    pairs = [(await raw(), await ours()) for _ in range(rounds + 1)][1:]
    raw_rate, raw_cpu = (statistics.median(side) for side in zip(*(pair[0] for pair in pairs), strict=True))
    our_rate, our_cpu = (statistics.median(side) for side in zip(*(pair[1] for pair in pairs), strict=True))
    return {
        "ours": round(our_rate),
        "raw": round(raw_rate),
        "ratio": round(our_rate / raw_rate, 2),
        "cpu_ratio": round(raw_cpu / our_cpu, 2),
    }


async def callers(items: list[Any], say: Callable[[Any], Awaitable[object]]) -> None:
    """256 callers, each awaiting its own."""

    async def caller(own: list[Any]) -> None:
        for item in own:
            await say(item)

    await asyncio.gather(*(caller(items[place::CALLERS]) for place in range(CALLERS)))


def commits(count: int) -> list[Commit]:
    """What deciders hand over: models, not bytes. Frozen, since no service holds so many at once for the collector."""
    made = [commit(next(NUMBERS)) for _ in range(count)]
    gc.freeze()
    return made


async def publish(bench: Bench, count: int, rounds: int) -> dict[str, float]:
    subject = subjects.ev("bench", "scheduler", "event")
    body = COMMIT.dump_json(commit(next(NUMBERS)))

    async def ours() -> tuple[float, float]:
        said = commits(count)
        return await rate(count, callers(said, lambda one: bench.bus.ev.append(subject, one)))

    async def raw() -> tuple[float, float]:
        await bench.fresh("RAW", "raw")
        return await rate(count, _publish_async(bench.js, body, count))

    return await compare(ours, raw, rounds)


async def _publish_async(js: JetStreamContext, body: bytes, count: int) -> None:
    for _ in range(count):
        await js.publish_async("raw", body)
    await js.publish_async_completed()


async def shared_sync(bench: Bench, count: int, rounds: int) -> dict[str, float]:
    subject = subjects.ev("bench", "scheduler", "event")
    body = COMMIT.dump_json(commit(next(NUMBERS)))

    async def ours() -> tuple[float, float]:
        said = commits(count)
        return await rate(count, callers(said, lambda one: bench.bus.ev.append(subject, one)))

    async def raw() -> tuple[float, float]:
        await bench.fresh("RAW", "raw")
        return await rate(count, callers([body] * count, lambda one: bench.js.publish("raw", one)))

    return await compare(ours, raw, rounds)


async def fenced_work(bench: Bench, count: int, rounds: int) -> dict[str, float]:
    buses = [await bench.connect() for _ in range(WORKERS)]
    contexts = [await bench.raw() for _ in range(WORKERS)]
    body = COMMIT.dump_json(commit(next(NUMBERS)))

    async def ours() -> tuple[float, float]:
        step = next(NUMBERS)
        ready = [subjects.ev("bench", "packer", "step", step, micro) for micro in range(count)]
        await asyncio.gather(*(bench.bus.ev.append(subject, commit(next(NUMBERS))) for subject in ready))
        said = commits(2 * count)
        return await rate(count, asyncio.gather(*(_claim_all(bus, said) for bus in buses)))

    async def raw() -> tuple[float, float]:
        await bench.fresh("WORK", "work")
        await bench.js.delete_stream("WORK")
        await bench.js.add_stream(name="WORK", subjects=["work"], retention=api.RetentionPolicy.WORK_QUEUE)
        await bench.js.add_consumer("WORK", durable_name="w", max_ack_pending=10_000)
        for _ in range(count):
            await bench.js.publish_async("work", body)
        await bench.js.publish_async_completed()
        return await rate(count, _fetch_all(contexts, count))

    found = await compare(ours, raw, rounds)
    for bus in buses:
        await bus.close()
    return found


async def _claim_all(bus: Bus, said: list[Commit]) -> None:
    queue = bus.queue("step")
    while items := await queue.pull(20, 0):
        await asyncio.gather(*(_claim(bus, item.stored, said.pop(), said.pop()) for item in items))
        for item in items:
            await item.ack()


async def _claim(bus: Bus, ready: Stored, claimed: Commit, done: Commit) -> None:
    step, micro = subjects.parse(ready.subject).entity[1:]
    life = subjects.ev("bench", "cell", "step", step, micro)
    filter_ = subjects.micro_step("bench", int(step), micro)
    claim = await bus.ev.append(life, claimed, Expect(filter_, ready.sequence))
    await bus.ev.append(life, done, Expect(filter_, claim))


async def _fetch_all(contexts: list[JetStreamContext], count: int) -> None:
    """Until everything is acknowledged: what a worker waits for in vain at the end is not counted."""
    done, seen = asyncio.Event(), itertools.count(1)

    async def work(js: JetStreamContext) -> None:
        subscription = await js.pull_subscribe_bind(consumer="w", stream="WORK")
        while not done.is_set():
            with suppress(TimeoutError):
                for message in await subscription.fetch(20, timeout=1):
                    await message.ack()
                    if next(seen) == count:
                        done.set()

    workers = [asyncio.create_task(work(js)) for js in contexts]
    await done.wait()
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def replay(bench: Bench, count: int, rounds: int) -> dict[str, float]:
    """Of the whole log: what the server pushes beyond the last one asked for would be received in our side's time."""
    subject = subjects.ev("bench", "scheduler", "event")
    await callers(commits(count), lambda one: bench.bus.ev.append(subject, one))
    count = await bench.bus.ev.head()

    async def ours() -> tuple[float, float]:
        return await rate(count, _read(bench.bus, count))

    async def raw() -> tuple[float, float]:
        return await rate(count, _push(bench.js, count))

    return await compare(ours, raw, rounds)


async def _read(bus: Bus, count: int) -> None:
    async with aclosing(bus.ev.read()) as messages:
        async for stored in messages:
            if stored.commit is None:
                raise RuntimeError(stored.reason)
            if stored.sequence == count:
                return


async def _push(js: JetStreamContext, count: int) -> None:
    done, seen = asyncio.Event(), itertools.count(1)

    async def on_message(_: object) -> None:
        if next(seen) == count:
            done.set()

    config = api.ConsumerConfig(ack_policy=api.AckPolicy.NONE)
    stream = streams.ev_stream("bench")
    subscription = await js.subscribe("ev.bench.>", stream=stream, cb=on_message, config=config, manual_ack=True)
    await done.wait()
    await subscription.unsubscribe()


async def latency(bench: Bench, count: int) -> dict[str, float]:
    """At about 200 commits a second, from another connection than the projector's."""
    other, said, folded = await bench.connect(), dict[int, float](), dict[int, float]()
    first = await bench.bus.ev.head()
    projection: Projection[int] = Projection(0, _count)
    projection.sequence = first

    async def project() -> None:
        async with aclosing(other.ev.read(first)) as messages:
            async for stored in messages:
                projection.feed(stored)
                folded[stored.sequence] = time.perf_counter()
                if len(folded) == count:
                    return

    projecting = asyncio.create_task(project())
    for _ in range(count):
        started = time.perf_counter()
        said[await bench.bus.ev.append(subjects.ev("bench", "scheduler", "event"), commit(next(NUMBERS)))] = started
        await asyncio.sleep(0.005)
    await projecting
    await other.close()
    waits = sorted(1000 * (folded[sequence] - said[sequence]) for sequence in said)
    return {"p50_ms": round(waits[count // 2], 2), "p99_ms": round(waits[int(count * 0.99)], 2)}


def _count(state: int, _sequence: int, _event: Event) -> int:
    return state + 1


async def measure(rounds: int, scale: float) -> dict[str, dict[str, float]]:
    """Every figure; `scale` 1 is about a minute."""

    def size(count: int) -> int:
        return max(1, int(count * scale) // CALLERS) * CALLERS

    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as name:
        async with Bench("laptop", Path(name)) as bench:
            found["replay"] = await replay(bench, size(51_200), rounds)
            found["typed publish"] = await publish(bench, size(25_600), rounds)
            found["fenced work"] = await fenced_work(bench, size(4096), rounds)
        async with Bench("always", Path(name)) as bench:
            found["shared sync"] = await shared_sync(bench, size(10_240), rounds)
            found["latency"] = await latency(bench, max(100, int(1000 * scale)))
    return found


def slow_disk(folder: Path, milliseconds: float) -> None:
    """Servers started from here on find each fsync that much longer (only that call is traced: seccomp)."""
    if shutil.which("strace") is None:
        raise SystemExit("--fsync-ms: strace is not installed; install it or leave the option out")
    wrapper = folder / "nats-server"
    calls = "fsync,fdatasync"
    wrapper.write_text(
        f"#!/bin/sh\nexec strace -D -f --seccomp-bpf -qq -o /dev/null -e trace={calls} "
        f'-e inject={calls}:delay_exit={round(milliseconds * 1000)} {bus_server.binary()} "$@"\n'
    )
    wrapper.chmod(0o755)
    bus_server.binary = lambda: str(wrapper)


async def measure_shared_sync(rounds: int, scale: float, fsync_ms: float) -> dict[str, dict[str, float]]:
    """The shared sync on a slower disk."""
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as name:
        slow_disk(Path(name), fsync_ms)
        async with Bench("always", Path(name)) as bench:
            return {"shared sync": await shared_sync(bench, max(1, int(5120 * scale) // CALLERS) * CALLERS, rounds)}


WANTED = {"typed publish": 1.5, "shared sync": 5.0, "fenced work": 0.25, "replay": 0.4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each side")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of events")
    parser.add_argument("--fsync-ms", type=float, default=0.0, help="make each fsync so much longer; shared sync only")
    given = parser.parse_args()
    if given.fsync_ms > 0:
        found = uvloop.run(measure_shared_sync(given.rounds, given.scale, given.fsync_ms))
    else:
        found = uvloop.run(measure(given.rounds, given.scale))
    if given.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for name, figures in found.items():
        wanted = f"   wanted >= {WANTED[name]}" if name in WANTED else ""
        print(f"{name:15}", "  ".join(f"{key} {value:g}" for key, value in figures.items()), wanted)


if __name__ == "__main__":
    main()
