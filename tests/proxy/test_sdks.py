"""The vendors' own clients read what the proxy says: streamed and whole, with calls, waits and errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest

from tests.proxy.rig import WRITE, Cell, Rig

ASK: Any = [{"role": "user", "content": "write up"}]
SCHEMA: Any = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
ARGUMENTS = {"path": "a.txt", "content": "up"}
BROKEN = '<tool_call>{"name":"write","arguments":{"path": 3, oops}}</tool_call>'


@dataclass
class Clients:
    cell: Cell
    claude: anthropic.AsyncAnthropic
    gpt: openai.AsyncOpenAI


@asynccontextmanager
async def clients(rig: Rig, *texts: str) -> AsyncIterator[Clients]:
    """Both vendors' clients of one execution, and its cell."""
    cell = await rig.register(0, Cell(list(texts)))
    token = await rig.launch()
    async with (
        rig.proxy() as proxy,
        anthropic.AsyncAnthropic(base_url=f"{proxy.url}/x/{token}", api_key=token, max_retries=0) as claude,
        openai.AsyncOpenAI(base_url=f"{proxy.url}/x/{token}/v1", api_key=token, max_retries=0) as gpt,
    ):
        yield Clients(cell, claude, gpt)


async def waited(stream: Any, cell: Cell) -> AsyncIterator[Any]:
    """A stream's events, the cell held until some of them came: those are keep-alives."""
    seen = 0
    async for event in stream:
        seen += 1
        if seen == 6:
            cell.open.set()
        yield event


async def test_anthropics_client_reads_a_stream_with_two_calls(rig: Rig) -> None:
    rig.keep_alive = 0.01
    tools: Any = [{"name": "write", "input_schema": SCHEMA}]
    async with clients(rig, f"now {WRITE}{WRITE}") as to:
        to.cell.open.clear()
        asking = to.claude.beta.messages.stream(model="claude-any", max_tokens=48, messages=ASK, tools=tools)
        async with asking as stream:
            kinds = [event.type async for event in waited(stream, to.cell)]
            message = await stream.get_final_message()
    assert kinds[:3] == ["message_start", "message_delta", "message_delta"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert message.content[0].text == "now "  # type: ignore[union-attr]
    assert [block.input for block in message.content[1:]] == [ARGUMENTS] * 2  # type: ignore[union-attr]
    assert (message.stop_reason, message.usage.input_tokens) == ("tool_use", len(to.cell.asked[0].input_ids))
    assert message.usage.output_tokens == len(to.cell.given[0].output_ids)


async def test_anthropics_client_reads_whole_answers_counts_and_models(rig: Rig) -> None:
    async with clients(rig, "done", BROKEN) as to:
        said = await to.claude.messages.create(model="any", max_tokens=48, messages=ASK)
        broken = await to.claude.messages.create(model="any", max_tokens=48, messages=[*ASK, *ASK])
        counted = await to.claude.messages.count_tokens(model="any", messages=ASK)
        models = [model.id async for model in to.claude.models.list()]
    assert (said.content[0].type, said.stop_reason) == ("text", "end_turn")
    assert broken.content[0].input == {"__unparsedToolInput": {"raw": '{"path": 3, oops}', "len": 17}}  # type: ignore[union-attr]
    assert counted.input_tokens == said.usage.input_tokens
    assert models == ["policy"]


async def test_openais_client_reads_a_stream_of_chunks_with_two_calls(rig: Rig) -> None:
    rig.keep_alive = 0.01
    tools: Any = [{"type": "function", "function": {"name": "write", "parameters": SCHEMA}}]
    async with clients(rig, f"now {WRITE}{WRITE}") as to:
        to.cell.open.clear()
        asking = to.gpt.chat.completions.stream(
            model="any", messages=ASK, tools=tools, stream_options={"include_usage": True}
        )
        async with asking as stream:
            assert len([event async for event in waited(stream, to.cell)]) > 6
            said = await stream.get_final_completion()
    message = said.choices[0].message
    assert (message.content, said.choices[0].finish_reason) == ("now ", "tool_calls")
    assert [json.loads(call.function.arguments) for call in message.tool_calls or ()] == [ARGUMENTS] * 2
    assert said.usage is not None
    assert said.usage.prompt_tokens == len(to.cell.asked[0].input_ids)


async def test_openais_client_reads_a_stream_of_response_events(rig: Rig) -> None:
    rig.keep_alive = 0.01
    inner: Any = {"type": "function", "name": "write", "parameters": SCHEMA, "strict": False}
    tools: Any = [{"type": "namespace", "name": "files", "description": "f", "tools": [inner]}]
    async with clients(rig, f"now {WRITE}{WRITE}") as to:
        to.cell.open.clear()
        stream: Any = await to.gpt.responses.create(model="any", input="write up", tools=tools, stream=True)
        events = [event async for event in waited(stream, to.cell)]
    last = events[-1]
    assert [event.type for event in events[:3]] == ["response.created", "response.in_progress", "response.in_progress"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (last.type, last.response.output_text) == ("response.completed", "now ")
    calls = last.response.output[1:]
    assert [(call.type, call.name, json.loads(call.arguments)) for call in calls] == [
        ("function_call", "write", ARGUMENTS)
    ] * 2
    assert {call.to_dict()["namespace"] for call in calls} == {"files"}
    assert last.response.usage.input_tokens == len(to.cell.asked[0].input_ids)


async def test_openais_client_reads_whole_answers(rig: Rig) -> None:
    async with clients(rig, "done", BROKEN) as to:
        said = await to.gpt.responses.create(model="any", input=ASK, instructions="Be brief.")
        broken = await to.gpt.chat.completions.create(model="any", messages=ASK)
        models = [model.id async for model in to.gpt.models.list()]
    assert (said.output_text, said.status) == ("done", "completed")
    call: Any = (broken.choices[0].message.tool_calls or [None])[0]
    assert call.function.arguments == '{"path": 3, oops}'
    assert models == ["policy"]


async def test_the_clients_know_a_prompt_that_is_too_long_and_a_call_that_failed(rig: Rig) -> None:
    long: Any = [{"role": "user", "content": "up " * 500}]
    async with clients(rig) as to:
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 352 maximum"):
            await to.claude.messages.create(model="any", max_tokens=48, messages=long)
        for asking in (
            to.gpt.responses.create(model="any", input=long),
            to.gpt.chat.completions.create(model="any", messages=long),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await asking
            assert caught.value.code == "context_length_exceeded"


async def test_the_clients_raise_what_a_stream_says_went_wrong(rig: Rig) -> None:
    async with clients(rig, "up up up", "up up up", "up up up") as to:
        to.cell.open.clear()
        tasks = [
            asyncio.create_task(_streamed(stream))
            for stream in (
                to.claude.messages.create(model="any", max_tokens=48, messages=ASK, stream=True),
                to.gpt.chat.completions.create(model="any", messages=ASK, stream=True),
                to.gpt.responses.create(model="any", input="write up", stream=True),
            )
        ]
        async with asyncio.timeout(30):
            while to.cell.engine.running < len(tasks):
                await asyncio.sleep(0.005)
        await rig.terminate()
        claude, chat, responses = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(claude, anthropic.APIStatusError)
    assert isinstance(chat, openai.APIError)
    assert responses == ["error", "response.failed"]
    assert all("cancelled, execution ended" in str(error) for error in (claude, chat))


async def _streamed(stream: Any) -> list[str]:
    """The last two types of a stream of events."""
    return [getattr(event, "type", "chunk") async for event in await stream][-2:]
