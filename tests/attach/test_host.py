"""Where an attached consumer finds its run when the run ends, or renews its passwords, meanwhile."""

import asyncio
import fcntl
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bus.jetstream import Bus
from gyre.config import Config
from schemas.runs import TimerFired
from services.attach_host import hosted
from services.cli.app import app
from services.place import Place
from services.setup import open_run
from tests.e2e.living import Command

OTHERS = Path(__file__).with_name("others.py")


async def test_a_run_is_at_rest_also_where_somebody_else_had_its_server_back_first(tmp_path: Path) -> None:
    opened = await open_run(Config.load(None, ["run.name=tried", f"run.folder={tmp_path}", "model.path=modelled"]))
    server = opened.server
    assert server is not None
    try:
        with (opened.folder / "control.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as its supervisor has it
            async with hosted(opened.folder) as host:
                assert not host.at_rest.is_set()
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
                async with asyncio.timeout(20):
                    await host.bus.ev.head()  # connected again
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    await host.at_rest.wait()
    finally:
        await asyncio.to_thread(server.stop)


@pytest.mark.timeout(200)
async def test_a_consumer_reads_on_with_the_password_that_was_renewed(tmp_path: Path) -> None:
    opened = await open_run(Config.load(None, ["run.name=tried", f"run.folder={tmp_path}", "model.path=modelled"]))
    assert opened.server is not None
    bus = await Bus.connect(opened.url, "tried", "scheduler", "one", opened.folder)
    place = Place("scheduler", "one", "tried", opened.folder, opened.url, Config())

    async def fire(timer: str) -> None:
        commit = place.commit((TimerFired(timer=timer),), as_of=0, correlation="tried")
        await bus.ev.append(place.subject("timer"), commit)

    try:
        with (opened.folder / "control.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as its supervisor has it
            teller = await Command.start("attach", f"{OTHERS}:Teller", "tried", "--runs", tmp_path)
            await fire("a")
            await teller.line(lambda line: line == "fired a")
            done = CliRunner().invoke(app, ["users", "tried", "--rotate", "--runs", str(tmp_path)])
            assert done.exit_code == 0, done.stderr
            await asyncio.to_thread(opened.server.start)
            await fire("b")
            await teller.line(lambda line: line == "fired b")
        assert await teller.end() == (0, "")
        assert teller.lines == ["fired a", "fired b", "EV: read up to 3"]
    finally:
        await bus.close()
        await asyncio.to_thread(opened.server.stop)
