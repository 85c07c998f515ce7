"""Runner and evaluator as processes on a real server; the runner is killed while it holds executions."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bus import users
from bus.credentials import server_of
from bus.jetstream import Bus
from bus.server import NatsServer
from bus.streams import Limits
from gyre.config import Config
from gyre.sandboxes.orphans import marked
from schemas.dispatch import ExecutionDispatched, ExecutionTerminated, LaunchGranted
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.rewards import RewardAssigned
from schemas.runs import RunStarted
from services import runner
from services.place import Note, Place

SCRIPT = 'case $HOME in *x0-0*|*x0-1*) setsid sleep 300 & touch up; sleep 300;; esac; touch "done"'
COUNT = 7
LATE = "x0-6"
"""Granted only when the runner that first held it is dead."""
ENDS = "ev.r.runner.execution.*.terminated"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", sync="laptop").start()
    yield server
    server.stop()


@contextmanager
def process(service: str, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "services.runtime", service, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as started:  # its leash: held until it has ended
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                started.terminate()
            assert started.wait(20) in (0, -9)


async def heard(bus: Bus, filter_: str, count: int) -> list[Event]:
    found: list[Event] = []
    said = bus.ev.read(0, filter_)
    async with asyncio.timeout(60):
        while len(found) < count:
            found += (await anext(said)).commit.events  # type: ignore[union-attr]
    await said.aclose()
    return found


async def appears(path: Path) -> None:
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.01)


async def test_a_killed_runner_leaves_every_execution_ended_once_and_scored(
    run: Any, server: NatsServer, tmp_path: Path
) -> None:
    run.task("job", '[ -f "done" ]')
    run.harness(SCRIPT)
    limits = Limits(ack_wait_seconds=2)
    bus = await Bus.connect(server.url, "r", "tester", "one", tmp_path, create=True, sync="laptop", limits=limits)
    Note("r", server.url, "laptop").write(tmp_path)
    await begin(bus, run.config, tmp_path, server.url)
    with process("evaluator", tmp_path):
        with process("runner", tmp_path) as first:
            await asyncio.gather(*(appears(tmp_path / f"work/x0-{index}/ws/up") for index in (0, 1)))
            await heard(bus, ENDS, COUNT - 3)
            first.kill()
        with process("runner", tmp_path):
            await say(bus, run.config, LATE, "granted", LaunchGranted(execution=LATE))
            ends = await heard(bus, ENDS, COUNT)
            judged = await heard(bus, "ev.r.evaluator.execution.*", 2 * COUNT)
    reasons = {end.execution: end.reason for end in ends if isinstance(end, ExecutionTerminated)}
    assert reasons == {f"x0-{index}": "failed" if index < 2 else "completed" for index in range(COUNT)}
    rewards = {event.execution: event.reward for event in judged if isinstance(event, RewardAssigned)}
    assert rewards == {f"x0-{index}": float(index >= 2) for index in range(COUNT)}
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    assert not [pid for pid in pids if any(marked(pid, tmp_path / f"work/x0-{index}") for index in (0, 1))]
    await bus.close()


async def begin(bus: Bus, config: Config, folder: Path, url: str) -> None:
    place = Place("control", "tester", "r", folder, url, config)
    weights = WeightsRef(digest="0" * 64, size=0, address="none")
    started = RunStarted(
        config=config.table(),
        config_digest=config.digest(),
        seed=0,
        code_version="test",
        weights=weights,
        tasks=("job",),
        heldout=("job",),
    )
    await bus.ev.append(place.subject("run"), place.commit((started,), as_of=0, correlation="r"))
    for name in (f"x0-{index}" for index in range(COUNT)):
        entry = ExecutionDispatched(execution=name, group="g0", task="job", index=0, version=0, seed=1)
        await say(bus, config, name, "dispatched", entry)
        if name != LATE:
            await say(bus, config, name, "granted", LaunchGranted(execution=name))


async def say(bus: Bus, config: Config, execution: str, word: str, event: Event) -> None:
    scheduler = Place("scheduler", "tester", "r", Path(), "", config)
    commit = scheduler.commit((event,), as_of=0, correlation=execution)
    await bus.ev.append(scheduler.subject("execution", execution, word), commit)


async def test_a_runner_that_may_not_read_what_was_recorded_works_as_it_did_before(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server has the users of an earlier gyre, whose runners read EV alone."""
    monkeypatch.setattr(users, "_READ_CALL", users._READ_CALL - {"runner"})
    server = server_of(tmp_path, "r", "laptop").start()
    run.configure(bus={"durability": "laptop"})
    run.task("job")
    run.harness("echo ran >out")
    names = ("x0-0", "x0-1")
    try:
        bus = await Bus.connect(server.url, "r", "importer", "one", tmp_path, create=True, sync="laptop")
        own = await Bus.connect(server.url, "r", "runner", "runner-1", tmp_path, sync="laptop")
        serving = asyncio.ensure_future(runner.serve(run.place("runner", "runner-1"), own))
        for name in names:
            entry = ExecutionDispatched(execution=name, group="g0", task="job", index=0, version=0, seed=1)
            await say(bus, run.config, name, "dispatched", entry)
            await say(bus, run.config, name, "granted", LaunchGranted(execution=name))
        ends = await heard(bus, ENDS, len(names))
        serving.cancel()
        await asyncio.wait({serving})
        await own.close()
        await bus.close()
    finally:
        server.stop()
    assert {end.reason for end in ends if isinstance(end, ExecutionTerminated)} == {"completed"}
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "services.runner"]
    assert "until the server has its users written anew: subject $JS.API.DIRECT.GET.CALL_r: user runner" in warning
