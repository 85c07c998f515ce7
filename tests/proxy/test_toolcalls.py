"""Sampled text becomes text and tool calls, whatever a policy writes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.toolcalls import answer, call_id


def calls(text: str) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in answer(text, "x-c0").calls]


def block(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def test_text_around_calls_is_kept_and_whitespace_beside_them_is_not() -> None:
    write = block('{"name":"write","arguments":{"path":"a"}}')
    assert answer(f"now {write}{write}", "x-c0").content == "now "
    assert answer(f"\n{write}\n{write}\n", "x-c0").content == ""
    assert answer("  just text\n", "x-c0").content == "  just text\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"name":"read","arguments":{"path":"é"}}', ("read", '{"path":"é"}')),
        ('\n{"arguments": {}, "name": "read"}\n', ("read", "{}")),
        ('{"name":"finish"}', ("finish", "{}")),
        ('{"name":"read","arguments":"raw"}', ("read", "raw")),
        ('{"name":"read","arguments":{"path":"a}', ("read", '{"path":"a')),
        ('{"name":"read","arguments":{"path":"a"', ("read", '{"path":"a"')),
    ],
)
def test_a_block_with_a_name_is_a_call(body: str, expected: tuple[str, str]) -> None:
    assert calls(block(body)) == [expected]


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", '{"name":3}', '{"name":""}', '{"arguments":{}}', '{"name":"re']
)
def test_a_block_without_a_name_stays_text(body: str) -> None:
    assert calls(block(body)) == []
    assert answer(block(body), "x-c0").content == block(body)


def test_a_call_that_is_never_closed_stays_text() -> None:
    text = '<tool_call>{"name":"read","arguments":{}}'
    assert answer(text, "x-c0").content == text


@given(st.text(max_size=40), st.text(st.sampled_from('<tool_call>{}"name:rguments/, '), max_size=60))
def test_no_text_is_too_strange(before: str, inside: str) -> None:
    message = answer(before + block(inside) + inside, "x-c0")
    assert message.role == "assistant"
    assert all(call.name for call in message.calls)


@given(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=8), st.none()), max_size=3))
def test_arguments_keep_their_values(arguments: dict[str, object]) -> None:
    body = json.dumps({"name": "f", "arguments": arguments})
    if "</tool_call>" not in body:
        assert json.loads(calls(block(body))[0][1]) == arguments


def test_ids_differ_by_call_and_place_and_never_between_replays() -> None:
    assert call_id("x-c0", 1) == call_id("x-c0", 1)
    assert len({call_id("x-c0", 0), call_id("x-c0", 1), call_id("x-c1", 0)}) == 3
