"""What adapters make of requests that no recording holds, and what they know after a restart."""

from collections.abc import Mapping
from typing import Any

import pytest

from gyre.core.leaves import MAIN
from gyre.models.load import NANO
from gyre.proxy.adapters.memory import Memory
from gyre.proxy.adapters.port import Adapter, Hints
from gyre.proxy.adapters.registry import ADAPTERS, AdapterUnknown, find_adapter
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.exchange import Asked, Wire
from gyre.proxy.normalise import Message, ToolCall
from gyre.proxy.session import Limits, Session
from gyre.proxy.template import Template
from schemas.calls import ModelCallRecorded
from tests.proxy.templates import drawn

TEMPLATE = Template(ChatModel.load(NANO))
TOOLS: tuple[dict[str, Any], ...] = ({"type": "function", "function": {"name": "bash"}},)
TASK = Message("user", "write up to a.txt")
CALL = '<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>'


def asked(
    *messages: Message,
    headers: Mapping[str, str] | None = None,
    tools: tuple[dict[str, Any], ...] = TOOLS,
    body: dict[str, Any] | None = None,
) -> Asked:
    return Asked(messages or (TASK,), tools, None, wire=Wire("chat", headers or {}, body or {}))


def system(text: str) -> Message:
    return Message("system", text)


MINE: Adapter = find_adapter("generic")


class Live:
    """A session and its records; `restarted` is what another process makes of the records."""

    def __init__(self, adapter: str) -> None:
        self.adapter = find_adapter(adapter)
        self.session = Session("x", 1, TEMPLATE, Limits(1.0, 64, 4096), self.adapter)
        self.records: list[ModelCallRecorded] = []

    def ask(self, request: Asked, text: str = "done") -> tuple[Hints, Message]:
        plan = self.session.plan(request)
        assert self.restarted().plan(request).hints == plan.hints
        record = self.session.record(plan, drawn(TEMPLATE, plan, text), total_seconds=0.0, delivered=True)
        self.session.add(record)
        self.records.append(record)
        return plan.hints, self.session.reply(plan.call)[0]

    def restarted(self) -> Session:
        again = Session("x", 1, TEMPLATE, Limits(1.0, 64, 4096), self.adapter)
        for record in self.records:
            again.add(ModelCallRecorded.model_validate_json(record.model_dump_json()))
        return again


OPENCODE = {"user-agent": "opencode/1.18.33 x"}
SUMMARY = system("You are a context summarization agent.")


def test_opencode_remembers_whose_session_a_summary_is_of() -> None:
    live = Live("opencode")
    sub = OPENCODE | {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}
    assert live.ask(asked(headers=OPENCODE | {"x-session-id": "ses_1"}))[0] == Hints("turn", MAIN)
    assert live.ask(asked(headers=sub))[0] == Hints("turn", "ses_2")
    nested = OPENCODE | {"x-session-id": "ses_3", "x-parent-session-id": "ses_2"}
    assert live.ask(asked(headers=nested))[0] == Hints("turn", "ses_2/ses_3")
    for own, thread in (("ses_2", "ses_2"), ("ses_1", MAIN), ("ses_3", "ses_2/ses_3")):
        request = asked(SUMMARY, TASK, headers=OPENCODE | {"x-session-id": own}, tools=())
        assert live.ask(request)[0] == Hints("compaction", thread)


def test_qwen_code_tells_a_summarys_thread_by_the_tool_calls_in_it() -> None:
    live = Live("qwen-code")
    agent = {"user-agent": "QwenCode/0.24.4 (linux; x64)"}
    main, sub = system("You are Qwen Code, x"), system("You are a helper")
    _, of_main = live.ask(asked(main, TASK, headers=agent), CALL)
    hints, of_sub = live.ask(asked(sub, TASK, headers=agent), CALL)
    assert hints.thread.startswith("sub-agent-")
    summary = system("You are the component that summarizes")
    for reply, thread in ((of_main, MAIN), (of_sub, hints.thread)):
        request = asked(summary, TASK, reply, Message("tool", "a", call_id=reply.calls[0].id), headers=agent, tools=())
        assert live.ask(request)[0] == Hints("compaction", thread)
    later = asked(sub, Message("user", "snapshot"), of_sub, headers=agent)
    assert live.ask(later)[0] == Hints("turn", hints.thread)


def test_qwen_code_asks_for_a_summary_behind_the_history_as_well() -> None:
    live = Live("qwen-code")
    agent = {"user-agent": "QwenCode/0.24.4 (linux; x64)"}
    question = "You are the component that summarizes a conversation when its context window is about to overflow."
    for prompt in ("You are Qwen Code, x", "You are a helper"):
        hints, reply = live.ask(asked(system(prompt), TASK, headers=agent), CALL)
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": question}]}]}
        history = (system(prompt), TASK, reply, Message("tool", "a", call_id=reply.calls[0].id))
        asking = asked(*history, Message("user", question), headers=agent, body=body)
        assert live.ask(asking)[0] == Hints("compaction", hints.thread)


