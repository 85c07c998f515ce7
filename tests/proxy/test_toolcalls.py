"""Sampled text becomes text and tool calls, whatever a policy writes."""

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.thinking import opens, split
from gyre.proxy.toolcalls.answers import answer, call_id
from gyre.proxy.toolcalls.families import FAMILIES


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


def test_a_mark_inside_a_string_ends_no_block() -> None:
    inner = r'{"path":"a.md","content":"say <tool_call>{\"name\":\"x\"}</tool_call> twice"}'
    write = block(f'\n{{"name": "write", "arguments": {inner}}}\n')
    assert calls(f"so {write}{write}") == [("write", inner)] * 2
    assert answer(f"so {write} on", "x-c0").content == "so  on"


def test_a_block_that_is_no_json_ends_at_the_first_mark() -> None:
    good = block('{"name":"f","arguments":{}}')
    assert calls(block('{"name":"w","arguments":{"a":"b}') + good) == [("w", '{"a":"b'), ("f", "{}")]
    assert calls(block('{"name":"w","arguments":{"a":"b') + ' "' + good) == [("w", '{"a":"b'), ("f", "{}")]


DEEP = "[" * 900 + "]" * 900
ODD = [
    r'{"a":"\ud83d"}',
    '{"a":1e999}',
    '{"a": 1,  "a": 2}',
    '{"a":0.12345678901234567890123}',
    '{"a":' + "9" * 5000 + "}",
    '{"a":' + DEEP + "}",
    r'{"\ud83d":[]}',
]


@pytest.mark.parametrize("arguments", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'),
        ("llama", '{"name": "f", "parameters": %s}'),
        ("mistral", '[TOOL_CALLS] [{"name": "g"} , {"arguments": %s, "name": "f"}]'),
    ],
)
def test_arguments_go_out_as_they_were_sampled(family: str, text: str, arguments: str) -> None:
    assert found(family, text % arguments)[-1] == ("f", arguments)


@pytest.mark.parametrize(
    ("family", "text"),
    [("hermes", '<tool_call>{"name":"f","arguments":%s}</tool_call>'), ("llama", '{"name":"f","parameters":%s}')],
)
def test_arguments_of_every_depth_go_out_as_they_were_sampled(family: str, text: str) -> None:
    for depth in range(600, 1100):  # somewhere here Python's stack ends
        arguments = "[" * depth + "]" * depth
        assert found(family, text % arguments) == [("f", arguments)]


@pytest.mark.parametrize("value", [r'["\ud83d"]', "1e999", '{"b": 1,  "b": 2}', "0.12345678901234567890123", DEEP])
def test_values_that_are_no_text_go_out_as_they_were_sampled(value: str) -> None:
    assert found("qwen_coder", f"<function=f><parameter=n>\n{value}\n</parameter></function>") == [
        ("f", '{"n":' + value + "}")
    ]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_half_a_surrogate_pair_is_a_question_mark_where_it_is_no_raw_text(family: str) -> None:
    call = r'{"name": "w\ud83d", "arguments": "\ude00"}'
    for text in (f"<tool_call>{call}</tool_call>", call, f"[TOOL_CALLS][{call}]"):
        assert found(family, text) in ([], [("w?", "?")])


def test_of_members_with_one_name_the_last_is_the_call() -> None:
    assert calls(block('{"name":"f","name":"g","arguments":{},"arguments":[1]}')) == [("g", "[1]")]


def test_ids_differ_by_call_and_place_and_never_between_replays() -> None:
    assert call_id("x-c0", 1) == call_id("x-c0", 1)
    assert len({call_id("x-c0", 0), call_id("x-c0", 1), call_id("x-c1", 0)}) == 3


TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"properties": {"n": {"type": "integer"}, "b": {"type": ["boolean", "null"]}, "o": {}}},
        },
    },
)


def found(family: str, text: str) -> list[tuple[str, str]]:
    return [(each.name, each.arguments) for each in FAMILIES[family](text, TOOLS)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>", [("f", '{"n":3}')]),
        ("<function=f><parameter=b>True</parameter></function>", [("f", '{"b":true}')]),
        ("<function=f>\n<parameter=o>\n3\n\n</parameter>\n</function>", [("f", '{"o":"3\\n"}')]),
        ("<function=f>\n<parameter=n>\nthree\n</parameter>\n</function>", [("f", '{"n":"three"}')]),
        ("<function=f>\n<parameter=n>\n1\n<parameter=o>\nx\n</function>", [("f", '{"n":1,"o":"x"}')]),
        ("<function=f></function> and <function=g></function>", [("f", "{}"), ("g", "{}")]),
        ("<tool_call>\n<function=f>\n<parameter=n>\n3", []),
    ],
)
def test_xml_calls_have_bare_values_that_the_schema_tells_apart(text: str, expected: list[tuple[str, str]]) -> None:
    assert found("qwen_coder", text) == expected


KINDS = {
    "Port": {"type": "object", "properties": {}},
    "Text": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "array"}]},
}


