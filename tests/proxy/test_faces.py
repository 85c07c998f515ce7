"""The proxy's HTTP face in each protocol: paths, keys, errors, waiting, and what cuts an answer."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gyre.errors import GyreError
from gyre.proxy.bounds import Bounds
from gyre.proxy.errors import TemplateUnusable
from schemas.base import ints
from schemas.calls import RecordsSealed
from tests.proxy.rig import MODEL, RUN, WRITE, Cell, Client, Rig

APIS = ("/v1/messages", "/v1/chat/completions", "/v1/responses")
CHAT = {"messages": [{"role": "user", "content": "write up"}]}
BODIES: dict[str, dict[str, Any]] = {APIS[0]: {**CHAT, "max_tokens": 48}, APIS[1]: CHAT, APIS[2]: {"input": "write up"}}


async def ask(client: Client, token: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of a POST; without headers there is no key but the one in the path."""
    url = f"{client.url}/x/{token}{path}"
    async with client.http.post(url, json=BODIES[path] if body is None else body, headers=headers) as response:
        return response.status, json.loads(await response.read())


def text_of(body: Any) -> str:
    """The text of an answer in any of the protocols."""
    if "choices" in body:
        return str(body["choices"][0]["message"]["content"])
    return str((body.get("content") or body["output"][0]["content"])[0]["text"])


