"""A history that is rendered again shows the policy's turns as they were sampled, whatever the client kept of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gyre.proxy import anthropic
from gyre.proxy.adapters.generic import Generic
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message, dump, load
from gyre.proxy.session import Limits, Plan, Session
from gyre.proxy.template import Template
from schemas.calls import ModelCallRecorded
from tests.proxy.families import OPENING, QWEN3
from tests.proxy.templates import drawn, with_template

SYSTEM, TASK = Message("system", "You help in a folder."), Message("user", "look at it")
NUDGE, ON = Message("user", "<system-reminder>be short</system-reminder>"), Message("user", "go on")
ARGUMENTS = '{"path": "a", "from": 1.0, "at": 1e2}'
CALL = f'<tool_call>\n{{"name": "read", "arguments": {ARGUMENTS}}}\n</tool_call>'


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return with_template(Path(tmp_path_factory.mktemp("qwen3")) / "m", QWEN3)


def session(template: Template) -> Session:
    return Session("x", 7, template, Limits(1.0, 400, 1 << 20), Generic())


class Kept:
    """A session, and its records."""

    def __init__(self, template: Template) -> None:
        self.template, self.live, self.records = template, session(template), list[ModelCallRecorded]()

    def answer(self, plan: Plan, text: str) -> Message:
        given = drawn(self.template, plan, text)
        self.records.append(self.live.record(plan, given, total_seconds=0.0, delivered=True))
        self.live.add(self.records[-1])
        return self.live.reply(plan.call)[0]

    def turn(self, messages: list[Message], text: str) -> tuple[Plan, Message]:
        plan = self.live.plan(chat(messages))
        return plan, self.answer(plan, text)

    def again(self) -> Session:
        """As a proxy has it that starts now."""
        found = session(self.template)
        for record in self.records:
            found.add(ModelCallRecorded.model_validate_json(record.model_dump_json()))
        return found


def chat(messages: list[Message]) -> Asked:
    return Asked(tuple(messages), (), None)


def result(reply: Message, text: str = "ok") -> Message:
    return Message("tool", text, call_id=reply.calls[0].id)


def shown(template: Template, plan: Plan) -> str:
    return template.model.decode(list(plan.full_ids))


def test_a_turn_that_is_rendered_again_is_the_recorded_one_with_the_clients_ids(qwen: Template) -> None:
    kept = Kept(qwen)
    _, reply = kept.turn([SYSTEM, TASK], f"<think>\nhm\n</think>\n\n I read. {CALL}")
    own = reply.calls[0].id.replace("_", ".")
    call = replace(reply.calls[0], id=own, arguments='{"at":100.0,"from":1,"path":"a"}')
    echoed = Message("assistant", "I read.", (call,))
    plan = kept.live.plan(chat([SYSTEM, TASK, echoed, result(echoed), NUDGE]))
    assert plan.fallback
    assert ARGUMENTS in shown(qwen, plan)
    again = next(message for message in plan.messages if message.role == "assistant")
    assert again == replace(reply, calls=(replace(reply.calls[0], id=own),))
    assert own != reply.calls[0].id


@pytest.mark.parametrize("thought", ["he thinks", ""], ids=["thought", "empty"])
def test_a_message_that_a_client_takes_back_leaves_nothing_behind(qwen: Template, thought: str) -> None:
    contexts: list[list[str]] = []
    for nudged in (False, True):
        kept, history = Kept(qwen), [SYSTEM, TASK]
        contexts.append([])
        for turn in range(5):
            if nudged and turn == 2:
                kept.turn([*history, NUDGE], "fine")
            plan, reply = kept.turn(history, f"<think>\n{thought}\n</think>\n\n{CALL}")
            contexts[-1].append(shown(qwen, plan))
            history += [replace(reply, thinking=""), result(reply, f"contents {turn}")]
        assert contexts[-1][-1].count("<think>") == 4
    assert contexts[0] == contexts[1]


def test_a_thought_that_the_prompt_begins_is_none_of_the_history(tmp_path: Path) -> None:
    template = with_template(tmp_path / "m", OPENING)
    kept, history = Kept(template), [SYSTEM, TASK]
    for _ in range(3):
        _, reply = kept.turn(history, f"hm\n</think>\n\n{CALL}")
        history += [replace(reply, thinking=""), result(reply), ON]
        before, reply = kept.turn(history, "hm\n</think>\n\nfine")
        history += [replace(reply, thinking=""), ON]
        assert kept.live.plan(chat(history)).prefix_messages > before.prefix_messages


def blocks(message: Message, call: str) -> dict[str, Any]:
    """An answer as a client of the Messages API sends it back."""
    thought = [{"type": "thinking", "thinking": message.thinking, "signature": call}] if message.thinking else []
    text = [{"type": "text", "text": message.content}] if message.content else []
    uses = [
        {"type": "tool_use", "id": each.id, "name": each.name, "input": orjson.loads(each.arguments)}
        for each in message.calls
    ]
    return {"role": "assistant", "content": [*thought, *text, *uses]}


def said(messages: list[dict[str, Any]]) -> Asked:
    body = {"model": "m", "max_tokens": 300, "system": SYSTEM.content, "messages": messages}
    return anthropic.parse(orjson.dumps(body), {}).asked


def test_an_answer_that_the_client_names_is_the_same_one_after_a_restart(qwen: Template) -> None:
    kept = Kept(qwen)
    history: list[dict[str, Any]] = [{"role": "user", "content": "look at it"}]
    first = kept.live.plan(said(history))
    one = kept.answer(first, "<think>\none\n</think>\n\ndone")
    kept.answer(kept.live.plan(said(history)), "<think>\ntwo\n</think>\n\ndone")
    history += [blocks(one, first.call), {"role": "user", "content": "and now?"}]
    plan = kept.live.plan(said(history))
    assert plan.fallback
    reply = kept.answer(plan, f"<think>\nhm\n</think>\n\n{CALL}")
    told = {"type": "tool_result", "tool_use_id": reply.calls[0].id, "content": "ok"}
    history += [blocks(reply, plan.call), {"role": "user", "content": [told]}]
    assert kept.again().plan(said(history)) == (goes_on := kept.live.plan(said(history)))
    assert goes_on.parent == plan.call


def test_a_record_keeps_the_call_that_a_turn_answers_and_a_template_is_not_shown_it() -> None:
    named = Message("assistant", "done", record="x-c3")
    assert load(dump((TASK, named)))[1].record == "x-c3"
    assert load(dump((TASK, Message("assistant", "done"))))[1].record == ""
    assert "record" not in named.wire()
    assert dump((TASK,)) == '[{"content":"look at it","role":"user"}]'
