"""A run on the bus in memory with a scripted model server, and the services that work in it."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bus.log import BusPort, Stored
from bus.memory import MemoryBroker, MemoryBus
from bus.streams import Limits
from gyre.config import Config
from gyre.tasks.word_folders import write_word_tasks
from schemas.dispatch import ExecutionDispatched, LaunchGranted
from schemas.envelope import Event
from services.place import Place

Serve = Callable[[Place, BusPort], Awaitable[None]]
SECRET = b"s" * 32
TASK_FILE = 'version = "1.0"\n[agent]\ntimeout_sec = {seconds}\n[verifier]\ntimeout_sec = 10.0\n'


@dataclass
class Run:
    """One run: its folder, its log, and what the scheduler says in it."""

    folder: Path
    broker: MemoryBroker
    bus: MemoryBus
    config: Config = field(default_factory=Config)
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def task(self, name: str, test: str = "exit 0", seconds: float = 30.0, split: str = "train") -> str:
        """Write a task whose tests are this script."""
        path = self.folder / "tasks" / split / name
        (path / "tests").mkdir(parents=True)
        (path / "environment").mkdir()
        (path / "environment/start.txt").write_text("start\n")
        (path / "task.toml").write_text(TASK_FILE.format(seconds=seconds))
        (path / "instruction.md").write_text(f"Do {name}.\n")
        (path / "tests/test.sh").write_text(f"#!/bin/sh\n{test}\n")
        return name

    def named(self, task: str, workdir: str) -> None:
        """Let the texts of a task call its workspace so."""
        for path in self.folder.glob(f"tasks/*/{task}/task.toml"):
            path.write_text(f'{path.read_text()}[environment]\nworkdir = "{workdir}"\n')

    def configure(self, **sections: dict[str, Any]) -> None:
        self.config = Config.of({**self.config.table(), **sections})

    def harness(self, script: str, **more: Any) -> None:
        """The harness is this shell script."""
        self.configure(harness={"command": ["/bin/sh", "-c", script], "kill_grace": 0.2, **more})

    def place(self, service: str, instance: str = "") -> Place:
        name = instance or f"{service}-{next(self.numbers)}"
        return Place(service, name, "r", self.folder, "memory", self.config)

    async def say(self, service: str, *entity: str, event: Event) -> int:
        place = self.place(service)
        commit = place.commit((event,), as_of=0, correlation="r")
        return await self.bus.ev.append(place.subject(*entity), commit)

    async def dispatch(self, execution: str, task: str, index: int = 0) -> None:
        event = ExecutionDispatched(execution=execution, group="g0", task=task, index=index, version=0, seed=1)
        await self.say("scheduler", "execution", execution, "dispatched", event=event)

    async def grant(self, execution: str) -> None:
        await self.say("scheduler", "execution", execution, "granted", event=LaunchGranted(execution=execution))

    @asynccontextmanager
    async def serving(self, serve: Serve, service: str, instance: str = "") -> AsyncIterator[Place]:
        """A service at work; leaving stops it as SIGTERM would."""
        place = self.place(service, instance)
        bus = await MemoryBus.connect(self.broker, "r", place.service, place.instance, self.folder)
        task = asyncio.ensure_future(serve(place, bus))
        try:
            yield place
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def heard(self, filter_: str, count: int) -> list[Stored]:
        """The first so many messages under a filter, waited for."""
        found: list[Stored] = []
        said = self.bus.ev.read(0, filter_)
        try:
            async with asyncio.timeout(30):
                async for stored in said:
                    found.append(stored)
                    if len(found) == count:
                        return found
        finally:
            await said.aclose()
        raise AssertionError("a log never ends")

    async def count(self, filter_: str) -> int:
        """How many messages lie under a filter now."""
        head, found = await self.bus.ev.last(filter_), 0
        said = self.bus.ev.read(0, filter_)
        while head is not None:
            stored = await anext(said)
            found += 1
            if stored.sequence == head.sequence:
                break
        await said.aclose()
        return found

    def idle(self, queue: Any) -> bool:
        """Whether nothing lies in a queue any more."""
        return not self.broker.run("r").queues[queue]._entries

    async def emptied(self, queue: Any) -> None:
        """Wait until nothing lies in a queue any more."""
        async with asyncio.timeout(30):
            while not self.idle(queue):
                await self.broker.run("r").queues[queue].changed()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.005)


@pytest.fixture
async def run(tmp_path: Path) -> Run:
    broker = MemoryBroker()
    limits = Limits(ack_wait_seconds=30)
    bus = await MemoryBus.connect(broker, "r", "tester", "one", tmp_path, create=True, limits=limits)
    (tmp_path / "proxy.key").write_bytes(SECRET)
    (tmp_path / "proxy.url").write_text("http://127.0.0.1:9")
    for split in ("train", "heldout"):
        write_word_tasks(tmp_path / "tasks" / split, 1, 2, split)  # type: ignore[arg-type]
    return Run(tmp_path, broker, bus)


@dataclass
class Model:
    """A model server: answers every conversation with these messages, turn by turn."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def does(self, *calls: tuple[str, dict[str, Any]]) -> None:
        """One tool call a turn, then the end."""
        self.answers = [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                ],
            }
            for n, (name, arguments) in enumerate(calls)
        ]
        self.answers.append({"role": "assistant", "content": "done"})

    async def answer(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        self.keys.append(request.headers["Authorization"])
        turn = sum(message["role"] == "assistant" for message in (await request.json())["messages"])
        choice = {"index": 0, "message": self.answers[turn], "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})


@pytest.fixture
async def model(run: Run) -> AsyncIterator[Model]:
    """Serves where the proxy would."""
    served = Model()
    app = web.Application()
    app.router.add_post("/x/{token}/v1/chat/completions", served.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    (run.folder / "proxy.url").write_text(f"http://127.0.0.1:{port}\n")
    yield served
    await runner.cleanup()
