"""What model families do to their histories: each call's exact input is what the template makes of what was said."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.core import tree as trees
from gyre.proxy.adapters.generic import Generic
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.errors import TemplateUnusable
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Json, Message, ToolCall
from gyre.proxy.session import Limits, Plan, Session
from gyre.proxy.template import Template
from schemas.calls import ModelCallRecorded
from tests.proxy.families import MADE, write_model
from tests.proxy.templates import drawn

LIMITS = Limits(1.0, 256, 1 << 16)
SYSTEM, ASK, ON = Message("system", "You tend a harbour."), Message("user", "Moor it."), Message("user", "And now?")
TOOLS: tuple[Json, ...] = (
    {
        "type": "function",
        "function": {
            "name": "moor",
            "description": "d",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}},
        },
    },
)
CALLS = {
    "hermes": '<tool_call>\n{"name": "moor", "arguments": {"path":"a"}}\n</tool_call>',
    "qwen_coder": "<tool_call>\n<function=moor>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
    "llama": '{"name": "moor", "parameters": {"path": "a"}}',
    "mistral": '[TOOL_CALLS][{"name": "moor", "arguments": {"path": "a"}, "id": "abcdefghi"}]',
}
MODELS: dict[str, Template] = {}


@pytest.fixture(scope="module", autouse=True)
def models(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in MADE:
        MODELS[name] = Template(ChatModel.load(write_model(tmp_path_factory.mktemp(name), name)))


def say(name: str, words: str, *, call: bool, thought: str = "") -> str:
    """An answer as the family's policies write it."""
    family = MODELS[name].family
    text = CALLS[family.tool_parser] if call else words
    if call and name == "coder":
        text = "\n" + text
    if call and name == "gemma":
        text = '<tool_call>{"name": "moor", "arguments": {"path": "a"}}</tool_call>'
    if family.opened:  # an empty thought stands as it was sampled, though the template would show none
        thought = thought or "Hm."
        return f"{thought}\n</think>\n\n{text}"
    return f"<think>\n{thought}\n</think>\n\n{text}" if thought and family.thinking else text


def turn(live: Session, name: str, history: list[Message], text: str, tools: tuple[Json, ...] = ()) -> Plan:
    plan = live.plan(Asked(tuple(history), tools, None))
    live.add(live.record(plan, drawn(MODELS[name], plan, text), total_seconds=0.0, delivered=True))
    return plan


def session(name: str) -> Session:
    return Session("x", 7, MODELS[name], LIMITS, Generic())


@pytest.mark.parametrize(
    ("name", "parser", "thinking"),
    [
        ("qwen25", "hermes", False),
        ("qwen3", "hermes", True),
        ("opening", "hermes", True),
        ("forgetting", "hermes", True),
        ("coder", "qwen_coder", False),
        ("llama", "llama", False),
        ("gemma", "hermes", False),
        ("mistral", "mistral", False),
    ],
)
def test_a_familys_parsers_are_found_by_reading_its_own_calls_back(name: str, parser: str, thinking: bool) -> None:
    family = MODELS[name].family
    assert (family.tool_parser, family.thinking) == (parser, thinking)


@pytest.mark.parametrize("name", sorted(MADE))
def test_rendering_equals_that_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(write_model(tmp_path / "m", name))
    shown = MODELS[name]._rendering.shape.shown((SYSTEM, ASK, Message("assistant", "Done."), ON))
    tools: Any = list(TOOLS)
    ours = MODELS[name].model.render(shown, tools, generate=True)
    assert ours == theirs.apply_chat_template(shown, tools=tools, tokenize=False, add_generation_prompt=True)
    assert MODELS[name].model.encode(ours) == theirs(ours, add_special_tokens=False)["input_ids"]


