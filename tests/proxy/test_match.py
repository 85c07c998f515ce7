"""What of a client's history is what was said, and what is the client's own."""

import weakref
from dataclasses import replace
from typing import Any

import pytest

from gyre.core import tree as trees
from gyre.proxy import anthropic_history, responses_history
from gyre.proxy.adapters.generic import Generic
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message, ToolCall, messages_of
from gyre.proxy.paths import WORTH_SHARING
from gyre.proxy.recall import Recall
from gyre.proxy.roots import Roots, root_cursor
from gyre.proxy.session import Limits, Plan, Session
from tests.proxy.templates import drawn, nano

TEMPLATE = nano()
SYSTEM, TASK = Message("system", "You work in a folder."), Message("user", "write up to a.txt")
CALL = '<tool_call>{"name":"read","arguments":{"path":"a"}}</tool_call>'


def session() -> Session:
    return Session("x", 7, TEMPLATE, Limits(1.0, 64, 4096), Generic())


def turn(live: Session, messages: list[Message], text: str) -> tuple[Plan, Message]:
    plan = live.plan(Asked(tuple(messages), (), None))
    live.add(live.record(plan, drawn(TEMPLATE, plan, text), total_seconds=0.0, delivered=True))
    return plan, live.reply(plan.call)[0]


def result(call: ToolCall, text: str = "ok") -> Message:
    return Message("tool", text, call_id=call.id)


def echoes(message: Message) -> dict[str, Message]:
    """What clients make of a recorded turn with two calls, and it is that turn all the same."""
    first, second = message.calls
    return {
        "other arguments": replace(message, calls=(replace(first, arguments='{"path":"a","limit":null}'), second)),
        "no arguments that could be parsed": replace(
            message, calls=(replace(first, arguments='{"__unparsedToolInput":{"raw":"{","len":1}}'), second)
        ),
        "other order": replace(message, calls=(second, first)),
        "trimmed": replace(message, content=message.content.strip()),
        "without its thought": replace(message, thinking=""),
        "with a thought": replace(message, thinking="hm"),
    }


def own_words(message: Message) -> dict[str, Message]:
    """What clients put in a turn's place, and it is not that turn."""
    first, second = message.calls
    return {
        "a renamed tool": replace(message, calls=(replace(first, name="invalid"), second)),
        "another id": replace(message, calls=(replace(first, id="call_0"), second)),
        "one call less": replace(message, calls=(first,)),
        "merged words": replace(message, content="Got it. " + message.content),
        "an interruption": Message("assistant", "[Tool use interrupted]"),
        "an invention": Message("assistant", "No response requested."),
    }


@pytest.mark.parametrize("form", sorted(echoes(Message("assistant", "", (ToolCall("", "", ""),) * 2))))
def test_a_turn_that_clients_rewrite_is_the_recorded_one(form: str) -> None:
    live = session()
    first, reply = turn(live, [SYSTEM, TASK], f" look {CALL}{CALL}")
    history = [SYSTEM, TASK, echoes(reply)[form], *map(result, reply.calls)]
    second, _ = turn(live, history, "done")
    assert (second.parent, second.prefix_messages) == (first.call, 3)


@pytest.mark.parametrize("form", sorted(own_words(Message("assistant", "", (ToolCall("", "", ""),) * 2))))
def test_a_turn_that_is_the_clients_own_is_input(form: str) -> None:
    live = session()
    _, reply = turn(live, [SYSTEM, TASK], f"look {CALL}{CALL}")
    second, _ = turn(live, [SYSTEM, TASK, own_words(reply)[form], Message("user", "on")], "done")
    assert second.prefix_messages == 2
    assert trees.sampled(live.tree, second.call)[: second.tokens].count(1) == 0


def test_two_texts_are_no_one_text() -> None:
    live = session()
    turn(live, [SYSTEM, Message("user", "he"), Message("user", "llo")], "done")
    plan, _ = turn(live, [SYSTEM, Message("user", "hello")], "done")
    assert plan.prefix_messages == 1
    assert messages_of([{"role": "user", "content": ["he", "llo"]}]) == (Message("user", "he\nllo"),)


def test_results_in_the_order_of_completion_are_another_history_behind_the_same_turn() -> None:
    live = session()
    first, reply = turn(live, [SYSTEM, TASK], f"{CALL}{CALL}")
    one, two = (result(call, f"said {at}") for at, call in enumerate(reply.calls))
    turn(live, [SYSTEM, TASK, reply, one, two], "done")
    again, _ = turn(live, [SYSTEM, TASK, reply, two, one], "done")
    assert (again.parent, again.prefix_messages) == (first.call, 3)


def test_of_equal_answers_the_client_may_name_the_one_it_means() -> None:
    live = session()
    first, reply = turn(live, [SYSTEM, TASK], "done")
    second, _ = turn(live, [SYSTEM, TASK], "done")
    more = Message("user", "more")
    assert live.plan(Asked((SYSTEM, TASK, reply, more), (), None)).parent == second.call
    named = replace(reply, record=first.call)
    assert live.plan(Asked((SYSTEM, TASK, named, more), (), None)).parent == first.call


