"""What real clients were recorded to send: every body is read, and what did not change on the wire is read the same."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.exchange import Asked
from gyre.proxy.probes import api_of
from gyre.proxy.protocols import PROTOCOLS

RECORDINGS = sorted((Path(__file__).parents[1] / "data" / "harness").glob("*.jsonl"))
APPENDING = [
    "claude-code-2.1.332-twoturn",
    "claude-code-2.1.332-parallel",
    "codex-0.171.0-twoturn",
    "codex-0.171.0-parallel",
    "mini-swe-agent-2.4.6-twoturn",
    "mini-swe-agent-2.4.6-multi",
    "openhands-sdk-1.58.2-anthropic-twoturn",
    "openhands-sdk-1.58.2-chat-twoturn",
    "qwen-code-0.24.4-parallel",
]


def asked(file: Path) -> list[Asked]:
    """The recorded requests, as the proxy reads them."""
    events = [json.loads(line) for line in file.read_text().splitlines()]
    posts = {event["n"]: event for event in events if event["ev"] == "request" and event["method"] == "POST"}
    return [_asked(event, posts) for event in posts.values()]


def _asked(event: Any, posts: dict[int, Any]) -> Asked:
    body = dict(event["body"])
    if isinstance(body.get("tools"), dict):
        body["tools"] = posts[body["tools"]["$same_tools_as_request"]]["body"]["tools"]
    headers = {name.lower(): value for name, value in event["headers"]}
    return PROTOCOLS[api_of(event["path"])].parse(json.dumps(body).encode(), headers).asked


@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.stem)
def test_every_recorded_request_is_read_and_keeps_what_adapters_look_at(file: Path) -> None:
    requests = asked(file)
    assert requests
    for request in requests:
        assert request.messages
        assert {message.role for message in request.messages} <= {"system", "user", "assistant", "tool"}
        assert request.wire.headers["content-type"].startswith("application/json")
        assert all(tool["function"]["name"] for tool in request.tools)


@pytest.mark.parametrize("name", APPENDING)
def test_a_history_that_only_grows_is_read_as_one_that_only_grows(name: str) -> None:
    requests = asked(next(file for file in RECORDINGS if file.stem == name))
    assert len(requests) > 1
    for before, after in pairwise(requests):
        assert after.tools == before.tools
        assert after.messages[: len(before.messages)] == before.messages
        assert after.messages[len(before.messages)].role == "assistant"


def test_results_of_parallel_calls_follow_the_turn_that_made_them() -> None:
    for name in ("claude-code-2.1.332-parallel", "codex-0.171.0-parallel", "qwen-code-0.24.4-parallel"):
        last = asked(next(file for file in RECORDINGS if file.stem == name))[-1].messages
        turn = next(message for message in last if message.calls)
        results = last[last.index(turn) + 1 :][: len(turn.calls)]
        assert len(turn.calls) == 3
        assert {message.call_id for message in results} == {call.id for call in turn.calls}


def test_claude_codes_attribution_line_never_reaches_the_policy_but_stays_on_the_wire() -> None:
    for file in RECORDINGS:
        if file.stem.startswith("claude-code"):
            for request in asked(file):
                assert "x-anthropic-billing-header" not in "".join(message.content for message in request.messages)
                assert "x-anthropic-billing-header" in json.dumps(request.wire.body["system"])


def test_codexs_calls_in_a_namespace_are_read_by_the_names_that_the_policy_saw() -> None:
    requests = asked(next(file for file in RECORDINGS if file.stem == "codex-0.171.0-subagent"))
    offered = {tool["function"]["name"] for tool in requests[0].tools}
    called = {call.name for request in requests for message in request.messages for call in message.calls}
    assert {"spawn_agent", "wait_agent", "exec_command"} <= called <= offered
