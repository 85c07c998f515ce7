"""An agent that asks without end, or sends bodies without end, is told to wait; the log and the others hear nothing."""

import asyncio
import gzip
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from gyre.proxy.bounds import Bounds
from schemas.calls import HistoryRejected, RequestCancelled
from services.proxy.gate import Gate
from tests.proxy.rig import SYSTEM, TASK, Cell, Client, Rig
from tests.proxy.templates import with_template
from tests.proxy.test_faces import APIS, BODIES, ask, kind_of

NEVER = 1e-9
"""Requests a second that no test lives to see."""
Socket = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def begin(client: Client, token: str, *headers: str, body: bytes = b"", path: str = APIS[1]) -> Socket:
    """A request of which the headers are sent, and this much of the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
    head = "\r\n".join([f"POST /x/{token}{path} HTTP/1.1", "Host: x", *headers])
    writer.write(head.encode() + b"\r\n\r\n" + body)
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return int(head[0].split()[1]), headers, json.loads(await reader.readexactly(int(headers["content-length"])))


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not await holds():
            await asyncio.sleep(0.005)


async def test_a_flood_of_requests_that_hang_up_fills_no_log(rig: Rig) -> None:
    rig.bounds = Bounds(burst=4, per_second=NEVER)
    cell = await rig.register(0, Cell(["up up up"] * 9))
    cell.open.clear()
    token, other = await rig.launch(), await rig.launch("x2")
    log = rig.bus("test").ev
    async with rig.proxy() as client:
        for count in range(1, 5):
            body = json.dumps({"messages": [SYSTEM, {"role": "user", "content": f"{count}"}]}).encode()
            _, writer = await begin(client, token, f"Content-Length: {len(body)}", body=body)

            async def asked(count: int = count) -> bool:
                return len(cell.asked) == count

            async def cancelled(count: int = count) -> bool:
                return len(await rig.said(RequestCancelled)) == count

            await until(asked)
            writer.close()
            await until(cancelled)
        before, records = await log.head(), await rig.bus("test").calls.head()
        for path in (*APIS, "/v1/messages/count_tokens"):
            body = json.dumps(BODIES.get(path, BODIES[APIS[0]])).encode()
            reader, writer = await begin(client, token, f"Content-Length: {len(body)}", body=body, path=path)
            status, headers, said = await answer(reader)
            writer.close()
            assert (status, headers["retry-after"]) == (429, f"{10**9}")
            assert kind_of(said) == ("rate_limit_error" if "messages" in path else "rate_limit_exceeded")
        assert (await log.head(), await rig.bus("test").calls.head()) == (before, records)
        cell.open.set()
        assert (await client.reply(other, [SYSTEM, TASK]))["content"] == "up up up"


async def test_answered_calls_count_and_so_do_histories_that_the_template_refuses(rig: Rig) -> None:
    rig.bounds = Bounds(burst=2, per_second=NEVER)
    rig.model = rig.folder / "m"
    refusing = "{% for m in messages %}{% if 'odd' in m.content %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    with_template(rig.model, refusing + "{% endfor %}")
    await rig.register(0, Cell(["one", "two"]))
    tokens = [await rig.launch(name) for name in ("x1", "x2")]
    async with rig.proxy() as client:
        calls = [(await client.post(tokens[0], [TASK], max_tokens=1))[0] for _ in range(3)]
        odd = [(await client.post(tokens[1], [{"role": "user", "content": f"odd {n}"}]))[0] for n in range(3)]
    assert (calls, odd) == ([200, 200, 429], [400, 400, 429])
    assert (len(await rig.records()), len(await rig.said(HistoryRejected))) == (2, 2)


async def test_a_proxy_that_starts_again_lets_an_execution_begin_anew(rig: Rig) -> None:
    rig.bounds = Bounds(burst=1, per_second=NEVER)
    await rig.register(0, Cell(["one", "two"]))
    token = await rig.launch()
    for content in ("a", "b"):
        async with rig.proxy() as client:
            turn = [SYSTEM, {"role": "user", "content": content}]
            assert [(await client.post(token, turn))[0] for _ in range(2)] == [200, 429]


async def test_the_vendors_clients_take_it_for_a_rate_limit(rig: Rig) -> None:
    rig.bounds = Bounds(burst=0, per_second=0.5)
    token = await rig.launch()
    async with (
        rig.proxy() as proxy,
        anthropic.AsyncAnthropic(base_url=f"{proxy.url}/x/{token}", api_key=token, max_retries=0) as claude,
        openai.AsyncOpenAI(base_url=f"{proxy.url}/x/{token}/v1", api_key=token, max_retries=0) as gpt,
    ):
        turn: Any = [TASK]
        with pytest.raises(anthropic.RateLimitError) as of_claude:
            await claude.messages.create(model="any", max_tokens=9, messages=turn)
        with pytest.raises(openai.RateLimitError) as of_chat:
            await gpt.chat.completions.create(model="any", messages=turn)
        with pytest.raises(openai.RateLimitError) as of_responses:
            await gpt.responses.create(model="any", input="up")
    for refused in (of_claude.value, of_chat.value, of_responses.value):
        assert refused.response.headers["retry-after"] == "2"


async def test_one_execution_has_so_many_calls_open_and_no_more_and_another_has_its_own(rig: Rig) -> None:
    rig.bounds = Bounds(open_calls=2)
    cell = await rig.register(0, Cell(["up up up"] * 9))
    cell.open.clear()
    token, other = await rig.launch(), await rig.launch("x2")
    async with rig.proxy() as client:
        turns = [[SYSTEM, {"role": "user", "content": f"{number}"}] for number in range(3)]
        held = [asyncio.create_task(client.reply(token, turn)) for turn in turns[:2]]

        async def asked() -> bool:
            return len(cell.asked) == 2

        await until(asked)
        status, body = await client.post(token, turns[2])
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        held.append(asyncio.create_task(client.reply(other, turns[2])))

        async def asked_by_the_other() -> bool:
            return len(cell.asked) == 3

        await until(asked_by_the_other)
        cell.open.set()
        await asyncio.gather(*held)
        assert (await client.post(token, turns[2]))[0] == 200


async def test_bodies_that_never_end_take_a_fifth_of_the_room_and_another_execution_is_served(rig: Rig) -> None:
    rig.bounds = Bounds(held_bytes=400_000)
    await rig.register(0, Cell(["done", "more"]))
    token, other = await rig.launch(), await rig.launch("x2")
    async with rig.proxy() as client:
        sockets = [await begin(client, token, "Content-Length: 20000", body=b"{") for _ in range(16)]
        pending = {asyncio.create_task(answer(reader)) for reader, _ in sockets}
        refused: set[Any] = set()
        while len(refused) < 12:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED, timeout=30)
            assert done
            refused |= done
        assert {(task.result()[0], task.result()[1]["retry-after"]) for task in refused} == {(503, "1")}
        assert {kind_of(task.result()[2]) for task in refused} == {"server_error"}
        assert (await client.reply(other, [SYSTEM, TASK]))["content"] == "done"
        assert len(pending) == 4
        for task in pending:
            task.cancel()
        for _, writer in sockets:
            writer.close()

        async def room_again() -> bool:
            return (await client.post(token, [SYSTEM, TASK], more="x" * 10_000))[0] == 200

        await until(room_again)


async def test_a_body_in_pieces_is_counted_as_they_come(rig: Rig) -> None:
    rig.bounds = Bounds(held_bytes=1_000_000, body_bytes=150_000)
    token = await rig.launch()
    piece = b"%x\r\n%s\r\n" % (10_000, b" " * 10_000)
    async with rig.proxy() as client:
        reader, writer = await begin(client, token, "Transfer-Encoding: chunked", body=piece * 16, path=APIS[0])
        status, _, body = await answer(reader)
        assert (status, kind_of(body)) == (413, "request_too_large")
        writer.close()
        first, second = [await begin(client, token, "Transfer-Encoding: chunked", body=piece * 14) for _ in range(2)]
        answers = [asyncio.create_task(answer(each[0])) for each in (first, second)]
        done, pending = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert [task.result()[0] for task in done] == [503]
        for task in pending:
            task.cancel()
        for _, writer in (first, second):
            writer.close()


async def test_a_body_is_measured_as_it_is_unpacked(rig: Rig) -> None:
    rig.bounds = Bounds(body_bytes=100_000)
    token = await rig.launch()
    packed = gzip.compress(b" " * 10_000_000)
    async with rig.proxy() as client:
        headers = (f"Content-Length: {len(packed)}", "Content-Encoding: gzip")
        reader, writer = await begin(client, token, *headers, body=packed)
        assert (await answer(reader))[0] == 413
        writer.close()


@pytest.mark.parametrize("path", APIS)
async def test_a_body_that_does_not_come_is_not_waited_for(rig: Rig, path: str) -> None:
    rig.bounds = Bounds(body_seconds=0.02, open_calls=1)
    await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        reader, writer = await begin(client, token, "Content-Length: 100", body=b'{"mes', path=path)
        status, headers, body = await answer(reader)
        assert (status, headers["connection"], kind_of(body)) == (408, "close", "timeout_error")
        assert (await ask(client, token, path))[0] == 200
        writer.close()


async def test_nothing_is_read_of_a_body_whose_token_is_nobodys(rig: Rig) -> None:
    rig.bounds = Bounds(body_seconds=NEVER)
    await rig.launch()
    async with rig.proxy() as client:
        reader, writer = await begin(client, "0" * 64, f"Content-Length: {2**40}")
        assert (await answer(reader))[0] == 401
        writer.close()


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """A process that may open 200 more, until it asks for more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = sum(1 for _ in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_descriptors")
async def test_connections_that_ask_nothing_shut_nobody_out(rig: Rig) -> None:
    await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        port = int(client.url.rpartition(":")[2])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        assert (await client.reply(token, [SYSTEM, TASK]))["content"] == "done"
        for _, writer in idle:
            writer.close()


async def test_connections_without_a_request_are_closed_where_there_are_very_many_and_no_other(rig: Rig) -> None:
    rig.bounds = Bounds(idle_connections=8)
    cell = await rig.register(0, Cell(["up up up"]))
    cell.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        held = asyncio.create_task(client.reply(token, [SYSTEM, TASK]))

        async def asked() -> bool:
            return len(cell.asked) == 1

        await until(asked)
        port = int(client.url.rpartition(":")[2])
        sockets = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        for _, writer in sockets:
            writer.write(b"POST /x/ HTTP/1.1\r\nX-Padding: ")
        closed = asyncio.gather(*(reader.read() for reader, _ in sockets[:22]), return_exceptions=True)
        assert all(each == b"" or isinstance(each, ConnectionError) for each in await asyncio.wait_for(closed, 30))
        cell.open.set()
        assert (await held)["content"] == "up up up"
        for _, writer in sockets:
            writer.close()


def test_more_executions_may_keep_more_connections() -> None:
    gate = Gate(Bounds(idle_connections=8, idle_each=4))
    assert gate.idle(range(20), executions=1) == list(range(12))
    assert gate.idle(range(20), executions=4) == [0, 1, 2, 3]
    assert gate.idle(range(20), executions=5) == []


async def test_what_is_no_http_is_a_line_in_the_log_and_not_one_each_time(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.proxy.http._LINE_SECONDS", 1e9)
    async with rig.proxy() as client:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd")
            assert (await reader.readline()).split()[1] == b"400"
            writer.close()
    assert [record.name for record in caplog.records].count("aiohttp.server") == 1


async def test_a_body_of_very_many_tiny_values_is_refused_unread(rig: Rig) -> None:
    rig.bounds = Bounds(held_bytes=200_000)
    await rig.register(0, Cell(["done"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        status, body = await client.post(token, [SYSTEM, TASK], metadata=[{}] * 1000)
        assert status == 413
        assert body["error"]["message"].endswith("shorten the history, send fewer tiny values")
        assert (await client.post(token, [SYSTEM, TASK], metadata="x" * 5000))[0] == 200


async def test_a_call_under_way_holds_its_body_and_no_more(rig: Rig) -> None:
    rig.bounds = Bounds(held_bytes=330_000)
    cell = await rig.register(0, Cell(["up up up"] * 3))
    cell.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        turns = [[SYSTEM, {"role": "user", "content": f"{number}"}] for number in range(3)]
        held = []
        for count, turn in enumerate(turns[:2], 1):
            held.append(asyncio.create_task(client.reply(token, turn, more="x" * 10_000)))

            async def asked(count: int = count) -> bool:
                return len(cell.asked) == count

            await until(asked)
        assert (await client.post(token, turns[2], more="x" * 10_000))[0] == 503
        cell.open.set()
        await asyncio.gather(*held)
        assert (await client.post(token, turns[2], more="x" * 10_000))[0] == 200
