"""Attaching where the log lies on a server of one's own, with users that were written before there was a run."""

import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus import credentials, users
from bus.archive import import_run
from bus.server import NatsServer
from services.attach import Wish, attach
from services.attach_host import AttachError
from services.place import Note
from tests.e2e.living import Command

ROOT = Path(__file__).parents[2]
OTHERS = Path(__file__).with_name("others.py")
HEAD = 780
"""Of the recorded run."""


@pytest.fixture
async def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """A run folder without a server: the log lies on one that knows the users of any run."""
    out, run = tmp_path / "out", tmp_path / "runs/small"
    run.mkdir(parents=True)
    server = NatsServer(tmp_path / "nats", "laptop", authorization=lambda: credentials.ensure(out, users.ANY)).start()
    monkeypatch.setenv(credentials.ELSEWHERE, str(out / "users"))
    try:
        await import_run(server.url, ROOT / "tests/data/runs/small.jsonl.zst", run)
        Note("small", server.url, "always").write(run)
        yield tmp_path / "runs"
    finally:
        server.stop()


async def test_a_finished_run_is_read_to_its_end_with_a_login_that_may_just_that_and_with_no_other(
    runs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"file": str(runs / "seen"), "events": "0"}
    outcome = await attach(Wish("small", f"{OTHERS}:Sleeper", options=options), runs)
    assert (outcome.code, outcome.position) == (0, {"EV": HEAD})
    assert json.loads((runs / "seen").read_text())[-1] == [HEAD, 0]
    program = (sys.executable, str(ROOT / "examples/consumers/plain.py"))
    assert (await attach(Wish("small", "", program, begin="now"), runs)).code == 0
    assert capfd.readouterr().err == ""

    monkeypatch.delenv(credentials.ELSEWHERE)
    monkeypatch.setenv(credentials.USER, users.READER)
    monkeypatch.setenv(credentials.PASSWORD, credentials.password(runs.parent / "out", users.READER))
    with pytest.raises(AttachError, match=r"^user attached_00: has no password here, and reader may do too much"):
        await attach(Wish("small", f"{OTHERS}:Crasher"), runs)


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143)])
async def test_a_program_ends_the_command_as_it_would_end_a_shell(runs: Path, script: str, code: int) -> None:
    assert (await attach(Wish("small", "", ("sh", "-c", script)), runs)).code == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_who_interrupts_a_program_is_told_that_it_was_interrupted(runs: Path, number: signal.Signals) -> None:
    words = ("small", "--runs", runs, "--exec", "sh -c 'echo begun >&2; exec sleep 3600'")
    command = await Command.start("attach", *words)
    await command.line(lambda line: line == "begun")
    command.stop(number)
    code, said = await command.end()
    assert (code, said) in ((130, ""), (130, "stopped\n"))  # the signal is passed on, or came before it could be
