"""Bodies, events and errors of the OpenAI Responses API."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.errors import BadRequest, EngineTrouble, PromptTooLong
from gyre.proxy.normalise import Message, ToolCall
from gyre.proxy.reply import Opened, Reply, Request
from gyre.proxy.responses import Responses, parse

DATA = Path(__file__).parents[1] / "data" / "wire"
RESPONSES = Responses()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CALLS = st.lists(st.builds(ToolCall, st.just("call_1"), TEXT, TEXT), max_size=3)
OPENED = Opened("x-c0", 1, 11)
TOOLS = [
    {"type": "function", "name": "exec", "description": "d", "parameters": {"type": "object"}},
    {
        "type": "namespace",
        "name": "agents",
        "tools": [{"type": "function", "name": "spawn"}, {"type": "function", "name": "exec"}],
    },
    {"type": "custom", "name": "patch", "description": "p", "format": {"type": "grammar"}},
    {"type": "web_search"},
]


def asked(given: Any = "x", **fields: Any) -> Request:
    return parse(json.dumps({"model": "any", "input": given, **fields}).encode(), {})


def reply(message: Message, **fields: Any) -> Reply:
    return replace(Reply(OPENED, message, "stop", 7, 5), **fields)


def streamed(request: Request, answer: Reply, beats: int = 0) -> list[Any]:
    body = RESPONSES.opening(request, OPENED)
    body += b"".join(RESPONSES.keep_alive(request, OPENED, beat) for beat in range(beats))
    return told(body + b"".join(RESPONSES.events(request, answer, beats)))


def told(body: bytes) -> list[Any]:
    """The data of each event; its name must be the data's type."""
    found = []
    for block in body.split(b"\n\n")[:-1]:
        name, _, data = block.partition(b"\ndata: ")
        found.append(json.loads(data))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


def test_a_turn_is_streamed_event_for_event_as_clients_expect_it() -> None:
    calls = (ToolCall("call_1", "exec", '{"cmd": 1'), ToolCall("call_2", "patch", '{"input":"*** go"}'))
    events = streamed(asked(tools=TOOLS), reply(Message("assistant", "hi", calls, thinking="hm")), beats=1)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["item_id"] for event in events if event.get("output_index") == 2 and "item_id" in event} == {
        "fc_x-c0_0"
    }
    assert events[-2]["item"] == {
        "type": "custom_tool_call",
        "id": "ctc_x-c0_1",
        "status": "completed",
        "call_id": "call_2",
        "name": "patch",
        "input": "*** go",
    }


def test_a_text_is_streamed_byte_for_byte() -> None:
    events = list(RESPONSES.events(asked(), reply(Message("assistant", "hi")), 0))
    assert b"".join(events[:-1]) == (DATA / "responses.sse").read_bytes()


@given(TEXT, TEXT, CALLS)
def test_a_stream_ends_with_the_whole_answer_and_its_items_add_up_to_it(
    thinking: str, content: str, calls: list[ToolCall]
) -> None:
    answer = reply(Message("assistant", content, tuple(calls), thinking=thinking))
    events = streamed(asked(), answer)
    whole = json.loads(RESPONSES.completion(asked(), answer))
    assert events[-1]["response"] == whole
    assert [event["item"] for event in events if event["type"].endswith("item.done")] == whole["output"]
    assert len({item["id"] for item in whole["output"]}) == len(whole["output"])
    echoed = parse(json.dumps({"input": [{"role": "user", "content": "x"}, *whole["output"]]}).encode(), {})
    said = (answer.message,) if whole["output"] else ()
    assert echoed.asked.messages[1:] == said


