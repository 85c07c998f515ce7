"""The reference harness from outside: what it asks, what it does in the workspace, how it ends."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Say = Callable[..., dict[str, Any]]
Agent = Callable[..., subprocess.CompletedProcess[str]]
Server = Any


def results(server: Server) -> list[str]:
    """The tool results in the last request."""
    return [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize("options", [(), ("--stream",)], ids=["whole", "streamed"])
def test_it_reads_writes_appends_and_ends_on_an_answer(
    server: Server, agent: Agent, say: Say, workspace: Path, options: tuple[str, ...]
) -> None:
    (workspace / "in.txt").write_text("owl\n")
    server.replies = [
        say(None, ("read", {"path": "in.txt"})),
        say(
            "copying",
            ("write", {"path": "deep/out.txt", "content": "owl"}),
            ("append", {"path": "in.txt", "content": "é"}),
        ),
        say("done"),
    ]
    ended = agent(*options)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
    assert (workspace / "deep" / "out.txt").read_text() == "owl\n"
    assert (workspace / "in.txt").read_text() == "owl\né\n"
    assert results(server) == ["owl\n", "ok", "ok"]


def test_it_shows_only_what_any_client_shows(server: Server, agent: Agent, say: Say) -> None:
    server.replies = [say("done")]
    agent("--max-tokens", "40")
    request = server.requests[0]
    assert server.paths == ["/x/token/v1/chat/completions"]
    assert server.headers[0]["authorization"] == "Bearer key"
    assert (request["model"], request["max_tokens"]) == ("policy", 40)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert request["messages"][1]["content"] == "Do the job."
    names = [tool["function"]["name"] for tool in request["tools"]]
    assert names == ["shell", "read", "write", "append", "delegate", "finish"]


def test_history_is_sent_back_as_it_came(server: Server, agent: Agent, say: Say) -> None:
    turn = say("Thinking.", ("read", ' {"path" :"no.txt"} '))
    server.replies = [turn, say("done")]
    agent()
    first, second = (request["messages"] for request in server.requests)
    assert second[: len(first)] == first
    assert second[len(first)] == turn
    assert second[len(first) + 1] == {
        "role": "tool",
        "tool_call_id": "c0",
        "content": "error: No such file or directory",
    }


def test_finish_ends_it_at_once(server: Server, agent: Agent, say: Say, workspace: Path) -> None:
    late = ("write", {"path": "late.txt", "content": "x"})
    server.replies = [say(None, ("finish", {"message": "all done"}), late)]
    ended = agent()
    assert (ended.returncode, ended.stdout, len(server.requests)) == (0, "all done\n", 1)
    assert not (workspace / "late.txt").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("write", '{"path": "a', "error: arguments are not valid JSON"),
        ("write", "[1]", "error: arguments must be a JSON object"),
        ("write", {"path": "a.txt"}, "error: argument content must be a string"),
        ("write", {"path": 3, "content": "x"}, "error: argument path must be a string"),
        ("read", {"path": "../instruction.md"}, "error: path is outside the folder"),
        ("read", {"path": "/etc/passwd"}, "error: path is outside the folder"),
        ("read", {"path": "link"}, "error: path is outside the folder"),
        ("write", {"path": "link", "content": "x"}, "error: path is outside the folder"),
        ("write", {"path": ".", "content": "x"}, "error: path is outside the folder"),
        ("read", {"path": "a\0b"}, "error: argument holds a character that is not allowed"),
        ("write", {"path": "\ud800", "content": "x"}, "error: argument holds a character that is not allowed"),
        ("read", {"path": "folder"}, "error: not a regular file"),
        ("fly", {}, "error: no tool named fly"),
        ("shell", {"command": "a\0b"}, "error: argument holds a character that is not allowed"),
    ],
)
def test_a_mistake_comes_back_as_an_error_text(
    server: Server, agent: Agent, say: Say, workspace: Path, name: str, arguments: Any, expected: str
) -> None:
    (workspace / "link").symlink_to("/etc/hostname")
    (workspace / "folder").mkdir()
    server.replies = [say(None, (name, arguments)), say("done")]
    ended = agent()
    assert (ended.returncode, ended.stderr, results(server)) == (0, "", [expected])


@pytest.mark.parametrize(
    "calls", [["x"], [{}], [{"id": None, "function": None}], [{"function": {"name": 5, "arguments": {}}}]]
)
def test_a_malformed_tool_call_never_crashes_it(server: Server, agent: Agent, say: Say, calls: list[Any]) -> None:
    server.replies = [{"role": "assistant", "content": None, "tool_calls": calls}, say("done")]
    ended = agent()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert results(server)[0].startswith("error: ")


def test_shell_runs_in_the_workspace_without_the_keys(server: Server, agent: Agent, say: Say, workspace: Path) -> None:
    server.replies = [
        say(None, ("shell", {"command": "pwd; env | grep -E 'OPENAI|GYRE'; echo oops >&2; exit 3"})),
        say("done"),
    ]
    agent()
    assert results(server) == [f"{workspace}\noops\nexit code 3"]


@pytest.mark.parametrize(
    "command", ["sleep 50", "sleep 50 & sleep 50", "yes", "exec >&- 2>&-; sleep 50", "trap '' TERM; yes"]
)
def test_a_command_that_does_not_end_is_stopped(server: Server, agent: Agent, say: Say, command: str) -> None:
    server.replies = [say(None, ("shell", {"command": command})), say("done")]
    started = time.monotonic()
    assert agent("--shell-timeout", "0.5", "--output-limit", "100").returncode == 0
    assert time.monotonic() - started < 20
    assert results(server)[0].endswith("stopped after 0.5 s")
    assert len(results(server)[0]) < 200


def test_a_child_left_behind_does_not_hold_it_up(server: Server, agent: Agent, say: Say) -> None:
    server.replies = [say(None, ("shell", {"command": "sleep 50 & echo started"})), say("done")]
    started = time.monotonic()
    agent()
    assert time.monotonic() - started < 20
    assert results(server) == ["started\nexit code 0"]


def test_a_long_result_loses_its_middle(server: Server, agent: Agent, say: Say, workspace: Path) -> None:
    (workspace / "long.txt").write_text("a" * 500 + "z" * 500)
    server.replies = [say(None, ("read", {"path": "long.txt"})), say("done")]
    agent("--output-limit", "90")
    assert results(server) == ["a" * 60 + "\n[910 characters left out]\n" + "z" * 30]


def test_a_reply_without_a_tool_is_answered_as_often_as_told(server: Server, agent: Agent, say: Say) -> None:
    server.replies = [say("I would write it."), say("Like this."), say("done")]
    assert agent("--keep-going", "1").stdout == "Like this.\n"
    assert [message["role"] for message in server.requests[-1]["messages"]] == ["system", "user", "assistant", "user"]
    assert "call finish" in server.requests[-1]["messages"][-1]["content"]


def test_who_is_asked_to_go_on_may_finish(server: Server, agent: Agent, say: Say) -> None:
    server.replies = [say("I would write it."), say(None, ("finish", {"message": "done"}))]
    assert agent("--keep-going", "9").stdout == "done\n"


def test_an_example_stands_before_the_task(server: Server, agent: Agent, say: Say) -> None:
    server.usage = 99
    server.replies = [say(None, ("read", {"path": "a"})), say("I looked for a."), say("done")]
    assert agent("--example", "--compact-at", "100").returncode == 0
    first, _, after = (request["messages"] for request in server.requests)
    roles = ["system", "user", *["assistant", "tool"] * 3, "assistant", "user"]
    assert [message["role"] for message in first] == roles
    assert first[-1] == {"role": "user", "content": "Do the job."}
    assert after[:-1] == first[:-1]
    assert after[-1]["content"].endswith("I looked for a.")


def test_a_helper_has_a_fresh_context_and_the_same_folder(
    server: Server, agent: Agent, say: Say, workspace: Path
) -> None:
    server.replies = [
        say(None, ("delegate", {"prompt": "Write a file."})),
        say(None, ("write", {"path": "a.txt", "content": "x"})),
        say("I wrote it."),
        say("done"),
    ]
    assert agent().stdout == "done\n"
    main, helper = server.requests[0], server.requests[1]
    assert helper["messages"][1] == {"role": "user", "content": "Write a file."}
    assert len(helper["messages"]) == 2
    assert helper["messages"][0] != main["messages"][0]
    assert "delegate" not in [tool["function"]["name"] for tool in helper["tools"]]
    assert results(server) == ["I wrote it."]
    assert (workspace / "a.txt").exists()


def test_a_helper_cannot_delegate_beyond_the_depth(server: Server, agent: Agent, say: Say) -> None:
    server.replies = [say(None, ("delegate", {"prompt": "Go."})), say("done")]
    agent("--depth", "0")
    assert results(server) == ["error: no tool named delegate"]


def test_a_full_context_is_summarised_into_a_new_root(server: Server, agent: Agent, say: Say) -> None:
    server.usage = 99  # with one token of answer each call has used 100
    server.replies = [say(None, ("read", {"path": "a"})), say("I looked for a."), say("done")]
    assert agent("--compact-at", "100").returncode == 0
    _, asked, after = (request["messages"] for request in server.requests)
    assert asked[-1]["role"] == "user"
    assert asked[-1]["content"].startswith("[compaction]")
    assert [message["role"] for message in after] == ["system", "user"]
    assert after[1]["content"] == "Do the job.\n\nSummary of the work so far:\nI looked for a."


def test_below_the_limit_nothing_is_summarised(server: Server, agent: Agent, say: Say) -> None:
    server.usage = 99
    server.replies = [say(None, ("read", {"path": "a"})), say("done")]
    agent("--compact-at", "101")
    assert [len(request["messages"]) for request in server.requests] == [2, 4]


def test_a_refused_prompt_is_summarised_without_its_last_turn(server: Server, agent: Agent, say: Say) -> None:
    server.error = "prompt is too long: 900 tokens > 800 maximum"
    server.replies = [
        say(None, ("read", {"path": "a"})),
        say(None, ("read", {"path": "b"})),
        400,
        say("Read a."),
        say("done"),
    ]
    assert agent().returncode == 0
    assert [len(request["messages"]) for request in server.requests] == [2, 4, 6, 5, 2]


def test_it_gives_up_when_even_the_instruction_is_too_long(server: Server, agent: Agent) -> None:
    server.error = "prompt is too long: 900 tokens > 800 maximum"
    server.replies = [400]
    ended = agent()
    assert ended.returncode == 2
    assert "nothing is left to summarise" in ended.stderr
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "failure", [500, 503, 429, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", b"nonsense\r\n\r\n"]
)
def test_a_failing_server_is_asked_again_with_the_same_request(
    server: Server, agent: Agent, say: Say, failure: int | bytes
) -> None:
    server.replies = [failure, failure, say("done")]
    assert agent().returncode == 0
    assert server.requests[0] == server.requests[-1]


def test_a_cut_stream_is_not_taken_for_an_answer(server: Server, agent: Agent, say: Say) -> None:
    cut = b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices":[{"index":0,"delta":{"content":"do"},"finish_reason":null}]}\n\n'
    server.replies = [cut, say("done")]
    assert agent("--stream").stdout == "done\n"


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_ends_it_at_once(server: Server, agent: Agent, status: int) -> None:
    server.replies = [status]
    ended = agent()
    assert ended.returncode == 2
    assert f"HTTP {status}" in ended.stderr
    assert len(server.requests) == 1


def test_it_gives_up_on_a_server_that_stays_away(server: Server, agent: Agent) -> None:
    ended = agent("--retry-for", "0.5", OPENAI_BASE_URL="http://127.0.0.1:1/v1")
    assert ended.returncode == 2
    assert "no answer within 0.5 s" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_it_gives_up_after_so_many_calls(server: Server, agent: Agent, say: Say) -> None:
    server.replies = [say(None, ("read", {"path": "a"}))]
    ended = agent("--max-turns", "3")
    assert ended.returncode == 2
    assert "--max-turns" in ended.stderr
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        (("--fly",), {}, "--fly: unknown option"),
        (("--max-turns",), {}, "--max-turns: needs a value"),
        (("--max-turns=none",), {}, "'none' is not a number"),
        (("--max-turns", "0"), {}, "'0' is not a number of at least 1"),
        (("--retry-for", "nan"), {}, "'nan' is not a number"),
        ((), {"OPENAI_BASE_URL": "ftp://x"}, "is not of the form http://host:port/path"),
        ((), {"OPENAI_API_KEY": ""}, "OPENAI_API_KEY is not set"),
        ((), {"GYRE_INSTRUCTION_FILE": "/no/such/file"}, "/no/such/file"),
    ],
)
def test_wrong_usage_is_one_line_and_its_own_code(
    agent: Agent, options: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    ended = agent(*options, **environment)
    assert ended.returncode == 64
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_help_names_every_option(agent: Agent) -> None:
    ended = agent("--help")
    assert ended.returncode == 0
    for option in (
        "--max-turns",
        "--max-tokens",
        "--compact-at",
        "--retry-for",
        "--stream",
        "--depth",
        "OPENAI_BASE_URL",
    ):
        assert option in ended.stdout
