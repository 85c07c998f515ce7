"""Bodies, events and errors of the Anthropic Messages API."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.anthropic import Anthropic, counted, parse
from gyre.proxy.errors import BadRequest, CallError, EngineTrouble, NotFound, PromptTooLong, Unauthorized
from gyre.proxy.normalise import Message, ToolCall
from gyre.proxy.reply import Opened, Reply, Request

DATA = Path(__file__).parents[1] / "data" / "wire"
ANTHROPIC = Anthropic()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CALLS = st.lists(st.builds(ToolCall, st.just("call_1"), TEXT, TEXT), max_size=3)
OPENED = Opened("x-c0", 1, 11)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def asked(*messages: Any, **fields: Any) -> Request:
    said = messages or ({"role": "user", "content": "x"},)
    body = {"model": "claude-any", "messages": said, "max_tokens": 9, **fields}
    return parse(json.dumps(body).encode(), {"anthropic-beta": "a,b"})


def reply(message: Message, **fields: Any) -> Reply:
    return replace(Reply(OPENED, message, "stop", 7, 5), **fields)


def told(body: bytes) -> list[Any]:
    """The data of each event; its name must be the data's type."""
    found = []
    for block in body.split(b"\n\n")[:-1]:
        name, _, data = block.partition(b"\ndata: ")
        found.append(json.loads(data))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


def test_a_turn_is_streamed_byte_for_byte_as_clients_expect_it() -> None:
    calls = (ToolCall("call_1", "Bash", '{"command": "ls"}'), ToolCall("call_2", "Bash", ""))
    answer = reply(Message("assistant", "hi", calls, thinking="hm"))
    body = ANTHROPIC.opening(asked(), OPENED) + ANTHROPIC.keep_alive(asked(), OPENED, 0)
    body += b"".join(ANTHROPIC.events(asked(), answer, 1))
    assert body == (DATA / "anthropic.sse").read_bytes()


@given(TEXT, TEXT, CALLS)
def test_a_stream_adds_up_to_the_whole_answer(thinking: str, content: str, calls: list[ToolCall]) -> None:
    answer = reply(Message("assistant", content, tuple(calls), thinking=thinking))
    whole = json.loads(ANTHROPIC.completion(asked(), answer))
    events = told(b"".join(ANTHROPIC.events(asked(), answer, 0)))
    raw = [event["delta"].get("partial_json") for event in events if event["type"] == "content_block_delta"]
    kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert kinds == [block["type"] for block in whole["content"]]
    assert [text for text in raw if text is not None] == [call.arguments for call in calls if call.arguments]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == ("tool_use" if calls else "end_turn")
    assert events[-2]["usage"] == whole["usage"]
    assert (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]) == (11, 7)


@pytest.mark.parametrize(
    ("fields", "reason", "stop"),
    [
        ({}, "end_turn", None),
        ({"ending": "length"}, "max_tokens", None),
        ({"ending": "stop_sequence", "stop_sequence": "END"}, "stop_sequence", "END"),
    ],
)
def test_an_ending_is_said_in_the_protocols_words(fields: Any, reason: str, stop: str | None) -> None:
    whole = json.loads(ANTHROPIC.completion(asked(), reply(Message("assistant", "x"), **fields)))
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, stop)


@pytest.mark.parametrize("raw", ['{"a": 1', "[1]", "3", "plain"])
def test_arguments_that_are_no_object_survive_a_whole_answer_and_its_echo(raw: str) -> None:
    answer = reply(Message("assistant", "", (ToolCall("call_1", "Bash", raw),)))
    block = json.loads(ANTHROPIC.completion(asked(), answer))["content"][0]
    assert block["input"] == {"__unparsedToolInput": {"raw": raw, "len": len(raw)}}
    echoed = asked({"role": "assistant", "content": [block]}).asked.messages[0]
    assert echoed == answer.message


def test_arguments_that_are_an_object_go_out_as_they_were_written() -> None:
    answer = reply(Message("assistant", "", (ToolCall("call_1", "Bash", '{"n": 5.0e3, "b":"\\u00e9"}'),)))
    assert b'"input":{"n": 5.0e3, "b":"\\u00e9"}' in ANTHROPIC.completion(asked(), answer)


def test_the_attribution_line_is_dropped_and_the_system_blocks_are_a_line_apart() -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.549;"},
        {"type": "text", "text": "You are.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "You do."},
    ]
    assert asked(system=system).asked.messages[0] == Message("system", "You are.\nYou do.")
    assert asked(system=system).asked.wire.body["system"] == system
    assert asked(system="You are.\nYou do.").asked.messages == asked(system=system).asked.messages
    assert asked(system=[]).asked.messages == (Message("user", "x"),)