@pytest.mark.parametrize(
    ("shape", "raw", "expected"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", "3"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "3", '"3"'),
        ({"oneOf": [{"type": ["integer", "null"]}, {"anyOf": [{"type": "boolean"}]}]}, "True", "true"),
        ({"allOf": [{"$ref": "#/$defs/Port"}]}, '{"a": 1}', '{"a": 1}'),
        ({"$ref": "#/$defs/Port"}, "quay", '"quay"'),
        ({"$ref": "#/$defs/Text"}, "3", '"3"'),
        ({"$ref": "#/$defs/Loop"}, "[3]", "[3]"),
        ({"$ref": "#/$defs/Nowhere/at/all"}, "3", '"3"'),
        ({"$ref": "elsewhere.json"}, "3", '"3"'),
        ({"anyOf": 3, "type": [{}, 4], "$ref": []}, "3", '"3"'),
        ([], "3", '"3"'),
    ],
)
def test_types_are_found_through_alternatives_and_references(shape: object, raw: str, expected: str) -> None:
    tool = {"function": {"name": "f", "parameters": {"$defs": KINDS, "properties": {"n": shape}}}}
    call = FAMILIES["qwen_coder"](f"<function=f><parameter=n>{raw}</parameter></function>", [tool])[0]
    assert call.arguments == '{"n":' + expected + "}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "f", "parameters": {"n": 3}}', [("f", '{"n": 3}')]),
        ('<|python_tag|>{"name": "f", "parameters": {}}', [("f", "{}")]),
        ('{"name": "f", "arguments": {}}; {"name": "g", "parameters": {"a": []}}\n', [("f", "{}"), ("g", '{"a": []}')]),
        ('{"name": "f", "parameters": {"n": ', [("f", '{"n":')]),
        ('{"name": "f", "parameters": {"n": 3}}\nDone.', []),
        ('{"name": "f", "parameters": {"n": 3}}; {"name": "g", "parameters": {"n": ', []),
        ('{"name": "f", "parameters": {"n": 3}}; {}', []),
        ('Like {"name": "f", "parameters": {}}', []),
        ('{"name": "f"}', []),
        ("{}", []),
        ("", []),
    ],
)
def test_a_json_answer_is_a_call_and_json_in_prose_is_none(text: str, expected: list[tuple[str, str]]) -> None:
    assert found("llama", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}, "id": "abc"}]', [("f", '{"n": 1}')]),
        ('so [TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g"}]', [("f", "{}"), ("g", "{}")]),
        ('[TOOL_CALLS][{"name": "f"}', []),
        ('[TOOL_CALLS][{"nome": "f"}]', []),
        ("[TOOL_CALLS][]", []),
    ],
)
def test_a_list_behind_its_mark_is_calls(text: str, expected: list[tuple[str, str]]) -> None:
    assert found("mistral", text) == found("generic", text) == expected


@pytest.mark.parametrize("family", sorted(FAMILIES))
@given(st.text(st.sampled_from('<tool_cal>/funcion=pramet|{}[]":, \nTOOL_CALLS'), max_size=60))
def test_no_family_breaks_on_any_text_or_loses_a_letter_of_it(family: str, text: str) -> None:
    places = [(each.start, each.end) for each in FAMILIES[family](text, ())]
    assert all(0 <= start <= end <= len(text) for start, end in places)
    assert all(left[1] <= right[0] for left, right in pairwise(places))


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nlow\n</think>\n\nso", False, ("low", "so")),
        ("low\n</think>\n\nso", True, ("low", "so")),
        ("low", True, ("low", "")),
        ("<think>\nlow", False, ("low", "")),
        ("so", False, ("", "so")),
        ("<think>\n\n</think>\n\nso", False, ("", "so")),
        ("  so <think>", False, ("", "  so <think>")),
        ("low\n</think>\n\nso", False, ("low", "so")),
        ('<tool_call>{"a":"</think>"}</tool_call>', False, ("", '<tool_call>{"a":"</think>"}</tool_call>')),
        ("so <function=f></function></think>", False, ("", "so <function=f></function></think>")),
        ("[TOOL_CALLS][] </think>", False, ("", "[TOOL_CALLS][] </think>")),
        ("<tool_call>\n</think>\n\nso", True, ("<tool_call>", "so")),
        ("<think>\n<tool_call>\n</think>\n\nso", False, ("<tool_call>", "so")),
        ("low</think>so <tool_call>", False, ("low", "so <tool_call>")),
    ],
)
def test_thoughts_are_split_from_what_is_said(text: str, opened: bool, expected: tuple[str, str]) -> None:
    assert split(text, opened=opened) == expected
    assert opens("<|im_start|>assistant\n<think>\n")
    assert not opens("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 20_000,
        "<function=a>" * 20_000,
        "<function=" * 20_000 + "</function>",
        '<tool_call>{"name":"a","arguments":x' + " " * 20_000 + "y</tool_call>",
        '{"name":"a","arguments":' + ("x" + " " * 50) * 2_000,
        '<tool_call>{"</tool_call>' * 20_000,
        '<tool_call>{"\\"</tool_call>' * 20_000,
        '<tool_call>{"a":"</tool_call>' * 20_000,
        '<tool_call>{"a":{"":"","</tool_call>' * 20_000,
        "<tool_call>" + '{"a":' * 20_000 + "</tool_call>" * 20_000,
        "<tool_call>{" + " " * 50_000 + "</tool_call>" * 20_000,
        '<tool_call>{"' + "<tool_call>{'" * 20_000 + "</tool_call>" * 20_000,
    ],
)
def test_a_policy_that_says_one_thing_for_ever_holds_nobody_up(family: str, text: str) -> None:
    began = time.process_time()
    FAMILIES[family](text, ())
    assert time.process_time() - began < 2.0