steps = st.lists(
    st.tuples(st.booleans(), st.sampled_from(["", "Low water."]), st.booleans(), st.sampled_from(["user", "system"])),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", sorted(MADE))
@given(steps, st.booleans())
@settings(max_examples=25, deadline=None)
def test_each_exact_input_is_the_templates_own_text(
    name: str, taken: list[tuple[bool, str, bool, str]], offered: bool
) -> None:
    live, history, tools = session(name), [SYSTEM, ASK], TOOLS if offered else ()
    records: list[ModelCallRecorded] = []
    for index, (call, thought, more, role) in enumerate(taken):
        plan = live.plan(Asked(tuple(history), tools, None))
        text = MODELS[name].model.decode(plan.full_ids)
        assert without_ids(text) == without_ids(MODELS[name]._rendering.text(history, tools, generate=True))
        answer = drawn(MODELS[name], plan, say(name, f"Word {index}.", call=call, thought=thought))
        records.append(live.record(plan, answer, total_seconds=0.0, delivered=True))
        live.add(records[-1])
        reply = live.reply(plan.call)[0]
        assert bool(reply.calls) == call
        results = [Message("tool", "done", call_id=each.id, name=each.name) for each in reply.calls]
        history += [reply, *results]
        if more or not results:
            history.append(Message(role, f"Next {index}."))
    again = session(name)
    for record in records:
        again.add(ModelCallRecorded.model_validate_json(record.model_dump_json()))
    assert again.tree == live.tree
    asked = Asked((*history, ON), tools, None)
    assert again.plan(asked) == live.plan(asked)


def without_ids(text: str) -> str:
    """Mistral writes ids into its text: the policy's own stand, where the client has the proxy's."""
    parts = text.split('"id": "')
    return parts[0] + "".join(part[9:] for part in parts[1:])


def test_thoughts_grow_on_within_a_question_and_branch_at_the_next() -> None:
    live, name = session("qwen3"), "qwen3"
    history = [SYSTEM, ASK]
    first = turn(live, name, history, say(name, "", call=True, thought="Low water."))
    reply = live.reply(first.call)[0]
    assert reply.thinking == "Low water."
    history += [reply, Message("tool", "done", call_id=reply.calls[0].id)]
    second = turn(live, name, history, say(name, "Moored.", call=False, thought="So."))
    assert (second.parent, second.fallback) == (first.call, "")
    history += [live.reply(second.call)[0], ON]
    third = turn(live, name, history, say(name, "Out.", call=False))
    assert third.fallback == "the template rewrites what stood before"
    assert "Low water" not in MODELS[name].model.decode(third.full_ids)
    assert trees.sampled(live.tree, third.call).count(1) == len(live.tree.nodes[third.call].output_ids) // 4
    fourth = turn(live, name, [*history, live.reply(third.call)[0], ON], "Fine.")
    assert (fourth.parent, fourth.fallback) == (third.call, "")


def test_a_family_that_forgets_thoughts_branches_at_every_turn() -> None:
    live, name = session("forgetting"), "forgetting"
    first = turn(live, name, [SYSTEM, ASK], say(name, "Moored.", call=False, thought="So."))
    second = turn(live, name, [SYSTEM, ASK, live.reply(first.call)[0], ON], say(name, "x", call=False))
    assert second.prefix_messages <= 2
    assert second.fallback
    assert "So." not in MODELS[name].model.decode(second.full_ids)


def test_tools_that_move_to_the_last_question_make_the_next_question_a_new_path() -> None:
    live, name = session("mistral"), "mistral"
    first = turn(live, name, [SYSTEM, ASK], say(name, "", call=True), TOOLS)
    reply = live.reply(first.call)[0]
    history = [SYSTEM, ASK, reply, Message("tool", "done", call_id=reply.calls[0].id, name="moor")]
    second = turn(live, name, history, "Moored.", TOOLS)
    third = turn(live, name, [*history, live.reply(second.call)[0], ON], "Out.", TOOLS)
    assert (second.parent, second.prefix_messages, second.fallback) == (first.call, 3, "")
    assert third.fallback
    assert trees.sampled(live.tree, third.call).count(1) == len(live.tree.nodes[third.call].output_ids) // 4


def test_a_template_without_system_role_and_results_has_them_in_the_users_turns() -> None:
    asked = (SYSTEM, ASK, Message("assistant", "", (ToolCall("c", "moor", "{}"),)), Message("tool", "done"), ON)
    text = MODELS["gemma"].model.decode(MODELS["gemma"].whole(asked, ()).ids)
    assert "user\nYou tend a harbour.\n\nMoor it.<end_of_turn>" in text
    assert "<tool_response>\ndone\n</tool_response>\n\nAnd now?<end_of_turn>" in text


@pytest.mark.parametrize(
    ("name", "tool_parser", "thinking_parser", "why"),
    [
        ("llama", "hermes", "auto", "rollout.tool_parser: 'hermes' does not read the calls .* set llama"),
        ("qwen3", "llama", "auto", "rollout.tool_parser: 'llama'"),
        ("qwen25", "auto", "think", "rollout.thinking_parser: 'think'"),
        ("qwen25", "gpt", "auto", "rollout.tool_parser: 'gpt' is none of auto, hermes"),
    ],
)
def test_a_parser_that_does_not_fit_the_template_is_refused_at_start(
    name: str, tool_parser: str, thinking_parser: str, why: str
) -> None:
    with pytest.raises(TemplateUnusable, match=why):
        Template(MODELS[name].model, tool_parser, thinking_parser)


@pytest.mark.parametrize(("name", "choice"), [("qwen25", "required"), ("llama", "tool:moor"), ("coder", "tool:moor")])
def test_a_forced_call_begins_with_input_tokens_that_are_nobodys_targets(name: str, choice: str) -> None:
    live = session(name)
    plan = live.plan(Asked((SYSTEM, ASK), TOOLS, None, tool_choice=choice))
    whole = CALLS[MODELS[name].family.tool_parser]
    assert plan.forced
    assert whole.startswith(plan.forced)
    assert MODELS[name].model.decode(plan.full_ids).endswith(plan.forced)
    live.add(live.record(plan, drawn(MODELS[name], plan, whole[len(plan.forced) :]), total_seconds=0, delivered=True))
    reply = live.reply(plan.call)[0]
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [("moor", {"path": "a"})]
    marks = trees.sampled(live.tree, plan.call)
    assert marks == bytes(plan.tokens) + b"\1" * (len(marks) - plan.tokens)


def test_without_a_parser_and_with_tool_choice_none_calls_stay_text() -> None:
    model = MODELS["qwen25"].model
    call = CALLS["hermes"]
    assert Template(model, "none").family.answer(call, "c", (), forced=False, calls=True).content == call
    assert MODELS["qwen25"].family.answer(call, "c", (), forced=False, calls=False).content == call
