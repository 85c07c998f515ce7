"""Increments equal what the whole rendering adds, for templates with very different habits."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.models.load import NANO
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.cuts import ROLES
from gyre.proxy.errors import HistoryUnrenderable, TemplateUnusable
from gyre.proxy.normalise import Message, ToolCall
from gyre.proxy.template import GENERATE, ROOT, Behind, Template
from tests.proxy.templates import CHATML, COUNTING, MERGING, nano, with_template

CALL = ToolCall("call_1", "write", '{"path":"a.txt","content":"x"}')
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TEMPLATE = nano()


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    history = [Message("system", draw(TEXTS)), Message("user", draw(TEXTS))]
    for _ in range(draw(st.integers(0, 4))):
        calls = draw(st.integers(0, 2))
        history.append(Message("assistant", draw(TEXTS), (CALL,) * calls))
        history += [Message("tool", draw(TEXTS), call_id="call_1")] * calls or [Message("user", draw(TEXTS))]
    return history


def whole(template: Template, messages: list[Message]) -> list[int]:
    return template.whole(messages, ()).ids


@given(histories())
@settings(max_examples=60, deadline=None)
def test_a_history_taken_apart_has_the_tokens_of_the_whole(history: list[Message]) -> None:
    assert TEMPLATE.increment(ROOT, history).ids == whole(TEMPLATE, history)


@given(histories(), st.data())
@settings(max_examples=60, deadline=None)
def test_an_increment_behind_any_cut_is_what_the_whole_adds(history: list[Message], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(history)))
    before = TEMPLATE.increment(ROOT, history[:count])
    after = TEMPLATE.increment(Behind(history[count - 1].role), history[count:])
    assert before.ids[: before.ends[-1]] + after.ids == whole(TEMPLATE, history)


def test_nano_may_be_cut_everywhere(template: Template) -> None:
    assert sum(template.may_cut(before, after) for before in ROLES for after in (*ROLES, GENERATE)) == 20


def test_a_template_with_a_default_system_prompt_is_cut_behind_it(tmp_path: Path) -> None:
    template = with_template(tmp_path / "m", CHATML)
    history = [Message("user", "go"), Message("assistant", "", (CALL,)), Message("tool", "ok"), Message("user", "on")]
    assert template.increment(ROOT, history).ids == whole(template, history)
    assert "<tool_call>" in template.model.decode(whole(template, history))
    assert template.may_cut("assistant", "tool")


def test_a_template_that_merges_results_is_not_cut_between_them(tmp_path: Path) -> None:
    template = with_template(tmp_path / "m", MERGING)
    assert not template.may_cut("tool", "tool")
    assert template.may_cut("assistant", "tool")
    assert template.may_cut("tool", GENERATE)
    results = [Message("tool", "one"), Message("tool", "two")]
    history = [Message("system", "s"), Message("user", "u"), Message("assistant", "", (CALL, CALL)), *results]
    increment = template.increment(Behind("assistant"), results)
    assert whole(template, history)[-len(increment.ids) :] == increment.ids
    assert increment.ends[0] == -1
    assert increment.ends[1] > 0


def test_tools_stand_in_the_root_alone(tmp_path: Path) -> None:
    template = with_template(tmp_path / "m", MERGING)
    tools = ({"type": "function", "function": {"name": "write"}},)
    root = template.increment(ROOT, [Message("system", "s"), Message("user", "u")], tools)
    assert '"name": "write"' in template.model.decode(root.ids)
    assert root.ids == template.whole([Message("system", "s"), Message("user", "u")], tools).ids


def test_a_template_that_rewrites_its_history_allows_no_cut(tmp_path: Path) -> None:
    template = with_template(tmp_path / "m", COUNTING)
    assert not any(template.may_cut(before, after) for before in ROLES for after in ROLES)
    history = [Message("user", "go"), Message("assistant", "went"), Message("user", "on")]
    increment = template.increment(ROOT, history)
    assert increment.ids == whole(template, history)
    assert increment.ends[:2] == [-1, -1]


def test_a_turn_cut_by_length_is_closed_and_a_stopped_one_is_not_closed_twice(template: Template) -> None:
    stop = template.model.stop_token_ids[0]
    assert template.closing(None) == [stop]
    assert template.closing(stop) == []


def test_arguments_go_to_the_template_as_it_shows_them_best(tmp_path: Path, template: Template) -> None:
    history = [Message("user", "u"), Message("assistant", "", (ToolCall("c", "write", '{"a" : 1}'),))]
    assert '"arguments":{"a" : 1}' in template.model.decode(whole(template, history))
    merging = with_template(tmp_path / "m", MERGING)
    assert '"arguments": {"a": 1}' in merging.model.decode(whole(merging, history))


def test_rendering_equals_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(NANO)
    ours = ChatModel.load(NANO)
    calls = [{"id": "c", "type": "function", "function": {"name": "write", "arguments": {"path": "é<&>'\"", "n": [1]}}}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": " x <b> "},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "ok"},
    ]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.render(messages, generate=True) == text
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text), skip_special_tokens=False)


def test_a_refusing_template_and_an_incomplete_folder_say_so_in_one_line(tmp_path: Path) -> None:
    refusing = (
        "{% for each in messages %}{% if 'long' in each.content %}{{ raise_exception('too\nlong') }}{% endif %}"
        "{{ each.content }}<|im_end|>{% endfor %}"
    )
    template = with_template(tmp_path / "m", refusing)
    with pytest.raises(HistoryUnrenderable, match="too long"):
        template.whole([Message("user", "long")], ())
    with pytest.raises(TemplateUnusable, match=r"has no tokenizer\.json"):
        ChatModel.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TemplateUnusable, match=r"tokenizer\.json: is no tokenizer"):
        ChatModel.load(tmp_path)
    (tmp_path / "m" / "chat_template.jinja").unlink()
    with pytest.raises(TemplateUnusable, match="has no chat template"):
        ChatModel.load(tmp_path / "m")
    with pytest.raises(TemplateUnusable, match="does not compile"):
        with_template(tmp_path / "m", "{% if %}")


def test_a_template_that_goes_into_a_tools_depths_refuses_what_is_too_deep(tmp_path: Path) -> None:
    text = (NANO / "chat_template.jinja").read_text()
    walk = "{% macro walk(v) %}{% for k in v %}{{ k }}{{ walk(v[k]) }}{% endfor %}{% endmacro %}"
    show = "{% for tool in tools or [] %}{{ walk(tool if 'a' in tool else {}) }}{% endfor %}"
    template = with_template(tmp_path / "m", walk + show + text)
    deep: dict[str, object] = {}
    for _ in range(240):
        deep = {"a": deep}
    with pytest.raises(HistoryUnrenderable, match="recursion"):
        template.whole((Message("user", "x"),), (deep,))


def test_half_of_a_surrogate_pair_in_a_history_is_a_question_mark_to_the_model() -> None:
    model = ChatModel.load(NANO)
    text = model.render([{"role": "user", "content": "a\ud83d"}])
    assert "a?" in text
    assert model.decode(model.encode(text)) == text
