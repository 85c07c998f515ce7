"""Bodies, events and errors of OpenAI chat completions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy import chat
from gyre.proxy.adapters.memory import Memory
from gyre.proxy.adapters.registry import ADAPTERS
from gyre.proxy.errors import BadRequest, EngineTrouble, PromptTooLong
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message, ToolCall
from tests.proxy.rig import assembled, events

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CALLS = st.lists(st.builds(ToolCall, st.just("call_1"), TEXT, TEXT), max_size=3)


def reply(message: Message, *, length: bool = False) -> chat.Reply:
    return chat.Reply("x-c0", "any", 1, message, length, 11, 7, 5)


@given(TEXT, CALLS)
def test_a_stream_adds_up_to_the_whole_answer(content: str, calls: list[ToolCall]) -> None:
    message = Message("assistant", content, tuple(calls))
    whole = json.loads(chat.completion(reply(message)))["choices"][0]
    body = chat.opening("x-c0", "any", 1) + b"".join(chat.chunks(reply(message), include_usage=True))
    chunks = list(events(body))
    streamed = assembled(chunks)
    assert streamed["content"] == (whole["message"]["content"] or None)
    assert streamed.get("tool_calls") == whole["message"].get("tool_calls")
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["finish_reason"] == ("tool_calls" if calls else "stop")
    assert chunks[-1]["usage"] == json.loads(chat.completion(reply(message)))["usage"]


def test_usage_counts_prompt_and_answer_and_comes_in_a_stream_when_asked_for() -> None:
    message = Message("assistant", "x")
    usage = json.loads(chat.completion(reply(message, length=True)))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (11, 7, 18)
    assert all("usage" not in chunk for chunk in events(b"".join(chat.chunks(reply(message), include_usage=False))))


def test_unknown_fields_and_models_are_accepted_and_a_smaller_budget_is_read() -> None:
    body = {"model": "gpt-9", "messages": [{"role": "user", "content": "x", "cache": 1}], "n": 2, "frob": {"a": []}}
    assert chat.parse(json.dumps(body).encode()).asked.max_tokens is None
    limited = chat.parse(json.dumps({**body, "max_tokens": 5, "max_completion_tokens": 4, "stream": True}).encode())
    assert (limited.asked.max_tokens, limited.stream, limited.model) == (4, True, "gpt-9")
    assert chat.parse(json.dumps({**body, "max_tokens": True, "tools": "none"}).encode()).asked.tools == ()


@pytest.mark.parametrize("body", [b"", b"{", b"3", b"{}", b'{"messages":"x"}', b'{"messages":[{}]}', b"[" * 5000])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        chat.parse(body)


def test_refusals_are_worded_as_clients_look_for_them() -> None:
    refused = json.loads(chat.error_body(PromptTooLong(300, 200)))["error"]
    assert refused["message"] == "prompt is too long: 300 tokens > 200 maximum"
    assert (refused["code"], refused["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert b"[DONE]" not in chat.error_event(EngineTrouble("no"))


def test_a_task_that_mentions_compaction_is_no_compaction() -> None:
    asked = Asked((Message("system", "s"), Message("user", "explain [compaction]")), (), None)
    assert ADAPTERS["reference"].hints(asked, Memory()).kind == "turn"
    assert ADAPTERS["generic"].hints(asked, Memory()).kind == "turn"
