"""Whoever ends a command that looks, however that is done, leaves no server behind."""

import asyncio
import gc
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.cli.signals import ended_as_by_ctrl_c
from services.importing import bring
from services.place import Note
from services.serving import serving
from tests.slow_server import SlowServer

SMALL = Path(__file__).parents[1] / "data/runs/small.jsonl.zst"


def serves(folder: Path) -> bool:
    """Whether a server keeps this run's log now."""
    try:
        os.kill(json.loads((folder / "nats/server.json").read_bytes())["pid"], 0)
    except (OSError, ValueError):
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, "in the background"])
async def test_a_looking_command_that_is_ended_stops_the_server_that_it_started(
    tmp_path: Path, number: signal.Signals | str
) -> None:
    await bring(SMALL, tmp_path)
    shell = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh") if isinstance(number, str) else ()
    command = (
        *shell,
        sys.executable,
        "-m",
        "services.cli",
        "log",
        "tail",
        "small",
        "--runs",
        str(tmp_path),
        "--follow",
    )
    pipe = asyncio.subprocess.PIPE
    tail = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    assert tail.stdout is not None
    await tail.stdout.readline()
    assert serves(tmp_path / "small")
    tail.send_signal(signal.SIGTERM if isinstance(number, str) else number)
    _, said = await tail.communicate()
    assert (tail.returncode, said) == (130, b"stopped\n")
    assert not serves(tmp_path / "small")


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_as_by_ctrl_c():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # it was said once, and is being done
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_command_in_a_thread_leaves_signals_to_others(tmp_path: Path) -> None:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["status", "nobody", "--runs", str(tmp_path)])
    assert result.stderr == f"nobody: neither an archive nor a run in {tmp_path}; `gyre runs` lists them\n"


async def test_a_server_that_was_being_started_meanwhile_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nats").mkdir()
    slow = SlowServer(tmp_path, monkeypatch)

    async def look() -> None:
        async with serving(tmp_path, Note("r", "", "laptop")):
            raise AssertionError("it was told to end before")

    looking = asyncio.ensure_future(look())
    await asyncio.to_thread(slow.until_waited_for)
    assert serves(tmp_path)
    looking.cancel()
    await asyncio.wait({looking})
    assert looking.cancelled()
    assert not serves(tmp_path)
    del looking
    gc.collect()
    assert [record.name for record in caplog.records] == ["bus.server"]  # nothing of asyncio's
