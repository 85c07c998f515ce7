"""The stub harness from outside, and what it draws."""

import os
import subprocess
import sys
from math import log
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import pytest

from gyre.harnesses import stub
from gyre.harnesses.stub.options import Options, parse
from gyre.harnesses.stub.workload import calls_of, tokens_of

AGENT = Path(stub.__path__[0]) / "agent.py"
Server = Any


def run(server: Server, folder: Path, execution: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The harness as the runner starts it: a box named like the execution, the workspace in it."""
    box = folder / execution
    (box / "ws").mkdir(parents=True)
    (box / "instruction.md").write_text('Write "owl" to "box.txt".\n')
    environment = {
        "PATH": os.environ["PATH"],
        "OPENAI_BASE_URL": f"http://127.0.0.1:{server.port}/x/token/v1",
        "OPENAI_API_KEY": "key",
        "GYRE_INSTRUCTION_FILE": str(box / "instruction.md"),
        **more,
    }
    command = [sys.executable, "-I", "-S", str(AGENT), *options]
    return subprocess.run(
        command, cwd=box / "ws", env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_each_call_goes_on_from_the_answer_before_it_and_asks_for_what_was_drawn(
    server: Server, say: Any, tmp_path: Path
) -> None:
    server.replies = [say("one"), say("two"), say("three")]
    ended = run(server, tmp_path, "x3-1", "--calls", "3", "--tokens", "30", "--seed", "5")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    said = [[message["content"] for message in request["messages"][1::2]] for request in server.requests]
    assert said == [[], ["one"], ["one", "two"]]
    drawn = calls_of(parse(["--calls", "3", "--tokens", "30", "--seed", "5"]), "x3-1")
    assert tuple(request["max_tokens"] for request in server.requests) == drawn


@pytest.mark.parametrize(("execution", "left"), [("x3-0", "owl\n"), ("x3-1", None)])
def test_every_second_execution_of_a_group_does_some_of_its_task(
    server: Server, say: Any, tmp_path: Path, execution: str, left: str | None
) -> None:
    server.replies = [say("so")]
    assert run(server, tmp_path, execution, "--calls", "1").returncode == 0
    written = tmp_path / execution / "ws" / "box.txt"
    assert (written.read_text() if written.exists() else None) == left


def test_a_wrong_command_line_is_one_line_and_no_call(server: Server, tmp_path: Path) -> None:
    for execution, options, said in (
        ("x1-0", ("--calls", "0"), "--calls: '0' is not a number from 1"),
        ("x2-0", ("--query-share", "1.5"), "--query-share: '1.5' is not a number from 0 to 1"),
        ("x3-0", ("--turns", "3"), "--turns: unknown option"),
        ("nameless", (), "its folder 'nameless' does not end in a number"),
    ):
        ended = run(server, tmp_path, execution, *options)
        assert ended.returncode == 64
        assert said in ended.stderr
        assert ended.stderr.count("\n") == 1
    assert server.requests == []


def test_a_server_that_refuses_ends_the_episode_with_its_reason(server: Server, tmp_path: Path) -> None:
    server.replies = [422]
    ended = run(server, tmp_path, "x3-0")
    assert ended.returncode == 2
    assert "gave up: the server refused the request: HTTP 422" in ended.stderr


def test_what_is_drawn_is_lognormal_and_partly_the_querys() -> None:
    options = Options()
    logs = [[log(tokens_of(options, f"x{group}-{index}")) for index in range(4)] for group in range(1500)]
    every = [each for group in logs for each in group]
    means = [fmean(group) for group in logs]
    within = fmean(pstdev(group) ** 2 for group in logs) * 4 / 3
    assert median(every) == pytest.approx(log(160), abs=0.03)
    assert pstdev(every) == pytest.approx(0.52, rel=0.04)
    assert (pstdev(means) ** 2 - within / 4) / pstdev(every) ** 2 == pytest.approx(0.62, abs=0.04)


def test_calls_add_up_to_what_was_drawn_each_with_something_to_say() -> None:
    options = parse(["--calls", "20", "--most", "300"])
    for name in ("x0-0", "x0-1", "x17-3", "e2-5"):
        calls = calls_of(options, name)
        assert len(calls) == 20
        assert min(calls) >= 2
        assert sum(calls) == tokens_of(options, name) <= 300
    assert calls_of(options, "x0-0") != calls_of(parse(["--calls", "20", "--most", "300", "--seed", "1"]), "x0-0")
