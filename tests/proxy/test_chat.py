"""Bodies, events and errors of OpenAI chat completions."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.chat import Chat, parse
from gyre.proxy.errors import BadRequest, EngineTrouble, PromptTooLong
from gyre.proxy.normalise import Message, ToolCall
from gyre.proxy.reply import Opened, Reply, Request
from tests.proxy.rig import assembled, events

CHAT = Chat()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CALLS = st.lists(st.builds(ToolCall, st.just("call_1"), TEXT, TEXT), max_size=3)
OPENED = Opened("x-c0", 1, 11)


def asked(**fields: Any) -> Request:
    body = {"model": "any", "messages": [{"role": "user", "content": "x"}], **fields}
    return parse(json.dumps(body).encode(), {})


def reply(message: Message) -> Reply:
    return Reply(OPENED, message, "stop", 7, 5)


def streamed(request: Request, answer: Reply) -> bytes:
    return CHAT.opening(request, OPENED) + b"".join(CHAT.events(request, answer, 0))


@given(TEXT, CALLS)
def test_a_stream_adds_up_to_the_whole_answer(content: str, calls: list[ToolCall]) -> None:
    request = asked(stream=True, stream_options={"include_usage": True})
    answer = reply(Message("assistant", content, tuple(calls)))
    whole = json.loads(CHAT.completion(request, answer))["choices"][0]
    chunks = list(events(streamed(request, answer)))
    message = assembled(chunks)
    assert message["content"] == (whole["message"]["content"] or None)
    assert message.get("tool_calls") == whole["message"].get("tool_calls")
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["finish_reason"] == ("tool_calls" if calls else "stop")
    assert chunks[-1]["usage"] == json.loads(CHAT.completion(request, answer))["usage"]


def test_a_turn_is_streamed_byte_for_byte_as_clients_expect_it() -> None:
    answer = reply(Message("assistant", "hi", (ToolCall("call_1", "sh", '{"a": 1'),), thinking="hm"))
    head = (
        b'data: {"id":"chatcmpl-x-c0","object":"chat.completion.chunk","created":1,"model":"any","choices":[{"index":0,'
    )
    assert CHAT.keep_alive(asked(), OPENED, 3) == CHAT.opening(asked(), OPENED)
    assert streamed(asked(), answer).split(b"\n\n") == [
        head + b'"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
        head + b'"delta":{"reasoning_content":"hm"},"finish_reason":null}]}',
        head + b'"delta":{"content":"hi"},"finish_reason":null}]}',
        head + b'"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":'
        b'{"name":"sh","arguments":"{\\"a\\": 1"}}]},"finish_reason":null}]}',
        head + b'"delta":{},"finish_reason":"tool_calls"}]}',
        b"data: [DONE]",
        b"",
    ]


def test_usage_counts_prompt_and_answer_and_comes_in_a_stream_when_asked_for() -> None:
    answer = reply(Message("assistant", "x"))
    usage = json.loads(CHAT.completion(asked(), answer))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (11, 7, 18)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 5}
    assert all("usage" not in chunk for chunk in events(streamed(asked(), answer)))


@pytest.mark.parametrize(("ending", "said"), [("stop", "stop"), ("length", "length"), ("stop_sequence", "stop")])
def test_an_ending_is_said_in_the_protocols_words(ending: Any, said: str) -> None:
    answer = replace(reply(Message("assistant", "x")), ending=ending)
    assert json.loads(CHAT.completion(asked(), answer))["choices"][0]["finish_reason"] == said


def test_unknown_fields_and_models_are_accepted_and_a_smaller_budget_is_read() -> None:
    assert asked(n=2, frob={"a": []}).asked.max_tokens is None
    limited = asked(model="gpt-9", max_tokens=5, max_completion_tokens=4, stream=True)
    assert (limited.asked.max_tokens, limited.stream, limited.model) == (4, True, "gpt-9")
    assert asked(max_tokens=True, tools="none").asked.tools == ()


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "sh"}}, "tool:sh"),
        (None, "auto"),
        ({"type": "odd"}, "auto"),
    ],
)
def test_tool_choice_and_stop_texts_are_read(choice: Any, read: str) -> None:
    assert asked(tool_choice=choice).asked.tool_choice == read
    assert asked(stop=["a", "", 3, "b"]).asked.stop == ("a", "b")
    assert asked(stop="a").asked.stop == ("a",)


def test_calls_from_before_there_were_tools_are_read_as_tools() -> None:
    function = {"name": "sh", "parameters": {"type": "object"}}
    turns = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "function_call": {"name": "sh", "arguments": "{}"}},
        {"role": "function", "name": "sh", "content": "ok"},
    ]
    old = asked(messages=turns, functions=[function], function_call="none").asked
    assert old.tools == ({"type": "function", "function": function},)
    assert old.messages[1] == Message("assistant", "", (ToolCall("", "sh", "{}"),))
    assert (old.messages[2].role, old.tool_choice) == ("tool", "none")


def test_an_image_is_refused_by_its_place_and_in_a_tools_result_it_is_a_mark() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content\[1\]: image_url blocks are not supported"):
        asked(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, image]}])
    shown = asked(messages=[{"role": "tool", "tool_call_id": "c", "content": [image]}]).asked.messages[0]
    assert shown.content == "[image_url]"


@pytest.mark.parametrize("body", [b"", b"{", b"3", b"{}", b'{"messages":"x"}', b'{"messages":[{}]}', b"[" * 5000])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(body, {})


def test_the_wire_shows_adapters_the_headers_and_the_body() -> None:
    request = parse(b'{"messages":[{"role":"user","content":"x"}],"gyre":1}', {"x-session-id": "s"})
    assert (request.asked.wire.protocol, request.asked.wire.headers) == ("chat", {"x-session-id": "s"})
    assert request.asked.wire.body["gyre"] == 1


def test_refusals_are_worded_as_clients_look_for_them() -> None:
    refused = json.loads(CHAT.error_body(PromptTooLong(300, 200)))["error"]
    assert refused["message"] == "prompt is too long: 300 tokens > 200 maximum"
    assert (refused["code"], refused["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert b"[DONE]" not in CHAT.error_event(asked(), OPENED, 0, EngineTrouble("no"))


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool", "function"])
def test_texts_of_separate_parts_are_put_a_line_apart(role: str) -> None:
    parts = [{"type": "text", "text": "Status: completed"}, {"type": "text", "text": "SUBREPORT1: wrote"}]
    shown = asked(messages=[{"role": role, "content": parts}]).asked.messages
    assert shown[0].content == "Status: completed\nSUBREPORT1: wrote"


def test_an_assistants_own_parts_are_put_together_as_they_were_said() -> None:
    parts = [{"type": "text", "text": "do"}, {"type": "text", "text": "ne"}]
    assert asked(messages=[{"role": "assistant", "content": parts}]).asked.messages[0].content == "done"
