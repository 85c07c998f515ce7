"""Histories whose tokens are equal and whose messages are not: each conversation goes on from its own."""

import json
from pathlib import Path

import pytest

from gyre.core.histories import asked as history_of
from gyre.proxy.exchange import Asked, Wire
from gyre.proxy.normalise import Message, ToolCall
from gyre.proxy.session import Limits, Plan, Session
from gyre.proxy.template import Template
from schemas.calls import ModelCallRecorded
from tests.proxy.families import QWEN3, QWEN25
from tests.proxy.templates import drawn, with_template
from tests.proxy.test_equal_answers import Headed

OPENING = (Message("system", "You help in a folder."), Message("user", "look at it"))
REMINDER = (
    "Reminder: keep everything as short as you can, and write no files outside of the folder that you were given. "
)


class Talks:
    """Conversations of one execution, each with a name of its own."""

    def __init__(self, template: Template) -> None:
        self.live = Session("x", 7, template, Limits(1.0, 400, 1 << 20), Headed())
        self.template, self.records = template, dict[str, ModelCallRecorded]()

    def turn(self, name: str, history: list[Message], text: str) -> tuple[Plan, Message]:
        plan = self.live.plan(Asked(tuple(history), (), None, wire=Wire("chat", {"x-agent": name})))
        record = self.live.record(plan, drawn(self.template, plan, text), total_seconds=0.0, delivered=True)
        self.live.add(record)
        self.records[plan.call] = record
        return plan, self.live.reply(plan.call)[0]

    def told(self, call: str) -> list[str | None]:
        """The call ids that a call's recorded history holds."""
        entries = history_of(self.records, call)
        return [
            str(each.message["tool_call_id"])
            for each in (*entries.matched, *entries.new)
            if not each.answer and "tool_call_id" in each.message
        ]


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return with_template(Path(tmp_path_factory.mktemp("qwen3")) / "m", QWEN3)


def reads(file: str, thought: str) -> str:
    call = json.dumps({"name": "read", "arguments": {"path": file}})
    return f"<think>\n{thought}\n</think>\n\n<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize("names", [["b"], ["a", "b"], ["a", "b", "c"]], ids=len)
def test_conversations_that_differ_in_thoughts_and_ids_alone_each_keep_their_own_answers(
    thinking: Template, names: list[str]
) -> None:
    talks = Talks(thinking)
    histories = {name: list(OPENING) for name in names}
    ids: dict[str, list[str]] = {name: [] for name in names}
    for turn in range(6):
        for name in names:
            plan, reply = talks.turn(name, histories[name], reads(f"{turn}.txt", f"{name} thinks"))
            assert talks.told(plan.call) == ids[name]
            ids[name].append(reply.calls[0].id)
            result = Message("tool", f"{turn}: three boats are in the harbour today", call_id=reply.calls[0].id)
            histories[name] += [reply, result, *([Message("user", REMINDER)] if turn < 2 else [])]
            if turn > 2:
                assert (plan.fallback, plan.prefix_messages) == ("", len(histories[name]) - 3)


def test_a_fork_shares_tokens_with_its_own_history_alone(tmp_path: Path) -> None:
    talks = Talks(with_template(tmp_path / "m", QWEN25))

    def history(call_id: str, tail: str) -> list[Message]:
        calling = Message("assistant", "", (ToolCall(call_id, "moor", '{"path": "a"}'),))
        return [*OPENING, calling, Message("tool", "three boats", call_id=call_id), Message("user", REMINDER + tail)]

    talks.turn("a", history("X", "one"), "done a")
    talks.turn("b", history("Y", "one"), "done b")
    longer, before = history("Y", "two"), ""
    for turn in range(4):
        plan, reply = talks.turn("b", longer, f"turn {turn}")
        assert talks.told(plan.call) == ["Y"]
        assert not before or (plan.parent, plan.prefix_messages) == (before, len(longer) - 1)
        longer, before = [*longer, reply, Message("user", f"go on {turn}")], plan.call
