"""Each process of a run is killed once, in the middle of its work: the run ends as if nothing had happened."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.calls import RecordsSealed
from schemas.dispatch import ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.rewards import GroupReady, RewardAssigned, TreeBuilt
from schemas.roles import RoleTransitionRequested
from schemas.training import MicroStepClaimed, MicroStepEnqueued, OptimizerStepped
from services.replay import verify
from services.source import open_source
from tests.e2e.living import Command, heard, kill, listening, opened_run, processes
from tests.e2e.rules import check_log

pytestmark = pytest.mark.timeout(300)

Trigger = Callable[[Event], bool]
STRIKES: tuple[tuple[str, Trigger], ...] = (
    ("runner", lambda event: isinstance(event, ExecutionLaunched)),
    ("proxy", lambda event: isinstance(event, ExecutionLaunched)),
    ("builder", lambda event: isinstance(event, RecordsSealed)),
    ("evaluator", lambda event: isinstance(event, ExecutionTerminated)),
    ("admission", lambda event: isinstance(event, TreeBuilt | RewardAssigned | GroupReady)),
    ("scheduler", lambda event: isinstance(event, RoleTransitionRequested)),
    ("packer", lambda event: isinstance(event, MicroStepEnqueued)),
    ("cell-0", lambda event: isinstance(event, MicroStepClaimed) and event.cell == 0),
    ("nats-server", lambda event: isinstance(event, MicroStepClaimed)),
    ("cell-1", lambda event: isinstance(event, OptimizerStepped)),
)
"""Who dies, upon the first such event after the strike before. A core in training has claimed when it dies."""


async def test_a_run_survives_the_death_of_every_process(tmp_path: Path) -> None:
    async with opened_run(tmp_path) as (opened, bus):
        train = await Command.start("resume", opened.run, "--runs", opened.folder.parent, "--json")
        ending = asyncio.create_task(train.result())
        striking = asyncio.create_task(_strike(opened.folder, bus, opened.server))
        try:
            await asyncio.wait((ending, striking), return_when=asyncio.FIRST_COMPLETED)
            assert striking.done(), f"the run ended before every process was hit: {train.lines}"
            struck = await striking
            result = await ending
        finally:
            striking.cancel()
            if train.process.returncode is None:
                train.process.terminate()
                await train.end()
        assert struck == [name for name, _ in STRIKES]
        assert result["dispatched"] == result["launched"] == result["terminated"] == 32
        assert result["micro_steps"] == result["micro_steps_committed"]
    async with open_source(result["archive"], tmp_path) as source:
        assert (await verify(source)).differences == []
        await check_log(source, steps=4)


async def _strike(folder: Path, bus: object, server: object) -> list[str]:
    struck = []
    async with listening(bus) as log:
        for victim, trigger in STRIKES:
            await heard(log, trigger)
            pid = server.pid if victim == "nats-server" else processes(folder)[victim]
            await asyncio.to_thread(kill, pid)
            struck.append(victim)
    return struck