def kind_of(body: Any) -> str:
    """The type of an error in any of the protocols."""
    assert body.get("type", "error") == "error"
    return str(body["error"]["type"])


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("front", ["", "/rollout/r-1", "/v1"])
async def test_an_api_is_found_behind_any_prefix_and_without_its_version(rig: Rig, path: str, front: str) -> None:
    await rig.register(0, Cell(["one", "two"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        answers = [
            await ask(client, token, each, BODIES[path]) for each in (front + path, front + path.removeprefix("/v1"))
        ]
    assert [(status, text_of(body)) for status, body in answers] == [(200, "one"), (200, "two")]


async def test_a_query_string_changes_nothing_and_probes_are_answered(rig: Rig) -> None:
    await rig.register(0, Cell(["one"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        assert (await ask(client, token, "/v1/messages?beta=true", BODIES[APIS[0]]))[0] == 200
        base = f"{client.url}/x/{token}"
        async with client.http.head(f"{base}/api/hello") as response:
            assert (response.status, await response.read()) == (200, b"")
        async with client.http.get(f"{base}/v1/models/any") as response:
            assert (await response.json())["id"] == "any"
        async with client.http.get(f"{base}/v1/messages") as response:
            assert response.status == 404
        async with client.http.head(f"{client.url}/x/nobody/api/hello") as response:
            assert response.status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer TOKEN"}, 200),
        ({"authorization": "bearer TOKEN"}, 200),
        ({"x-api-key": "TOKEN"}, 200),
        ({"x-api-key": "TOKEN", "Authorization": "Bearer other"}, 200),
        ({"x-api-key": "other"}, 401),
        ({"Authorization": "Bearer other"}, 401),
        ({"Authorization": "TOKEN"}, 200),
    ],
)
async def test_a_key_beside_the_token_must_be_the_token(rig: Rig, headers: dict[str, str], status: int) -> None:
    await rig.register(0, Cell(["one"]))
    token = await rig.launch()
    sent = {name: value.replace("TOKEN", token) for name, value in headers.items()}
    async with rig.proxy() as client:
        assert (await ask(client, token, APIS[0], **sent))[0] == status


@pytest.mark.parametrize(
    ("path", "unknown", "refused"),
    [
        (APIS[0], "authentication_error", "invalid_request_error"),
        (APIS[1], "authentication_error", "invalid_request_error"),
        (APIS[2], "authentication_error", "invalid_request_error"),
    ],
)
async def test_refusals_speak_the_protocol_of_their_path(rig: Rig, path: str, unknown: str, refused: str) -> None:
    await rig.register(0, Cell([]))
    token = await rig.launch()
    long = [{"role": "user", "content": "up " * 500}]
    async with rig.proxy() as client:
        status, body = await ask(client, "nobody", path)
        assert (status, kind_of(body), "type" in body) == (401, unknown, path == APIS[0])
        status, body = await ask(client, token, path, {**BODIES[path], "messages": long, "input": long})
        assert (status, kind_of(body), "type" in body) == (400, refused, path == APIS[0])
        assert body["error"]["message"].startswith("prompt is too long: ")
        status, body = await ask(client, token, path, [1])
        assert (status, kind_of(body)) == (400, refused)


async def test_a_path_that_is_no_api_is_not_found_in_the_callers_protocol(rig: Rig) -> None:
    token = await rig.launch()
    async with rig.proxy() as client:
        status, body = await ask(client, token, "/v1/embeddings", {})
        assert (status, body["error"]["type"]) == (404, "not_found_error")
        status, body = await ask(client, token, "/v1/files", {}, **{"anthropic-version": "2023-06-01"})
        assert (status, body["type"]) == (404, "error")
        async with client.http.get(f"{client.url}/elsewhere") as response:
            assert response.status == 404
            assert (await response.json())["error"]["message"] == "path: must begin with /x/<token>"


async def test_a_body_beyond_the_limit_is_refused_in_the_protocols_words(rig: Rig) -> None:
    rig.bounds = Bounds(body_bytes=1000)
    token = await rig.launch()
    async with rig.proxy() as client:
        status, body = await ask(client, token, APIS[0], {"messages": "x" * 2000})
    assert (status, kind_of(body)) == (413, "request_too_large")


async def test_tokens_are_counted_as_the_next_call_has_them(rig: Rig) -> None:
    cell = await rig.register(0, Cell([WRITE, "done"]))
    token = await rig.launch()
    tools = [{"name": "write", "input_schema": {"type": "object"}}]
    body = {**BODIES[APIS[0]], "max_tokens": 48, "tools": tools, "system": "You work."}
    async with rig.proxy() as client:
        for turn in range(2):
            _, counted = await ask(client, token, "/v1/messages/count_tokens", body)
            _, said = await ask(client, token, APIS[0], body)
            assert counted == {"input_tokens": len(cell.asked[turn].input_ids)}
            assert said["usage"]["input_tokens"] == counted["input_tokens"]
            result = {"type": "tool_result", "tool_use_id": said["content"][-1].get("id"), "content": "ok"}
            body["messages"] = [
                *body["messages"],
                {"role": "assistant", "content": said["content"]},
                {"role": "user", "content": [result]},
            ]
    assert [record.index for record in await rig.records()] == [0, 1]
    assert (await rig.records())[1].parent == "x1-c0"


@pytest.mark.parametrize("path", APIS[:2])
async def test_a_stop_text_cuts_the_answer_and_exactly_what_was_kept_is_recorded(rig: Rig, path: str) -> None:
    cell = await rig.register(0, Cell(["one two STOP three", "four"]))
    token = await rig.launch()
    stops = {"stop": ["STOP", "three"], "stop_sequences": ["STOP", "three"], "max_tokens": 48}
    async with rig.proxy() as client:
        _, said = await ask(client, token, path, {**BODIES[path], **stops})
        assert text_of(said) == "one two "
        turns = [*CHAT["messages"], {"role": "assistant", "content": "one two "}, {"role": "user", "content": "go"}]
        await ask(client, token, path, {"messages": turns, "max_tokens": 9})
    first, second = await rig.records()
    kept = ints(first.output_ids)
    assert tuple(kept) == cell.given[0].output_ids[: len(kept)]
    assert MODEL.decode(kept).endswith("STOP")
    assert "STOP" not in MODEL.decode(kept[:-1])
    assert len(kept) == sum(span.tokens for span in first.versions) == len(first.logprobs) // 4
    assert (first.finish, first.stop_sequence) == ("stop", "STOP")
    assert (second.parent, second.stop_sequence) == (first.call, "")
    if path == APIS[0]:
        assert (said["stop_reason"], said["stop_sequence"]) == ("stop_sequence", "STOP")
        assert said["usage"]["output_tokens"] == len(kept)
    else:
        assert said["choices"][0]["finish_reason"] == "stop"


async def test_an_answer_that_a_stop_text_cut_is_the_same_from_a_restarted_proxy(rig: Rig) -> None:
    await rig.register(0, Cell(["one STOP two"]))
    token = await rig.launch()
    body = {**BODIES[APIS[0]], "stop_sequences": ["STOP"]}
    async with rig.proxy() as client:
        _, first = await ask(client, token, APIS[0], body)
    async with rig.proxy() as client:
        assert await ask(client, token, APIS[0], body) == (200, first)


@pytest.mark.parametrize(
    ("text", "first", "then"),
    [
        ("one STOP two", {"stop_sequences": ["STOP"]}, {}),
        ("one STOP two", {}, {"stop_sequences": ["STOP"]}),
        ("one two three", {"max_tokens": 2}, {}),
        ("one two three", {}, {"max_tokens": 2}),
        (WRITE, {"tool_choice": {"type": "none"}}, {}),
        (WRITE, {}, {"tool_choice": {"type": "none"}}),
    ],
)
async def test_a_request_that_asks_otherwise_is_never_given_an_answer_that_did_not_arrive(
    rig: Rig, text: str, first: dict[str, Any], then: dict[str, Any]
) -> None:
    cell = await rig.register(0, Cell([text, "more"]))
    token = await rig.launch()
    for told in (first, then):
        async with rig.proxy() as client:
            assert (await ask(client, token, APIS[0], {**BODIES[APIS[0]], **told}))[0] == 200
    assert len(cell.asked) == len(await rig.records()) == 2


async def test_another_thread_is_never_given_an_answer_that_did_not_arrive(rig: Rig) -> None:
    cell = await rig.register(0, Cell(["one", "two"]))
    token = await rig.launch()
    said = []
    for name in ("a", "b", "a"):
        async with rig.proxy() as client:
            named = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": name}
            said.append(text_of((await ask(client, token, APIS[0], **named))[1]))
    assert said == ["one", "two", "one"]
    assert len(cell.asked) == 2


async def test_without_tools_to_choose_calls_stay_text(rig: Rig) -> None:
    await rig.register(0, Cell([WRITE] * 3))
    token = await rig.launch()
    async with rig.proxy() as client:
        for path, none in ((APIS[0], {"type": "none"}), (APIS[1], "none"), (APIS[2], "none")):
            _, said = await ask(client, token, path, {**BODIES[path], "max_tokens": 48, "tool_choice": none})
            assert text_of(said) == WRITE


async def test_equal_bodies_of_two_threads_are_two_calls(rig: Rig) -> None:
    cell = await rig.register(0, Cell(["one", "two"]))
    token = await rig.launch()
    async with rig.proxy() as client:
        answers = await asyncio.gather(
            *(ask(client, token, APIS[0], **{"x-claude-code-agent-id": name}) for name in ("a", "b"))
        )
    assert {text_of(body) for _, body in answers} == {"one", "two"}
    assert len(cell.asked) == len(await rig.records()) == 2


async def test_a_whole_answer_that_is_long_in_coming_is_kept_alive_by_white_space(rig: Rig) -> None:
    rig.keep_alive = 0.01
    cell = await rig.register(0, Cell(["done"]))
    cell.tokens = 2
    cell.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client:
        url = f"{client.url}/x/{token}{APIS[1]}"
        async with client.http.post(url, json=CHAT) as response:
            assert await response.content.readexactly(3) == b"   "
            cell.open.set()
            assert text_of(json.loads(await response.read())) == "done"


async def test_an_error_behind_white_space_breaks_the_connection_off_and_the_client_asks_again(rig: Rig) -> None:
    rig.keep_alive = 0.01
    cell = await rig.register(0, Cell(["done"]))
    cell.tokens = 2
    cell.open.clear()
    token = await rig.launch()
    async with rig.proxy() as client, client.http.post(f"{client.url}/x/{token}{APIS[1]}", json=CHAT) as response:
        await response.content.readexactly(1)
        await rig.terminate()
        with pytest.raises(aiohttp.ClientError):
            await response.read()


@pytest.mark.parametrize("path", APIS)
async def test_a_full_log_is_503_in_the_protocols_words_and_ends_nothing(rig: Rig, path: str) -> None:
    await rig.register(0, Cell(["one", "two"]))
    token = await rig.launch()
    calls = rig.broker.run(RUN).calls
    limit, calls.max_bytes = calls.max_bytes, 0
    async with rig.proxy() as client:
        status, body = await ask(client, token, path)
        assert (status, kind_of(body)) == (503, "overloaded_error" if path == APIS[0] else "server_error")
        assert body["error"]["message"].endswith("cannot be recorded, the log is full")
        calls.max_bytes = limit
        assert text_of((await ask(client, token, path))[1]) == "two"


async def test_a_seal_waits_until_the_log_takes_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.proxy.service._SEAL_PAUSE_SECONDS", 0.01)
    tried = asyncio.Event()
    monkeypatch.setattr("services.proxy.service._LOG.error", lambda *_: tried.set())
    await rig.launch()
    await rig.terminate()
    log = rig.broker.run(RUN).ev
    limit, log.max_bytes = log.max_bytes, 0
    async with rig.proxy():
        await asyncio.wait_for(tried.wait(), 30)
        log.max_bytes = limit
        _, sealed = await rig.until(RecordsSealed)
    assert sealed.count == 0


@pytest.mark.parametrize("path", APIS)
async def test_a_proxy_that_stops_says_so_in_its_streams(rig: Rig, path: str) -> None:
    cell = await rig.register(0, Cell(["up up up"]))
    cell.open.clear()
    token = await rig.launch()
    async with aiohttp.ClientSession() as http:
        async with rig.proxy() as client:
            url = f"{client.url}/x/{token}{path}"
            response = await http.post(url, json={**BODIES[path], "stream": True})
            await cell.spoke.wait()
        body = await response.read()
    last = json.loads(body.split(b"\n\n")[-2].partition(b"data: ")[2])
    assert "the proxy stops; ask again" in json.dumps(last)
    assert await rig.records() == []


async def test_an_unusable_model_folder_is_an_error_that_people_can_read(tmp_path: Path) -> None:
    assert issubclass(TemplateUnusable, GyreError)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("depth", [300, 900])
async def test_a_body_nested_beyond_reading_is_refused_and_one_with_a_hollow_tool_is_not(
    rig: Rig, path: str, depth: int
) -> None:
    await rig.register(0, Cell(["fine"]))
    token = await rig.launch()
    tool = {"type": "function", "name": "b", "input_schema": _nested(depth), "parameters": _nested(depth)}
    deep: tuple[dict[str, Any], ...] = (
        {"tools": [{**tool, "function": tool}]},
        {"messages": [{"role": "user", "content": "x", "more": _nested(depth)}]},
        {"input": [{"type": "function_call", "name": "b", "call_id": "c", "arguments": _nested(depth)}]},
    )
    async with rig.proxy() as client:
        for more in deep:
            if more.keys() & {*BODIES[path], "tools"}:
                status, body = await ask(client, token, path, {**BODIES[path], **more})
                assert (status, kind_of(body)) == (400, "invalid_request_error")
        hollow = {**BODIES[path], "tools": [{"type": "function", "function": None}]}
        assert (await ask(client, token, path, hollow))[0] == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Authorization: Bearer \xff", 401),
        (b"x-api-key: \xed\xa0\x80", 401),
        (b"Content-Encoding: gzip", 400),
        (b"x-claude-code-agent-id: \xff\r\nx-claude-code-session-id: \xff", 200),
        (b'x-codex-turn-metadata: {"thread_source":["x"],"thread_id":{},"request_kind":["x"]}', 200),
    ],
)
async def test_headers_that_hold_anything_get_an_answer_and_no_failure_of_ours(
    rig: Rig, header: bytes, status: int
) -> None:
    await rig.register(0, Cell(["fine"]))
    token, body = await rig.launch(), json.dumps(CHAT).encode()
    async with rig.proxy() as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
        start = f"POST /x/{token}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode()
        writer.write(start + header + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()