def test_an_answer_given_meanwhile_is_seen_by_the_very_same_history() -> None:
    live = session()
    said = Message("assistant", "done")
    history = (SYSTEM, TASK, said, Message("user", "more"))
    assert live.plan(Asked(history, (), None)).parent is None
    first, _ = turn(live, [SYSTEM, TASK], "done")
    assert live.plan(Asked(history, (), None)).parent == first.call
    second, _ = turn(live, [SYSTEM, TASK], "done")
    other = (*history[:3], Message("user", "other"))
    assert live.plan(Asked(other, (), None)).parent == second.call


def test_a_fork_inside_a_long_message_shares_its_beginning() -> None:
    live = session()
    _, reply = turn(live, [SYSTEM, TASK], CALL)
    base, long = [SYSTEM, TASK, reply], "the file says: " + "up and down " * 20
    first, _ = turn(live, [*base, result(reply.calls[0], long + "A")], "done")
    second, _ = turn(live, [*base, result(reply.calls[0], long + "B and more")], "done")
    assert second.parent == first.call
    assert second.prefix_tokens > first.prefix_tokens + WORTH_SHARING
    assert second.prefix_messages == first.prefix_messages == 3
    whole = [SYSTEM, TASK, reply, result(reply.calls[0], long + "B and more")]
    assert list(second.full_ids) == TEMPLATE.whole(whole, ()).ids
    assert trees.sampled(live.tree, second.call).count(1) == sum(
        len(live.tree.nodes[call].output_ids) // 4 for call in ("x-c0", "x-c2")
    )
    third, _ = turn(live, [*base, result(reply.calls[0], long + "B and more"), Message("user", "on")], "done")
    assert third.parent == second.call


def test_another_system_prompt_is_another_root_however_alike() -> None:
    live = session()
    turn(live, [Message("system", "You work in a folder. " * 20), TASK], "done")
    second, _ = turn(live, [Message("system", "You work in a folder. " * 20 + "!"), TASK], "done")
    assert (second.parent, second.prefix_tokens) == (None, 0)


def test_a_list_sent_again_is_read_again_only_where_it_changed() -> None:
    read: list[int] = []

    def note(item: object, index: int) -> str:
        read.append(index)
        return str(item)

    recall = Recall(note)
    items = [{"n": n} for n in range(200)]
    before = recall(items)
    changed = [*({"n": n} for n in range(150)), {"n": -1}, *({"n": n} for n in range(151, 205))]
    after = recall(changed)
    assert read == [*range(200), 150, *range(200, 205)]
    assert after == [str(item) for item in changed]
    assert after[7] is before[7]
    assert recall(items[:150]) == before[:150]
    assert len(read) == 206


def test_lists_of_two_conversations_do_not_answer_for_each_other() -> None:
    recall = Recall(lambda item, index: (item, index))
    head = [{"n": n} for n in range(4)]
    one, two = [*head, "one"], [*head, "two"]
    assert recall(one)[-1] == ("one", 4)
    assert recall(two)[-1] == ("two", 4)
    assert recall(one)[-1] == ("one", 4)


def test_the_record_that_clients_echo_beside_a_thought_is_read() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x-c3"}
    said = {"role": "assistant", "content": [thought, {"type": "text", "text": "so"}]}
    assert anthropic_history.history_of(None, [said])[0][0].record == "x-c3"
    items = [
        {"type": "reasoning", "summary": [], "encrypted_content": "x-c4"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {"role": "user", "content": "on"},
        {"type": "message", "role": "assistant", "content": "more"},
    ]
    assert [each.record for each in responses_history.messages_of("", items, {})] == ["x-c4", "", ""]


def test_what_python_takes_for_equal_is_read_for_itself_in_a_list_sent_again() -> None:
    recall = Recall(lambda item, _: repr(item))
    start = [{"n": number} for number in range(100, 170)]
    for value in (1, True, 1.0, 1):
        items = [*start, {"n": value}]
        assert recall(items) == [repr(item) for item in items]


def test_a_list_that_grew_shorter_and_longer_again_is_read_right() -> None:
    recall = Recall(lambda item, _: str(item))
    for size in (200, 63, 64, 65, 5, 130, 128, 200):
        items = [*range(4), *range(size, 2 * size)]
        assert recall(items) == [str(item) for item in items]


class _Tool(dict[str, Any]):
    """A tool that tells whether it is kept."""


def test_a_system_prompt_that_changes_with_each_call_does_not_keep_each_calls_tools() -> None:
    roots, kept = Roots(), []
    asked = [([Message("system", f"It is {number} o'clock.")], {"name": "bash"}) for number in range(200)]
    for messages, tool in asked:
        offered = _Tool(tool)
        kept.append(weakref.ref(offered))
        assert roots.of(messages, (offered,)) == root_cursor(messages, (tool,))
        del offered
    assert sum(each() is not None for each in kept) < 50
    assert [roots.of(messages, (tool,)) for messages, tool in asked] == [root_cursor(m, (t,)) for m, t in asked]
