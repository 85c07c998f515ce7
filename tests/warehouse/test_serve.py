"""`gyre serve analytics` beside a real log: it follows, shares its folder with those who ask, and ends when told to."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

from bus import subjects
from bus.jetstream import Bus
from bus.server import NatsServer
from gyre.warehouse.opening import opened
from schemas.speakers import stream_of
from services.place import Note
from tests.warehouse.told import committed, healthy

RUN = "live"
SERVE = (sys.executable, "-m", "services.cli", "serve", "analytics", "--folder")


def count(folder: Path) -> int:
    with opened(str(folder / "warehouse")) as warehouse:
        return int(json.loads(warehouse.query("SELECT count() AS n FROM events", {}))["n"])


async def say(bus: Bus, first: int) -> int:
    """A run's events, all of them, at seconds from `first` on; how many."""
    told = [event for event in healthy() if not isinstance(event, str)]
    for place, event in enumerate(told):
        commit = committed(RUN, first + place, event)
        if stream_of(event.type) == "CALL":
            await bus.calls.append(subjects.call(RUN, "x0-0"), commit)
        else:
            await bus.ev.append(subjects.ev(RUN, "control", "run"), commit)
    return len(told)


async def arrived(folder: Path, expected: int) -> None:
    """Ask until so many events are there: a process that only writes rows tells nobody."""
    async with asyncio.timeout(60):
        while await asyncio.to_thread(count, folder) < expected:
            await asyncio.sleep(0.1)


async def test_it_follows_a_live_log_and_others_may_ask_meanwhile(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats").start()
    process = None
    try:
        bus = await Bus.connect(server.url, RUN, "control", "control-1", tmp_path, create=True)
        Note(RUN, server.url, "always").write(tmp_path)
        expected = await say(bus, 0)
        process = subprocess.Popen([*SERVE, str(tmp_path)], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)
        await arrived(tmp_path, expected)
        expected += await say(bus, 1000)
        await arrived(tmp_path, expected)
        process.send_signal(signal.SIGTERM)
        _, told = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0, told
        assert count(tmp_path) == expected
        await bus.close()
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        server.stop()
