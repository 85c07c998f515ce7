"""A run is stopped in every way that people stop things, and goes on each time where its log ends."""

import asyncio
import signal
from pathlib import Path

import pytest

from schemas.dispatch import ExecutionTerminated
from schemas.envelope import Event
from schemas.roles import CellRegistered
from schemas.runs import OfficeTaken
from schemas.training import MicroStepClaimed
from services.exits import EXIT_INTERRUPTED
from services.replay import verify
from services.source import open_source
from tests.e2e.living import Command, all_gone, heard, kill, listening, opened_run, processes
from tests.e2e.rules import check_log

pytestmark = pytest.mark.timeout(300)


def _begins(event: Event) -> bool:
    """Another generation of services is there."""
    return isinstance(event, OfficeTaken) and event.service == "scheduler"


async def test_a_run_goes_on_after_ctrl_c_after_two_of_them_and_after_sigkill(tmp_path: Path) -> None:
    async with opened_run(tmp_path) as (opened, bus), listening(bus) as log:
        resume = ("resume", opened.run, "--runs", opened.folder.parent, "--json")

        first = await Command.start(*resume)
        await heard(log, _begins)
        second = await Command.start(*resume)
        assert await second.end() == (1, "")
        assert "another gyre supervises it already" in second.lines[-1]
        await heard(log, lambda event: isinstance(event, ExecutionTerminated))
        services = list(processes(opened.folder).values())
        first.stop(signal.SIGINT)
        assert (await first.end())[0] == EXIT_INTERRUPTED
        assert f"gyre resume {opened.run}" in first.lines[-1]
        assert not processes(opened.folder)
        assert await all_gone([*services, opened.server.pid], 1.0)  # the server too

        third = await Command.start(*resume)
        await heard(log, _begins)
        await heard(log, lambda event: isinstance(event, CellRegistered))
        third.stop(signal.SIGINT)
        await third.line(lambda line: "once more" in line)
        third.stop(signal.SIGINT)
        assert (await third.end())[0] == EXIT_INTERRUPTED
        assert not processes(opened.folder)

        fourth = await Command.start(*resume)
        await heard(log, _begins)
        await heard(log, lambda event: isinstance(event, MicroStepClaimed))
        services = list(processes(opened.folder).values())
        await asyncio.to_thread(kill, fourth.process.pid)
        assert await all_gone(services, 10.0)
        await fourth.end()

        result = await (await Command.start(*resume)).result()
        assert result["dispatched"] == result["launched"] == result["terminated"] == 32
    async with open_source(result["archive"], tmp_path) as source:
        assert (await verify(source)).differences == []
        await check_log(source, steps=4)