def test_what_the_policy_thought_carries_the_records_id_and_usage_is_true() -> None:
    whole = json.loads(RESPONSES.completion(asked(), reply(Message("assistant", "hi", thinking="hm"))))
    assert (whole["status"], whole["id"]) == ("completed", "resp_x-c0")
    assert whole["output"][0] == {
        "type": "reasoning",
        "id": "rs_x-c0",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "x-c0",
    }
    usage = whole["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (11, 7, 18)
    assert usage["input_tokens_details"] == {"cached_tokens": 5}


def test_an_answer_cut_by_its_limit_is_incomplete() -> None:
    answer = reply(Message("assistant", "hi"), ending="length")
    last = streamed(asked(), answer)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_tools_of_namespaces_are_shown_by_name_and_called_by_the_clients_own() -> None:
    request = asked(tools=TOOLS)
    assert [tool["function"]["name"] for tool in request.asked.tools] == ["exec", "spawn", "agents__exec", "patch"]
    calls = tuple(ToolCall(f"call_{name}", name, "{}") for name in ("exec", "spawn", "agents__exec", "none"))
    items = json.loads(RESPONSES.completion(request, reply(Message("assistant", "", calls))))["output"]
    assert [(item["name"], item.get("namespace")) for item in items] == [
        ("exec", None),
        ("spawn", "agents"),
        ("exec", "agents"),
        ("none", None),
    ]
    echoed = asked([{"role": "user", "content": "x"}, *items], tools=TOOLS).asked.messages[1]
    assert echoed.calls == calls


def test_free_text_calls_are_read_back_as_they_were_shown() -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "*** go"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"},
    ]
    assert asked(items, tools=TOOLS).asked.messages == (
        Message("assistant", "", (ToolCall("a", "patch", '{"input":"*** go"}'),)),
        Message("tool", "ok", call_id="a"),
    )
    raw = reply(Message("assistant", "", (ToolCall("a", "patch", "*** go"),)))
    assert json.loads(RESPONSES.completion(asked(tools=TOOLS), raw))["output"][0]["input"] == "*** go"


def test_items_of_one_turn_are_one_message_and_a_new_turn_begins_where_order_breaks() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}], "id": "m"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{bad", "status": "completed"},
        {"type": "function_call", "call_id": "2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}] * 2},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "web_search_call", "id": "w"},
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": "y"},
    ]
    assert asked(items, instructions="first").asked.messages == (
        Message("system", "first"),
        Message("system", "be"),
        Message("user", "a\nb"),
        Message("assistant", "one", (ToolCall("1", "f", "{bad"), ToolCall("2", "f", "{}")), thinking="hm"),
        Message("tool", "two\ntwo", call_id="2"),
        Message("tool", "one", call_id="1"),
        Message("assistant", "x"),
        Message("assistant", "y"),
    )


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "name": "f"}, "tool:f"),
        ("odd", "auto"),
        ({"type": "allowed_tools"}, "auto"),
        (None, "auto"),
    ],
)
def test_tool_choice_and_budget_are_read(choice: Any, read: str) -> None:
    request = asked(tool_choice=choice, max_output_tokens=9, stream=True)
    assert (request.asked.tool_choice, request.asked.max_tokens, request.stream) == (read, 9, True)
    assert request.asked.wire.protocol == "responses"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"input":[]}', b'{"input":[3]}', b'{"input":7}'])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(body, {})


def test_an_image_is_refused_by_its_place_and_in_a_tools_result_it_is_a_mark() -> None:
    image = {"type": "input_image", "image_url": "data:,"}
    with pytest.raises(BadRequest, match=r"input\[0\]\.content\[0\]: input_image blocks are not supported"):
        asked([{"role": "user", "content": [image]}])
    shown = asked([{"type": "function_call_output", "call_id": "a", "output": [image]}]).asked.messages
    assert shown == (Message("tool", "[input_image]", call_id="a"),)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["message", "reasoning", "function_call", "assistant"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "role", "text", "content", "summary", "output", "name"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    st.lists(st.dictionaries(st.sampled_from(["type", "role", "content", "output"]), ODD), min_size=1, max_size=4), ODD
)
def test_nothing_odd_inside_an_item_is_refused_or_breaks_the_reader(items: Any, odd: Any) -> None:
    request = asked(items, tools=odd, instructions=odd, tool_choice=odd, reasoning=odd)
    assert {message.role for message in request.asked.messages} <= {"system", "user", "assistant", "tool"}


def test_refusals_name_the_code_that_clients_look_for_in_a_body_and_in_a_stream() -> None:
    error = PromptTooLong(300, 200)
    assert json.loads(RESPONSES.error_body(error))["error"]["code"] == "context_length_exceeded"
    first, second = told(RESPONSES.error_event(asked(), OPENED, 3, error))
    assert (first["code"], first["sequence_number"]) == ("context_length_exceeded", 5)
    assert second["response"]["error"] == {"code": "context_length_exceeded", "message": str(error)}
    assert (second["type"], second["response"]["status"]) == ("response.failed", "failed")
    assert told(RESPONSES.error_event(asked(), OPENED, 0, EngineTrouble("no")))[0]["code"] == "server_error"
