"""Everything that a client meets: a nats-server, the proxy, a scripted policy behind HTTP, and a bad network."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import time_ns

from aiohttp import web

from bus import subjects
from bus.jetstream import Bus
from bus.log import BusPort
from bus.server import NatsServer
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.template import Template
from gyre.proxy.tokens import execution_token, token_digest
from schemas.calls import ModelCallRecorded, RecordsSealed
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Commit, Event, Producer
from schemas.roles import CellRegistered
from services.engine_server import engine_app, engine_runner
from services.proxy.service import ProxySettings, serve_proxy
from services.records import read_records
from tests.clients.engine import CONTEXT, Policy
from tests.clients.faults import Faults, network
from tests.clients.script import Script
from tests.proxy.families import write_model

RUN, SECRET = "clients", b"k" * 32
MOST_TOKENS = 4096


@dataclass(frozen=True)
class Stand:
    """What stands; `folder` holds `proxy.url` and `proxy.key` as an episode looks for them."""

    bus: BusPort
    folder: Path
    faults: Faults
    policy: Policy

    async def launch(self, execution: str, seconds: float) -> str:
        """Open an execution; its token."""
        token = execution_token(SECRET, execution)
        dispatched = ExecutionDispatched(execution=execution, group="g", task=execution, index=0, version=0, seed=5)
        await say(self.bus, f"{execution}-d", ("scheduler", "execution", execution, "dispatched"), dispatched)
        launched = ExecutionLaunched(
            execution=execution, group="g", runner="w", token_digest=token_digest(token), deadline_seconds=seconds
        )
        await say(self.bus, f"{execution}-l", ("runner", "execution", execution, "launched"), launched)
        return token

    async def records(self, execution: str, seconds: float) -> list[ModelCallRecorded]:
        """End an execution, wait until the proxy has sealed it, and read all of its records."""
        ended = ExecutionTerminated(
            execution=execution,
            group="g",
            task=execution,
            reason="completed",
            stage="agent",
            exit_code=0,
            seconds=seconds,
            state=None,
        )
        await say(self.bus, f"{execution}-t", ("runner", "execution", execution, "terminated"), ended)
        subject = subjects.ev(RUN, "proxy", "execution", execution)
        async with asyncio.timeout(30), contextlib.aclosing(self.bus.ev.read(0, subject)) as stream:
            async for stored in stream:
                for event in stored.commit.events if stored.commit else ():
                    if isinstance(event, RecordsSealed):
                        found = await read_records(self.bus, execution, event.last_sequence)
                        assert len(found) == event.count, f"{event.count} records sealed, {len(found)} read"
                        return [record for _, record in found]
        raise AssertionError


@contextlib.asynccontextmanager
async def stood(folder: Path, scripts: Mapping[str, Script]) -> AsyncIterator[Stand]:
    """A stand for these executions; its model's template shows all of a prompt: clients compact by its size."""
    behind, front = folder / "proxy", folder / "episodes"
    for each in (behind, front):
        each.mkdir()
        (each / "proxy.key").write_bytes(SECRET)
    model = write_model(folder / "model", "qwen25")
    settings = ProxySettings(RUN, behind, model, behind / "proxy.key", 0, 1.0, MOST_TOKENS, CONTEXT)
    policy = Policy(scripts, Template(ChatModel.load(model)))
    runner = engine_runner(engine_app(policy, lambda: True))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    registered = CellRegistered(
        cell=0, instance="cell-1", url=f"http://127.0.0.1:{runner.addresses[0][1]}", capacity=16, version=0
    )
    server = NatsServer(folder / "nats").start()
    bus = await Bus.connect(server.url, RUN, "runner", "runner-1", behind, create=True)
    try:
        await say(bus, "cell", ("cell", "cell", "0"), registered)
        async with _served(server, settings) as url, network(url) as (faults, shown):
            (front / "proxy.url").write_text(shown)
            yield Stand(bus, front, faults, policy)
    finally:
        await bus.close()
        server.stop()
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _served(server: NatsServer, settings: ProxySettings) -> AsyncIterator[str]:
    """The proxy, and its URL."""
    bus = await Bus.connect(server.url, RUN, "proxy", "proxy-1", settings.folder)
    serving = asyncio.create_task(serve_proxy(bus, settings))
    note = settings.folder / "proxy.url"
    try:
        while not note.exists():
            if serving.done():
                serving.result()
            await asyncio.sleep(0.01)
        yield note.read_text()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await bus.close()


async def say(bus: BusPort, name: str, place: tuple[str, ...], event: Event) -> None:
    """Say an event in another service's name."""
    commit = Commit(
        run=RUN,
        producer=Producer(service=place[0], instance="t"),
        commit=name,
        causation=0,
        as_of=0,
        correlation=RUN,
        time=time_ns(),
        events=(event,),
    )
    await bus.ev.append(subjects.ev(RUN, *place), commit)
