"""What the proxy adds to calling the engine directly, and whether that grows with the history.

    python benchmarks/proxy.py [--turns 60] [--executions 8] [--bus memory|nats] [--json]

A scripted engine stands behind HTTP in both cases, so nothing is computed: what differs is the proxy's own work (HTTP,
JSON, matching, rendering, tokenising, the record in CALL before the answer). Each execution is one conversation that
grows by a turn and a tool's result; direct calls send the very same token ids.
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, time_ns
from typing import Any

import aiohttp
from aiohttp import web

from bus import subjects
from bus.jetstream import Bus
from bus.log import BusPort
from bus.memory import MemoryBroker, MemoryBus
from bus.server import NatsServer
from gyre.core.tree import context_ids, fold
from gyre.engines.port import GenerateRequest, Sampling
from gyre.engines.remote import RemoteEngine
from gyre.engines.scripted import Line, ScriptedEngine
from gyre.models.load import NANO
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.tokens import execution_token, token_digest
from schemas.base import ints
from schemas.calls import ModelCallRecorded
from schemas.dispatch import ExecutionLaunched
from schemas.envelope import Commit, Event, Producer
from schemas.roles import CellRegistered
from schemas.speakers import SPEAKERS
from services.engine_server import engine_app, engine_runner
from services.proxy.service import ProxySettings, serve_proxy
from services.records import last_record, read_records

RUN, SECRET = "bench", b"k" * 32
CALL = '<tool_call>{"name":"write","arguments":{"path":"a.txt","content":"up"}}</tool_call>'
RESULT = "the file was written, and here is a line of output to read\n" * 4


@dataclass(frozen=True)
class Stand:
    """What the measurements use."""

    bus: BusPort
    engine: RemoteEngine
    http: aiohttp.ClientSession
    url: str


async def conversation(stand: Stand, execution: str, turns: int) -> list[float]:
    """Seconds of each call of one growing conversation through the proxy."""
    token = execution_token(SECRET, execution)
    url = f"{stand.url}/x/{token}/v1/chat/completions"
    messages: list[Any] = [{"role": "system", "content": "You work."}, {"role": "user", "content": "write up to a.txt"}]
    seconds = []
    for _ in range(turns):
        body = json.dumps({"model": "m", "messages": messages}).encode()
        start = perf_counter()
        async with stand.http.post(url, data=body, headers={"Authorization": f"Bearer {token}"}) as response:
            answer = await response.read()
        seconds.append(perf_counter() - start)
        reply = json.loads(answer)["choices"][0]["message"]
        messages += [reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": RESULT}]
    return seconds


async def directly(stand: Stand, execution: str) -> list[float]:
    """Seconds of the same calls sent straight to the engine."""
    called = [event for _, event in await read_records(stand.bus, execution, await last_record(stand.bus, execution))]
    tree = fold(execution, called)
    stops = ChatModel.load(NANO).stop_token_ids
    seconds = []
    for record in (event for event in called if isinstance(event, ModelCallRecorded)):
        ids = tuple(ints(context_ids(tree, record.call)))
        request = GenerateRequest(f"d-{record.call}", ids, Sampling(max_tokens=64, seed=1), execution, stops)
        start = perf_counter()
        await stand.engine.generate(request)
        seconds.append(perf_counter() - start)
    return seconds


async def measure(stand: Stand, turns: int, executions: int) -> dict[str, float]:
    """Medians in milliseconds; `late` and `early` are the last and the first third of the turns."""
    await conversation(stand, "warm", turns)
    alone = await conversation(stand, "alone", turns)
    direct = await directly(stand, "alone")
    start = perf_counter()
    together = await asyncio.gather(*(conversation(stand, f"x{n}", turns) for n in range(executions)))
    wall = perf_counter() - start
    third = max(1, turns // 3)
    added = [through - straight for through, straight in zip(alone, direct, strict=True)]
    return {
        "through_ms": 1e3 * median(alone),
        "direct_ms": 1e3 * median(direct),
        "added_ms": 1e3 * median(added),
        "added_early_ms": 1e3 * median(added[:third]),
        "added_late_ms": 1e3 * median(added[-third:]),
        "concurrent_ms": 1e3 * median(second for seconds in together for second in seconds),
        "calls_per_second": executions * turns / wall,
    }


@contextlib.asynccontextmanager
async def buses(kind: str, folder: Path) -> AsyncIterator[tuple[BusPort, BusPort]]:
    """The proxy's bus and everybody else's."""
    if kind == "memory":
        broker = MemoryBroker()
        made = [
            await MemoryBus.connect(broker, RUN, name, f"{name}-1", folder, create=True) for name in ("proxy", "cell")
        ]
        yield made[0], made[1]
        return
    server = NatsServer(folder / "nats")
    server.start()
    try:
        cell = await Bus.connect(server.url, RUN, "cell", "cell-1", folder, create=True)
        proxy = await Bus.connect(server.url, RUN, "proxy", "proxy-1", folder)
        yield proxy, cell
        await proxy.close()
        await cell.close()
    finally:
        server.stop()


@contextlib.asynccontextmanager
async def stood(kind: str, folder: Path, executions: Sequence[str]) -> AsyncIterator[Stand]:
    """Engine and proxy, ready for these executions."""
    line = Line(tuple(ChatModel.load(NANO).encode(CALL)))
    runner = engine_runner(engine_app(ScriptedEngine(lambda _: line, context=1 << 20), lambda: True))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    (folder / "proxy.key").write_bytes(SECRET)
    settings = ProxySettings(RUN, folder, NANO, folder / "proxy.key", 0, 1.0, 64, 1 << 20)
    async with buses(kind, folder) as (proxy_bus, bus), RemoteEngine(engine_url) as engine:
        registered = CellRegistered(cell=0, instance="cell-1", url=engine_url, capacity=8, version=0)
        await bus.ev.append(subjects.ev(RUN, "cell", "cell", 0), commit("c", registered))
        for name in executions:
            await bus.ev.append(subjects.ev(RUN, "runner", "execution", name, "launched"), commit(name, launched(name)))
        serving = asyncio.create_task(serve_proxy(proxy_bus, settings))
        while not (folder / "proxy.url").exists():
            if serving.done():
                serving.result()
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as http:
            yield replace(Stand(bus, engine, http, ""), url=(folder / "proxy.url").read_text())
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    await runner.cleanup()


def commit(name: str, event: Event) -> Commit:
    producer = Producer(service=min(SPEAKERS[event.type]), instance="b")
    return Commit(
        run=RUN,
        producer=producer,
        commit=name,
        causation=0,
        as_of=0,
        correlation=RUN,
        time=time_ns(),
        events=(event,),
    )


def launched(name: str) -> ExecutionLaunched:
    digest = token_digest(execution_token(SECRET, name))
    return ExecutionLaunched(execution=name, group="g", runner="r", token_digest=digest, deadline_seconds=600.0)


async def run(options: argparse.Namespace) -> dict[str, float]:
    names = ["warm", "alone", *(f"x{n}" for n in range(options.executions))]
    with tempfile.TemporaryDirectory() as folder:
        async with stood(options.bus, Path(folder), names) as stand:
            return await measure(stand, options.turns, options.executions)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=60, help="calls of a conversation")
    parser.add_argument("--executions", type=int, default=8, help="conversations at once in the second part")
    parser.add_argument("--bus", choices=("memory", "nats"), default="memory", help="nats: a real server, sync always")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    options = parser.parse_args(arguments)
    result = {"turns": options.turns, "executions": options.executions, "bus": options.bus, **asyncio.run(run(options))}
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:18} {value if isinstance(value, str | int) else round(value, 2)}")


if __name__ == "__main__":
    main()
