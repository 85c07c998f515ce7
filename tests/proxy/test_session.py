"""What is recorded is what the engine was given and what it gave; histories are matched, never tokenised again."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.core import tree as trees
from gyre.core.leaves import summaries
from gyre.models.load import NANO
from gyre.proxy.adapters.registry import ADAPTERS
from gyre.proxy.errors import PromptTooLong
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message, ToolCall, message_of, messages_of
from gyre.proxy.session import Limits, Plan, Session
from gyre.proxy.template import Template
from schemas.base import ints
from schemas.calls import ModelCallRecorded, VersionSpan
from tests.proxy.templates import COUNTING, drawn, nano, with_template

LIMITS = Limits(temperature=1.0, max_tokens=64, context_tokens=2048)
SYSTEM, TASK = Message("system", "You work in a folder.\nUse tools."), Message("user", "write up to a.txt")
WRITE = '<tool_call>{"name":"write","arguments":{"path":"a.txt","content":"up"}}</tool_call>'
OK = Message("tool", "ok", call_id="any")
TEMPLATE = nano()


def session(template: Template = TEMPLATE, limits: Limits = LIMITS) -> Session:
    return Session("x1", 7, template, limits, ADAPTERS["reference"])


def turn(live: Session, messages: list[Message], text: str, *, stopped: bool = True) -> tuple[Plan, Message]:
    """Ask, answer with this text, record; returns the plan and the assistant message that went out."""
    plan = live.plan(Asked(tuple(messages), (), None))
    template = live._template
    record = live.record(plan, drawn(template, plan, text, stopped=stopped), total_seconds=0.0, delivered=True)
    live.add(record)
    return plan, live.reply(plan.call)[0]


def full(live: Session, call: str) -> list[int]:
    return ints(trees.path_ids(live.tree, call))


def test_an_append_only_conversation_is_one_growing_path() -> None:
    live = session()
    history = [SYSTEM, TASK]
    first, reply = turn(live, history, WRITE)
    assert reply.calls[0].name == "write"
    history += [reply, replace(OK, call_id=reply.calls[0].id)]
    second, reply = turn(live, history, "done")
    assert (second.parent, second.prefix_messages) == (first.call, 3)
    assert second.prefix_tokens == live.tree.nodes[first.call].length
    assert TEMPLATE.model.decode(second.input_ids) == "\n<|im_start|>tool\nok<|im_end|>\n<|im_start|>assistant\n"
    assert full(live, second.call) == TEMPLATE.whole([*history, reply], ()).ids[: len(full(live, second.call))]
    assert [leaf.role for leaf in summaries(live.tree)] == ["main"]


def test_a_turn_that_the_client_rewrote_is_restored_token_by_token() -> None:
    live = session()
    odd = 'well \n<tool_call>{"arguments": {"path" : "a.txt"} ,"name":"read"}</tool_call>'
    first, reply = turn(live, [SYSTEM, TASK], odd)
    echoed = Message("assistant", "well", (ToolCall(reply.calls[0].id, "read", '{"path":"a.txt","limit":5}'),))
    second, _ = turn(live, [SYSTEM, TASK, echoed, OK], "done")
    assert second.parent == first.call
    assert full(live, second.call)[: live.tree.nodes[first.call].length] == full(live, first.call)


@pytest.mark.parametrize(
    "call",
    [
        r'{"name":"w","arguments":{"a":"\ud83d"}}',
        r'{"name":"w\ud83d","arguments":{}}',
        r'{"name":"w","arguments":"\ud83d"}',
    ],
    ids=["arguments", "name", "text"],
)
def test_a_call_with_half_a_surrogate_pair_is_recorded_like_any_other(call: str) -> None:
    live = session()
    first, reply = turn(live, [SYSTEM, TASK], f"<tool_call>{call}</tool_call>")
    assert len(reply.calls) == 1
    second, _ = turn(live, [SYSTEM, TASK, reply, replace(OK, call_id=reply.calls[0].id)], "done")
    assert second.parent == first.call


def test_a_turn_cut_by_length_is_continued_behind_an_end_mark() -> None:
    live = session()
    _, reply = turn(live, [SYSTEM, TASK], "up up", stopped=False)
    second, _ = turn(live, [SYSTEM, TASK, reply, Message("user", "go on")], "done")
    assert TEMPLATE.model.decode(second.input_ids).startswith("<|im_end|>\n<|im_start|>user\ngo on")


def test_policy_text_under_a_context_it_was_not_sampled_in_is_input() -> None:
    live = session()
    _, reply = turn(live, [SYSTEM, TASK], WRITE)
    compacted = Message("user", "write up to a.txt\n\nSummary of the work so far:\nnothing")
    second, _ = turn(live, [SYSTEM, compacted, reply, OK], "done")
    assert second.prefix_messages == 1
    marks = trees.sampled(live.tree, second.call)
    assert marks.count(1) == len(live.tree.nodes[second.call].output_ids) // 4
    assert marks.rstrip(b"\1").count(1) == 0


def test_a_fork_behind_a_shared_result_keeps_what_was_sampled_before_it() -> None:
    live = session()
    first, reply = turn(live, [SYSTEM, TASK], WRITE)
    base = [SYSTEM, TASK, reply, OK]
    second, _ = turn(live, base, "one")
    third, _ = turn(live, [*base, Message("user", "sure?")], "two")
    fourth, _ = turn(live, base, "one")
    assert third.parent == second.call
    assert (fourth.parent, fourth.prefix_tokens) == (second.call, third.prefix_tokens)
    assert TEMPLATE.model.decode(fourth.input_ids) == "<|im_start|>assistant\n"
    assert trees.sampled(live.tree, third.call).count(1) == sum(
        len(live.tree.nodes[call].output_ids) // 4 for call in (first.call, third.call)
    )
    assert len(live.tree.nodes) == 4
    assert [leaf.leaf for leaf in summaries(live.tree)] == [second.call, third.call, fourth.call]


def test_equal_answers_to_one_context_stay_separate_and_the_later_one_is_continued() -> None:
    live = session()
    turn(live, [SYSTEM, TASK], "done")
    second, reply = turn(live, [SYSTEM, TASK], "done")
    third, _ = turn(live, [SYSTEM, TASK, reply, Message("user", "more")], "done")
    assert third.parent == second.call


def test_roles_follow_the_reference_harness() -> None:
    live = session()
    _, reply = turn(live, [SYSTEM, TASK], WRITE)
    _, sub = turn(live, [Message("system", "You help in a folder."), Message("user", "look")], "seen")
    base = [SYSTEM, TASK, reply, OK]
    turn(live, [*base, Message("user", "[compaction] The context is nearly full.")], "wrote up")
    turn(live, [SYSTEM, Message("user", "write up to a.txt\n\nSummary")], "done")
    found = summaries(live.tree)
    assert [leaf.role for leaf in found] == ["sub-agent", "main-summary", "main"]
    assert [leaf.final_main for leaf in found] == [False, False, True]
    assert sub.content == "seen"


def test_without_marks_another_system_prompt_is_a_sub_agent_and_a_call_without_tools_beside_the_work() -> None:
    live = Session("x1", 7, TEMPLATE, LIMITS, ADAPTERS["generic"])
    tools: tuple[dict[str, object], ...] = ({"type": "function", "function": {"name": "write"}},)

    def ask(messages: tuple[Message, ...], offered: tuple[dict[str, object], ...]) -> tuple[str, str]:
        plan = live.plan(Asked(messages, offered, None))
        live.add(live.record(plan, drawn(TEMPLATE, plan, "x"), total_seconds=0, delivered=True))
        return plan.hints.kind, plan.hints.thread

    assert ask((SYSTEM, TASK), tools) == ("turn", "main")
    assert ask((Message("system", "title"), TASK), ()) == ("auxiliary", "main")
    kind, thread = ask((Message("system", "help"), TASK), tools)
    assert (kind, thread.startswith("sub-agent-")) == ("turn", True)
    assert ask((SYSTEM, TASK, Message("user", "sum up")), ()) == ("compaction", "main")


def test_a_prompt_without_room_for_the_answer_is_refused_with_both_numbers() -> None:
    live = session(limits=Limits(1.0, 16, 40))
    plan = live.plan(Asked((Message("user", "up"),), (), 4))
    assert plan.sampling.max_tokens == 4
    with pytest.raises(PromptTooLong, match=r"^prompt is too long: \d+ tokens > 24 maximum$"):
        live.plan(Asked((Message("user", "up " * 30),), (), None))


def test_seeds_depend_on_execution_and_call_alone() -> None:
    one, two = session(), session()
    first = [one.plan(Asked((TASK,), (), None)).sampling.seed for _ in range(3)]
    assert first == [two.plan(Asked((TASK,), (), None)).sampling.seed for _ in range(3)]
    assert len(set(first)) == 3


def test_a_template_without_cuts_gives_a_root_for_each_call(tmp_path: Path) -> None:
    live = session(with_template(tmp_path / "m", COUNTING))
    _, reply = turn(live, [SYSTEM, TASK], "done")
    plan, _ = turn(live, [SYSTEM, TASK, reply, Message("user", "on")], "done")
    assert plan.parent is None
    assert len(summaries(live.tree)) == 2


def test_spellings_of_one_history_are_one() -> None:
    plain = messages_of([{"role": "system", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": []}])
    other = messages_of(
        [
            {"content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "role": "developer"},
            {"role": "assistant", "refusal": None},
        ]
    )
    assert plain == other
    assert message_of({"role": "moderator", "content": [{"type": "image_url"}, "x"]}, "m") == Message(
        "user", "[image_url]\nx"
    )


WORDS = st.sampled_from(["done", WRITE, "", "up <tool_call>{broken", f"first {WRITE}{WRITE}"])


@st.composite
def moves(draw: st.DrawFn) -> list[tuple[int, str, bool, str]]:
    """(which earlier history to go on from, answer, complete?, what the client adds)."""
    item = st.tuples(st.integers(0, 8), WORDS, st.booleans(), st.sampled_from(["tool", "user", "fork", "again"]))
    return draw(st.lists(item, min_size=1, max_size=10))


def play(live: Session, steps: list[tuple[int, str, bool, str]]) -> list[tuple[Plan, ModelCallRecorded]]:
    histories: list[list[Message]] = [[SYSTEM, TASK]]
    done = []
    for which, text, stopped, adds in steps:
        history = histories[which % len(histories)]
        plan = live.plan(Asked(tuple(history), (), None))
        record = live.record(plan, drawn(TEMPLATE, plan, text, stopped=stopped), total_seconds=0.0, delivered=True)
        live.add(record)
        done.append((plan, record))
        reply = live.reply(plan.call)[0]
        if adds == "fork":
            histories.append([*history[:-1], Message("user", history[-1].content + "!")])
        elif adds != "again":
            added = [Message("tool", "ok", call_id=call.id) for call in reply.calls] if adds == "tool" else []
            histories.append([*history, reply, *(added or [Message("user", "on")])])
    return done


@given(moves())
@settings(max_examples=80, deadline=None)
def test_the_recorded_context_is_exactly_what_the_engine_was_given(steps: list[tuple[int, str, bool, str]]) -> None:
    live = session()
    for plan, record in play(live, steps):
        assert ints(trees.context_ids(live.tree, plan.call)) == list(plan.full_ids)
        assert full(live, plan.call) == [*plan.full_ids, *ints(record.output_ids)]


@given(moves())
@settings(max_examples=40, deadline=None)
def test_replay_rebuilds_the_identical_tree_and_goes_on_alike(steps: list[tuple[int, str, bool, str]]) -> None:
    live, again = session(), session()
    records = [record for _, record in play(live, steps)]
    for record in records:
        again.add(ModelCallRecorded.model_validate_json(record.model_dump_json()))
    assert again.tree == live.tree
    assert trees.digest(trees.fold("x1", records)) == trees.digest(live.tree)
    assert trees.from_bytes(trees.to_bytes(live.tree)) == live.tree
    asked = Asked((SYSTEM, TASK, live.reply(records[0].call)[0], Message("user", "and now?")), (), None)
    assert again.plan(asked) == live.plan(asked)


@given(moves())
@settings(max_examples=40, deadline=None)
def test_tool_call_ids_are_unique_and_plain(steps: list[tuple[int, str, bool, str]]) -> None:
    live = session()
    ids = [call.id for plan, _ in play(live, steps) for call in live.reply(plan.call)[0].calls]
    assert len(set(ids)) == len(ids)
    assert all(name.replace("_", "").replace("-", "").isalnum() and name.isascii() for name in ids)


def test_a_stop_text_that_is_the_mark_of_a_turns_end_cuts_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    text = (NANO / "chat_template.jinja").read_text()
    template = with_template(tmp_path / "m", text.replace("<|im_end|>", "<|endoftext|>"))
    live = session(template)
    plan = live.plan(Asked((SYSTEM, TASK), (), None, stop=("<|endoftext|>",)))
    (end,) = template.model.encode("<|endoftext|>")
    assert end in template.stop_token_ids
    assert end not in template.model.stop_token_ids
    given = drawn(template, plan, "done", stopped=False)
    spans = (VersionSpan(version=3, tokens=len(given.output_ids) + 1),)
    ended = replace(
        given, output_ids=(*given.output_ids, end), logprobs=(*given.logprobs, -0.5), versions=spans, finish="stop"
    )
    record = live.record(plan, ended, total_seconds=0.0, delivered=True)
    live.add(record)
    assert tuple(ints(record.output_ids)) == ended.output_ids
    assert record.stop_sequence == ""
    assert live.reply(plan.call)[0].content == "done"