def test_results_of_tools_become_messages_of_their_own_in_order() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "b", "content": "two", "is_error": False},
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "one"}], "is_error": True},
        {"type": "text", "text": "go on", "cache_control": {}},
        {"type": "text", "text": "please"},
    ]
    assert asked({"role": "user", "content": blocks}).asked.messages == (
        Message("tool", "two", call_id="b"),
        Message("tool", "[error]\none", call_id="a"),
        Message("user", "go on\nplease"),
    )
    first = [{"type": "text", "text": "look"}, *blocks[:1]]
    assert [message.role for message in asked({"role": "user", "content": first}).asked.messages] == ["user", "tool"]


def test_an_assistants_turn_is_read_whatever_the_order_of_its_blocks() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "x-c0"},
        {"type": "redacted_thinking", "data": "zz"},
        {"type": "tool_use", "id": "a", "name": "Bash", "input": {"b": 1, "a": 2}},
        {"type": "text", "text": "one "},
        {"type": "text", "text": "two", "citations": []},
    ]
    turn = asked({"role": "assistant", "content": blocks}).asked.messages[0]
    assert turn == Message("assistant", "one two", (ToolCall("a", "Bash", '{"a":2,"b":1}'),), thinking="hm")


def test_a_system_message_may_stand_anywhere_and_odd_roles_are_the_users() -> None:
    said = [{"role": "user", "content": "x"}, {"role": "system", "content": [{"type": "text", "text": "y"}]}, {}]
    assert asked(*said).asked.messages == (Message("user", "x"), Message("system", "y"), Message("user", ""))


def test_tools_without_a_schema_take_nothing_and_deferred_ones_wait_until_a_result_names_them() -> None:
    tools = [
        {"name": "a", "description": "d"},
        {"name": "b", "input_schema": {"type": "object"}, "defer_loading": True},
    ]
    shown = {
        "type": "function",
        "function": {"name": "a", "description": "d", "parameters": {"type": "object", "properties": {}}},
    }
    assert asked(tools=tools).asked.tools == (shown,)
    reference = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "tool_reference", "tool_name": "b"}]}
    found = asked({"role": "user", "content": [reference]}, tools=tools).asked
    assert [tool["function"]["name"] for tool in found.tools] == ["a", "b"]
    assert found.messages == (Message("tool", "[tool: b]", call_id="c"),)


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "Bash"}, "tool:Bash"),
        ({"type": "auto"}, "auto"),
        ("odd", "auto"),
        (None, "auto"),
    ],
)
def test_tool_choice_stop_sequences_and_budget_are_read(choice: Any, read: str) -> None:
    request = asked(tool_choice=choice, stop_sequences=["END", ""], stream=True)
    assert (request.asked.tool_choice, request.asked.stop) == (read, ("END",))
    assert (request.asked.max_tokens, request.stream, request.model) == (9, True, "claude-any")
    assert request.asked.wire.headers == {"anthropic-beta": "a,b"}


def test_an_image_of_the_users_is_refused_by_its_place_and_one_in_a_tools_result_is_a_mark() -> None:
    with pytest.raises(BadRequest, match=r"messages\[1\]\.content\[0\]: image blocks are not supported"):
        asked({"role": "user", "content": "x"}, {"role": "user", "content": [IMAGE]})
    result = {"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}
    assert asked({"role": "user", "content": [result]}).asked.messages == (Message("tool", "[image]", call_id="a"),)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"messages":[]}', b'{"messages":[3]}', b'{"messages":"x"}'])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(body, {})


BLOCKS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["text", "tool_use", "tool_result", "thinking"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "input", "id", "tool_use_id", "role"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "critic"]), "content": BLOCKS}),
        min_size=1,
        max_size=3,
    ),
    BLOCKS,
)
def test_nothing_odd_inside_a_message_is_refused_or_breaks_the_reader(messages: Any, odd: Any) -> None:
    request = asked(*messages, system=odd, tools=odd, tool_choice=odd, stop_sequences=odd, metadata=odd)
    assert {message.role for message in request.asked.messages} <= {"system", "user", "assistant", "tool"}


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (PromptTooLong(300, 200), 400, "invalid_request_error"),
        (Unauthorized("no"), 401, "authentication_error"),
        (NotFound("no"), 404, "not_found_error"),
        (EngineTrouble("no"), 503, "overloaded_error"),
    ],
)
def test_refusals_have_the_protocols_shape(error: CallError, status: int, kind: str) -> None:
    body = json.loads(ANTHROPIC.error_body(error))
    assert error.status == status
    assert body == {"type": "error", "error": {"type": kind, "message": str(error)}}
    assert told(ANTHROPIC.error_event(asked(), OPENED, 0, error)) == [body]


def test_too_long_a_prompt_is_said_in_the_words_that_make_clients_compact() -> None:
    assert "prompt is too long: 300 tokens > 200 maximum" in str(PromptTooLong(300, 200))
    assert counted(12) == b'{"input_tokens":12}'