def test_openhands_has_its_root_session_in_the_body_or_else_its_first_system_prompt() -> None:
    chat = Live("openhands")
    for own, thread in (("a", MAIN), ("b", "b"), ("a", MAIN)):
        request = asked(headers={"x-litellm-session-id": own}, body={"prompt_cache_key": "a"})
        assert chat.ask(request)[0] == Hints("turn", thread)
    anthropic = Live("openhands")
    for own, prompt, thread in (("a", "work", MAIN), ("b", "work\nhelp", "b"), ("a", "work", MAIN)):
        request = asked(system(prompt), TASK, headers={"x-litellm-session-id": own})
        assert anthropic.ask(request)[0] == Hints("turn", thread)
    for own, thread in (("a", MAIN), ("b", "b")):
        request = asked(system("You are maintaining"), TASK, headers={"x-litellm-session-id": own}, tools=())
        assert anthropic.ask(request)[0] == Hints("compaction", thread)


def test_codex_without_metadata_or_with_new_words_is_said_to_be_unknown() -> None:
    agent = {"user-agent": "codex_exec/0.171.0 (x)"}
    hints = Live("codex").ask(asked(headers=agent))[0]
    assert (hints.kind, hints.thread) == ("turn", MAIN)
    assert "no x-codex-turn-metadata" in hints.unknown
    told = '{"request_kind":"review","thread_source":"user","thread_id":"t"}'
    hints = Live("codex").ask(asked(headers=agent | {"x-codex-turn-metadata": told}))[0]
    assert hints == Hints("turn", MAIN, "request_kind 'review'")
    body = {"client_metadata": {"x-codex-turn-metadata": told.replace("review", "turn")}}
    assert Live("codex").ask(asked(headers=agent, body=body))[0] == Hints("turn", MAIN)


def test_claude_code_without_its_header_is_a_sub_agent_by_its_system_prompt() -> None:
    live = Live("claude-code")
    agent = {"user-agent": "claude-cli/2.1.332 (external, cli)"}
    body = {"system": [{"type": "text", "text": "x-anthropic-billing-header: a; cc_is_subagent=true;"}]}
    hints, reply = live.ask(asked(headers=agent, body=body), CALL)
    assert hints.thread.startswith("sub-agent-")
    later = asked(TASK, reply, Message("tool", "a", call_id=reply.calls[0].id), headers=agent, body=body)
    assert live.ask(later)[0] == Hints("turn", hints.thread)


def test_a_task_that_speaks_of_a_mark_inside_its_text_is_no_summary() -> None:
    body = {"messages": [{"role": "user", "content": "explain CRITICAL: Respond with TEXT ONLY"}]}
    agent = {"user-agent": "claude-cli/2.1.332 (external, cli)"}
    assert Live("claude-code").ask(asked(headers=agent, body=body))[0].kind == "turn"


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("claude-code", {"user-agent": "claude-cli/9.9.9 (external, cli)"}),
        ("opencode", {"user-agent": "opencode/9.9.9 x"}),
        ("qwen-code", {"user-agent": "QwenCode/9.9.9 (linux)"}),
        ("codex", {"user-agent": "codex_cli/9.9.9", "x-codex-turn-metadata": '{"request_kind":"turn"}'}),
    ],
)
def test_a_version_that_nobody_looked_at_is_said_to_be_unknown(name: str, headers: dict[str, str]) -> None:
    hints = Live("auto").ask(asked(headers=headers))[0]
    assert (hints.kind, hints.thread) == ("turn", MAIN)
    assert "version 9.9.9" in hints.unknown
    assert ADAPTERS[name].recognises(asked(headers=headers))


@pytest.mark.parametrize("name", ["opencode", "qwen-code", "openhands"])
def test_a_call_without_tools_and_without_a_known_prompt_stays_a_turn_and_is_said_to_be_unknown(name: str) -> None:
    hints = find_adapter(name).hints(asked(system("Rate this."), TASK, tools=()), Memory())
    assert (hints.kind, hints.thread) == ("turn", MAIN)
    assert "a system prompt never seen" in hints.unknown


def test_a_sub_agent_that_calls_itself_main_is_none() -> None:
    headers = {"user-agent": "claude-cli/2.1.332", "x-claude-code-agent-id": "main"}
    assert Live("auto").ask(asked(headers=headers))[0].thread == "main_"
    headers["x-claude-code-agent-id"] = "a/b c"
    assert Live("auto").ask(asked(headers=headers))[0].thread == "a_b_c"


def test_a_history_of_mains_own_calls_is_mains_whatever_its_system_prompt_says_today() -> None:
    live = Live("generic")
    _, reply = live.ask(asked(system("It is Monday."), TASK), CALL)
    later = asked(system("It is Tuesday."), TASK, reply, Message("tool", "a", call_id=reply.calls[0].id))
    assert live.ask(later)[0] == Hints("turn", MAIN)
    other = asked(system("It is Tuesday."), TASK, Message("assistant", "", (ToolCall("x", "bash", "{}"),)))
    assert live.ask(other)[0].thread.startswith("sub-agent-")


def test_an_adapter_of_ones_own_is_named_by_module_and_object() -> None:
    assert find_adapter(f"{__name__}:MINE") is MINE
    for name in ("none", "gyre.nowhere:X", "gyre.proxy.adapters.registry:Nothing"):
        with pytest.raises(AdapterUnknown, match=r"^harness\.adapter '"):
            find_adapter(name)
