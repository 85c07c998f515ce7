"""Whoever is told to end while a run's server starts leaves neither a process nor a folder that it made."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest

from bus.errors import Denied
from bus.jetstream import Bus
from bus.server import NatsServer, binary
from gyre.config import Config
from schemas.runs import RunFinished
from services.importing import bring
from services.place import Place
from services.setup import open_run, reopen_run
from services.supervisor import Supervisor
from services.train import follow
from tests.services.recorded import SMALL
from tests.slow_server import SlowServer


def config(folder: Path) -> Config:
    given = ["run.name=tried", f"run.folder={folder}", "model.path=modelled"]
    return Config.load(None, [*given, "tasks.train=words:2:train", "tasks.heldout=words:2:heldout"])


def alive(pid: int) -> bool:
    """A child of this process, which is not there any more once it was waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def ended(opening: Coroutine[Any, Any, object], folder: Path, slow: SlowServer) -> None:
    """Tell this to end once the server that it started reads its store, which it never ends to do."""
    task = asyncio.ensure_future(opening)
    await asyncio.to_thread(slow.until_waited_for)
    pid = orjson.loads((folder / "nats/server.json").read_bytes())["pid"]
    assert alive(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = alive(pid)
    if left:
        os.kill(pid, signal.SIGKILL)  # a thread waits for it
    assert not left


async def test_a_run_that_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await ended(open_run(config(tmp_path)), tmp_path / "tried", SlowServer(tmp_path, monkeypatch))
    assert not (tmp_path / "tried").exists()


async def test_a_run_that_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = await open_run(config(tmp_path))
    assert opened.server is not None
    await asyncio.to_thread(opened.server.stop)
    await ended(reopen_run(opened.folder), opened.folder, SlowServer(tmp_path, monkeypatch))
    assert (opened.folder / "run.json").exists()


async def test_an_archive_that_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await ended(bring(SMALL, tmp_path), tmp_path / "small", SlowServer(tmp_path, monkeypatch))
    assert not (tmp_path / "small").exists()


async def test_a_run_whose_server_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = NatsServer(tmp_path / "nats").start()
    server.kill()
    keeping = Supervisor(tmp_path, Config(), server)._keep_server(server)
    await ended(keeping, tmp_path, SlowServer(tmp_path, monkeypatch))


async def kept(*_: object) -> None:
    """Of a process that is none of what is tested."""


async def test_a_disk_that_fills_up_while_the_server_starts_again_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_keep", kept)
    server = NatsServer(tmp_path / "nats").start()
    server.kill()
    slow, made = SlowServer(tmp_path, monkeypatch), Supervisor(tmp_path, Config(), server)
    running = asyncio.ensure_future(made.run(lambda: False))
    await asyncio.to_thread(slow.until_waited_for)
    pid = orjson.loads((tmp_path / "nats/server.json").read_bytes())["pid"]
    monkeypatch.setattr("services.supervisor.LEAST_FREE_BYTES", 1 << 60)
    try:
        await asyncio.wait_for(running, 30)
    finally:
        left = alive(pid)
    assert (made.full, left) == (True, False)
    assert "MiB free" in made.fatal


async def test_a_run_that_was_finished_when_its_server_ended_is_kept_as_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it starts again while the run ends: that start is given up for good."""
    opened = await open_run(config(tmp_path))
    server = opened.server
    assert server is not None
    bus = await Bus.connect(opened.url, opened.run, "scheduler", "scheduler", opened.folder)
    place = Place("scheduler", "scheduler", opened.run, opened.folder, opened.url, Config())
    said = place.commit((RunFinished(steps=0, dispatched=0, launched=0, terminated=0),), as_of=0, correlation="tried")
    await bus.ev.append(place.subject("run"), said)
    await bus.close()

    async def stop(made: Supervisor) -> None:
        await asyncio.to_thread(server.kill)
        slow = SlowServer(tmp_path, monkeypatch)
        starting = asyncio.ensure_future(made._keep_server(server))
        await asyncio.to_thread(slow.until_waited_for)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        monkeypatch.setattr("bus.server.binary", binary)

    monkeypatch.setattr(Supervisor, "_keep", kept)
    monkeypatch.setattr(Supervisor, "_stop", stop)
    summed = await follow(opened)
    assert Path(summed["archive"]).is_file()
    assert NatsServer(opened.folder / "nats")._find() is None


async def test_a_run_whose_supervisor_cannot_connect_ends_with_its_server(tmp_path: Path) -> None:
    opened = await open_run(config(tmp_path))
    assert opened.server is not None
    kept = opened.folder / "users/control.json"
    kept.write_bytes(orjson.dumps({**orjson.loads(kept.read_bytes()), "password": "of another"}))
    with pytest.raises(Denied):
        await follow(opened)
    assert not alive(opened.server.pid)
