"""Clients that hang up before, while and after they are answered: what CALL says of it, and what they get when back."""

import asyncio
import json
import socket
import struct
import threading
from typing import Any

import pytest
from aiohttp import web

from bus.log import Expect
from bus.memory import MemoryLog
from gyre.core import tree as trees
from gyre.core.leaves import summaries
from gyre.core.tree import record_digest, records_digest
from schemas.calls import DeliveryCorrected, RecordsSealed
from schemas.envelope import Commit
from schemas.rewards import TreeBuilt
from services.builder import serve_builder
from services.records import last_record, read_records
from tests.proxy.families import QWEN3
from tests.proxy.rig import SYSTEM, TASK, Cell, Rig
from tests.proxy.templates import with_template


class Gate:
    """Holds back what a proxy says in CALL."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        append = MemoryLog.append

        async def held(log: MemoryLog, subject: str, commit: Commit, expect: Expect | None = None) -> int:
            if subject.startswith("call."):
                self.reached.set()
                await self.open.wait()
            return await append(log, subject, commit, expect)

        monkeypatch.setattr(MemoryLog, "append", held)


class Raw:
    """A client that is nothing but a socket."""

    def __init__(self, url: str, receive_bytes: int = 0) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect((host, int(port)))

    def ask(self, token: str, **more: Any) -> None:
        body = json.dumps({"model": "any", "messages": [SYSTEM, TASK], **more}).encode()
        head = f"POST /x/{token}/v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)

    async def read_until(self, end: bytes) -> bytes:
        found = b""
        while not found.endswith(end):
            piece = await asyncio.to_thread(self.socket.recv, 65536)
            assert piece, found
            found += piece
        return found

    def close(self, *, reset: bool = False) -> None:
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


async def long_winded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> tuple[Cell, str]:
    """A cell with an answer that is more than the sockets between proxy and client hold while nobody reads."""
    prepare = web.StreamResponse.prepare

    async def narrowed(response: web.StreamResponse, request: web.BaseRequest) -> Any:
        assert request.transport is not None
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return await prepare(response, request)

    monkeypatch.setattr(web.StreamResponse, "prepare", narrowed)
    rig.max_tokens, rig.context = 2000, 2400
    text = "assistant" * 1800
    cell = await rig.register(0, Cell([text]))
    cell.pace = False
    return cell, text


async def called(rig: Rig) -> list[trees.Called]:
    bus = rig.bus("test")
    return [event for _, event in await read_records(bus, "x1", await last_record(bus, "x1"))]


async def until_called(rig: Rig, count: int) -> list[trees.Called]:
    """What CALL holds, once that are so many events."""
    async with asyncio.timeout(30):
        while len(found := await called(rig)) < count:
            await asyncio.sleep(0.005)
    return found


def received(found: list[trees.Called]) -> bool:
    (node,) = trees.fold("x1", found).nodes.values()
    return node.delivered


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
async def test_an_answer_recorded_for_a_client_that_hangs_up_then_is_not_delivered_until_it_asks_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, stream: bool, reset: bool
) -> None:
    gate = Gate(monkeypatch)
    cell = await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        raw = Raw(client.url)
        raw.ask(token, stream=stream)
        await gate.reached.wait()
        raw.close(reset=reset)
        gate.open.set()
        found = await until_called(rig, 2)
        assert [type(event).__name__ for event in found] == ["ModelCallRecorded", "DeliveryCorrected"]
        assert not received(found)
        assert [leaf.role for leaf in summaries(trees.fold("x1", found))] == ["abandoned"]
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == "done"
        assert received(await until_called(rig, 3))
    assert len(cell.asked) == len(await rig.records()) == 1


async def test_an_answer_is_not_delivered_to_a_client_that_hangs_up_before_its_last_byte(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, text = await long_winded(rig, monkeypatch)
    token = await rig.launch()
    async with rig.proxy() as client:
        raw = Raw(client.url, receive_bytes=2048)
        raw.ask(token, stream=True)
        assert (await asyncio.to_thread(raw.socket.recv, 64)).startswith(b"HTTP/1.1 200")
        assert received(await until_called(rig, 1))
        raw.close()
        assert not received(await until_called(rig, 2))
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == text
        assert received(await until_called(rig, 3))
    assert len(cell.asked) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_read_to_its_last_byte_is_delivered_and_the_same_request_is_another_call(
    rig: Rig, stream: bool
) -> None:
    await rig.register(0, Cell(["one", "two"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        raw = Raw(client.url)
        raw.ask(token, stream=stream)
        await raw.read_until(b"0\r\n\r\n" if stream else b"}")
        raw.close()
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == "two"
    assert not [event for event in await called(rig) if isinstance(event, DeliveryCorrected)]
    assert all(record.delivered for record in await rig.records())


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_delivered_to_a_client_that_closes_before_the_proxy_looks_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    write_eof, gone = web.StreamResponse.write_eof, threading.Event()

    async def outrun(response: web.StreamResponse, data: bytes = b"") -> None:
        await write_eof(response, data)
        assert gone.wait(30)  # the client is quicker than this process

    monkeypatch.setattr(web.StreamResponse, "write_eof", outrun)
    await rig.register(0, Cell(["one", "two"]))
    token = await rig.launch()

    def read_and_close(url: str) -> None:
        raw, found = Raw(url), b""
        raw.ask(token, stream=stream)
        while not found.endswith(b"0\r\n\r\n" if stream else b"}"):
            found += raw.socket.recv(65536)
        raw.close()
        gone.set()

    async with rig.proxy() as client:
        await asyncio.to_thread(read_and_close, client.url)
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == "two"
    assert not [event for event in await called(rig) if isinstance(event, DeliveryCorrected)]


async def test_of_two_clients_of_one_answer_the_one_that_stays_makes_it_delivered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        raws = [Raw(client.url) for _ in range(2)]
        for raw in raws:
            raw.ask(token)
        await gate.reached.wait()
        raws[0].close()
        gate.open.set()
        assert b"done" in await raws[1].read_until(b"}")
        raws[1].close()
    assert received(await called(rig))
    assert len(await called(rig)) == 1


async def test_a_proxy_that_stops_says_which_answers_reached_nobody_and_the_next_one_gives_them_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = await long_winded(rig, monkeypatch)
    token = await rig.launch()
    async with rig.proxy() as client:
        raw = Raw(client.url, receive_bytes=2048)
        raw.ask(token, stream=True)
        await until_called(rig, 1)
    raw.close()
    assert not received(await called(rig))
    async with rig.proxy() as client:
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == text
        assert received(await until_called(rig, 3))


async def test_an_answer_that_a_client_goes_on_from_did_arrive_whoever_hung_up_on_it_since(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, text = await long_winded(rig, monkeypatch)
    rig.context = 6000
    cell.texts.append("done")
    token = await rig.launch()
    async with rig.proxy() as client:
        reply = await client.reply(token, [SYSTEM, TASK])
        assert reply["content"] == text
    async with rig.proxy() as client:
        raw = Raw(client.url, receive_bytes=2048)
        raw.ask(token, stream=True)
        assert (await asyncio.to_thread(raw.socket.recv, 64)).startswith(b"HTTP/1.1 200")
        raw.close()
        assert not received(await until_called(rig, 2))
        history = [SYSTEM, TASK, reply, {"role": "user", "content": "and now?"}]
        assert (await client.reply(token, history))["content"] == "done"
        tree = trees.fold("x1", await until_called(rig, 4))
    assert [node.delivered for node in tree.nodes.values()] == [True, True]
    assert len(cell.asked) == 2


async def test_an_answer_whose_thought_the_template_drops_later_did_arrive_at_who_goes_on_from_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, text = await long_winded(rig, monkeypatch)
    rig.context, rig.model = 6000, rig.folder / "qwen3"
    with_template(rig.model, QWEN3)
    cell.texts[:] = [f"<think>\nhm\n</think>\n\n{text}", "done", "anew"]
    token = await rig.launch()
    async with rig.proxy() as client:
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == text
    async with rig.proxy() as client:
        raw = Raw(client.url, receive_bytes=2048)
        raw.ask(token, stream=True)
        assert (await asyncio.to_thread(raw.socket.recv, 64)).startswith(b"HTTP/1.1 200")
        raw.close()
        assert not received(await until_called(rig, 2))
        history = [SYSTEM, TASK, {"role": "assistant", "content": text}, {"role": "user", "content": "and now?"}]
        assert (await client.reply(token, history))["content"] == "done"
        tree = trees.fold("x1", await until_called(rig, 4))
    first, second = tree.nodes.values()
    assert (second.parent, second.prefix_tokens < first.context) == (
        first.call,
        True,
    )  # rendered from before the answer
    assert (first.delivered, second.delivered) == (True, True)
    assert [leaf.role for leaf in summaries(tree)] == ["main", "main"]
    async with rig.proxy() as client:
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == "anew"


async def test_an_answer_still_on_its_way_when_its_execution_ends_is_sealed_as_received_by_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await long_winded(rig, monkeypatch)
    token = await rig.launch()
    building = asyncio.create_task(serve_builder(rig.bus("builder")))
    async with rig.proxy() as client:
        raw = Raw(client.url, receive_bytes=2048)
        raw.ask(token, stream=True)
        await until_called(rig, 1)
        await rig.terminate()
        _, sealed = await rig.until(RecordsSealed)
        _, built = await rig.until(TreeBuilt)
        raw.close()
    building.cancel()
    found = await called(rig)
    assert (sealed.count, sealed.last_sequence, len(found)) == (1, 2, 2)
    assert sealed.digest == records_digest(record_digest(event) for event in found)
    assert [leaf.role for leaf in built.leaves] == ["abandoned"]
    assert built.digest == trees.digest(trees.fold("x1", found))
