"""A proxy on a bus in memory, with scripted engines for cells, and a client."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bus import subjects
from bus.log import Stored
from bus.memory import MemoryBroker, MemoryBus
from gyre.core import tree as trees
from gyre.engines.blocks import KvBlocks
from gyre.engines.port import GenerateRequest, Generation, Generator
from gyre.engines.scripted import Line, ScriptedEngine
from gyre.models.load import NANO
from gyre.proxy.bounds import BOUNDS, Bounds
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.tokens import execution_token, token_digest
from schemas.calls import ModelCallRecorded
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Commit, Event, Producer
from schemas.roles import CellRegistered
from services.proxy.service import ProxySettings, serve_proxy

RUN = "r"
SECRET = b"k" * 32
MODEL = ChatModel.load(NANO)
WRITE = '<tool_call>{"name":"write","arguments":{"path":"a.txt","content":"up"}}</tool_call>'
SYSTEM = {"role": "system", "content": "You work in a folder."}
TASK = {"role": "user", "content": "write up to a.txt"}


class Cell:
    """A scripted engine whose pace is held until told, and what it was asked."""

    def __init__(self, texts: list[str], version: int = 0) -> None:
        self.texts = texts
        self.asked: list[GenerateRequest] = []
        self.given: list[Generation] = []
        self.engine = ScriptedEngine(self._line, pace=self._pace, version=version)
        self.pace = True
        self.open = asyncio.Event()
        self.open.set()
        self.tokens = 0
        self.spoke = asyncio.Event()
        self.others: dict[str, Cell] = {}
        self.released: list[str] = []

    def _line(self, request: GenerateRequest) -> Line:
        ids = tuple(MODEL.encode(self.texts.pop(0)))
        return Line(ids, tuple(-0.25 * (i + 1) for i in range(len(ids))))

    async def _pace(self) -> None:
        """Two tokens come at once, the others when it is open."""
        self.tokens += 1
        if not self.pace:
            return
        if self.tokens > 2:
            self.spoke.set()
            await self.open.wait()
        await asyncio.sleep(0)

    async def generate(self, request: GenerateRequest) -> Generation:
        self.asked.append(request)
        generation = await self.engine.generate(request)
        self.given.append(generation)
        return generation

    async def abort(self, request_id: str) -> None:
        await self.engine.abort(request_id)

    async def abort_all(self) -> None:
        await self.engine.abort_all()

    async def health(self) -> Any:
        return await self.engine.health()

    async def export_kv(self, key: str, version: int) -> KvBlocks:
        return await self.engine.export_kv(key, version)

    async def release_kv(self, key: str) -> None:
        self.released.append(key)
        await self.engine.release_kv(key)

    async def take_kv(self, key: str, source: str) -> int:
        """Cells of a rig know each other by the names that stand for URLs."""
        other = self.others[source]
        tokens = await self.engine.import_kv(await other.export_kv(key, self.engine.version))
        await other.release_kv(key)
        return tokens

    async def close(self) -> None:
        """The cell's own, not the proxy's, to close."""


@dataclass
class Rig:
    folder: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    cells: dict[str, Cell] = field(default_factory=dict)
    keep_alive: float = 10.0
    handoff: float = 2.0
    max_tokens: int = 48
    context: int = 400
    model: Path = NANO
    host: str = "127.0.0.1"
    bounds: Bounds = BOUNDS
    starts: int = 0

    def bus(self, service: str) -> Any:
        instance = f"{service}-{self.starts}"
        return MemoryBus(self.broker, RUN, service, instance, self.folder)

    async def say(self, service: str, entity: tuple[str, ...], *events: Event) -> int:
        self.starts += 1
        commit = Commit(
            run=RUN,
            producer=Producer(service=service, instance="t"),
            commit=f"c{self.starts}",
            causation=0,
            as_of=0,
            correlation=RUN,
            time=1,
            events=events,
        )
        return int(await self.bus(service).ev.append(subjects.ev(RUN, service, *entity), commit))

    async def register(self, index: int, cell: Cell) -> Cell:
        self.cells[f"cell{index}"] = cell
        cell.others = self.cells
        event = CellRegistered(cell=index, instance=f"i{index}", url=f"cell{index}", capacity=4, version=0)
        await self.say("cell", ("cell", str(index)), event)
        return cell

    async def launch(self, execution: str = "x1") -> str:
        token = execution_token(SECRET, execution)
        dispatched = ExecutionDispatched(execution=execution, group="g", task="t", index=0, version=0, seed=5)
        await self.say("scheduler", ("execution", execution, "dispatched"), dispatched)
        launched = ExecutionLaunched(
            execution=execution, group="g", runner="w", token_digest=token_digest(token), deadline_seconds=9.0
        )
        await self.say("runner", ("execution", execution, "launched"), launched)
        return token

    async def terminate(self, execution: str = "x1") -> None:
        event = ExecutionTerminated(
            execution=execution,
            group="g",
            task="t",
            reason="completed",
            stage="agent",
            exit_code=0,
            seconds=1.0,
            state=None,
        )
        await self.say("runner", ("execution", execution, "terminated"), event)

    @contextlib.asynccontextmanager
    async def proxy(self) -> AsyncIterator["Client"]:
        self.starts += 1
        note = self.folder / "proxy.url"
        settings = ProxySettings(
            *(RUN, self.folder, self.model, self.folder / "proxy.key", 3, 1.0, self.max_tokens, self.context),
            keep_alive_seconds=self.keep_alive,
            handoff_seconds=self.handoff,
            host=self.host,
            bounds=self.bounds,
        )
        written = note.stat().st_mtime_ns if note.exists() else 0
        serving = asyncio.create_task(serve_proxy(self.bus("proxy"), settings, self._connect))
        async with asyncio.timeout(30):
            while not note.exists() or note.stat().st_mtime_ns == written:
                if serving.done():
                    serving.result()
                await asyncio.sleep(0.005)
        async with aiohttp.ClientSession() as http:
            try:
                yield Client(http, note.read_text())
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    def _connect(self, url: str) -> Generator:
        return self.cells[url]

    async def records(self, execution: str = "x1") -> list[ModelCallRecorded]:
        bus = self.bus("test")
        stored = [await bus.calls.get(n + 1) for n in range(await bus.calls.head())]
        events = [event for each in stored if each and each.commit for event in each.commit.events]
        return [e for e in events if isinstance(e, ModelCallRecorded) and e.execution == execution]

    async def tree(self, execution: str = "x1") -> trees.Tree:
        return trees.fold(execution, await self.records(execution))

    async def until(self, kind: type[Any], execution: str = "x1") -> tuple[Stored, Any]:
        """The first such event about an execution, whenever it comes."""
        async with asyncio.timeout(30), contextlib.aclosing(self.bus("test").ev.read(0)) as stream:
            async for stored in stream:
                for event in stored.commit.events if stored.commit else ():
                    if isinstance(event, kind) and event.execution == execution:
                        return stored, event
        raise AssertionError

    async def said(self, kind: type[Any]) -> list[Any]:
        bus = self.bus("test")
        stored = [await bus.ev.get(n + 1) for n in range(await bus.ev.head())]
        return [
            event for each in stored if each and each.commit for event in each.commit.events if isinstance(event, kind)
        ]


@dataclass
class Client:
    http: aiohttp.ClientSession
    url: str

    async def post(self, token: str, messages: list[Any], **more: Any) -> tuple[int, Any]:
        async with self.start(token, messages, **more) as response:
            return response.status, json.loads(await response.read())

    def start(self, token: str, messages: list[Any], **more: Any) -> Any:
        body = {"model": "any", "messages": messages, **more}
        headers = {"Authorization": f"Bearer {token}"}
        return self.http.post(f"{self.url}/x/{token}/v1/chat/completions", json=body, headers=headers)

    async def reply(self, token: str, messages: list[Any], **more: Any) -> dict[str, Any]:
        status, body = await self.post(token, messages, **more)
        assert status == 200, body
        message: dict[str, Any] = body["choices"][0]["message"]
        return message


def events(body: bytes) -> Iterator[Any]:
    """The JSON of each event; the last is [DONE]."""
    lines = [line for line in body.split(b"\n\n") if line]
    assert lines[-1] == b"data: [DONE]"
    for line in lines[:-1]:
        assert line.startswith(b"data: ")
        yield json.loads(line[6:])


def assembled(chunks: list[Any]) -> dict[str, Any]:
    """The message that a stream adds up to."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    content = "".join(delta.get("content") or "" for delta in deltas)
    calls = [
        {key: value for key, value in call.items() if key != "index"}
        for delta in deltas
        for call in delta.get("tool_calls", ())
    ]
    return {"role": "assistant", "content": content or None} | ({"tool_calls": calls} if calls else {})


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
