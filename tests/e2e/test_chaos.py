"""Processes of a run are killed in the middle of their work: the run ends as if nothing had happened."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.jetstream import Bus
from schemas.calls import RecordsSealed
from schemas.dispatch import ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.rewards import GroupReady, RewardAssigned, TreeBuilt
from schemas.roles import RoleTransitionRequested
from schemas.training import (
    GradientReduced,
    MicroStepClaimed,
    MicroStepEnqueued,
    OptimizerStepped,
    ReductionOpened,
    WeightsPublished,
)
from services.replay import verify
from services.setup import Opened
from services.source import open_source
from tests.e2e.living import Command, heard, kill, listening, opened_run, processes
from tests.e2e.rules import Tally, check_log

pytestmark = pytest.mark.timeout(300)

Strike = Callable[[Event], str]
"""Who dies upon this event; "": nobody."""


def on(victim: str, *kinds: type[Event]) -> Strike:
    """Strike the victim upon an event of these kinds."""
    return lambda event: victim if isinstance(event, kinds) else ""


def core_at_work(event: Event) -> str:
    """The core has claimed a micro-step and trains on it."""
    return "cell-0" if isinstance(event, MicroStepClaimed) and event.cell == 0 else ""


def last_member(event: Event) -> str:
    """A sum is about to be taken, and this member will not come: a satellite, if one has joined."""
    return f"cell-{event.members[-1]}" if isinstance(event, ReductionOpened) and event.step == 2 else ""


def core_before_publication(event: Event) -> str:
    """The burst's last update is durable, and nobody has been told to serve it."""
    return "cell-0" if isinstance(event, OptimizerStepped) and event.step == 2 else ""


async def test_a_run_survives_the_death_of_every_process(tmp_path: Path) -> None:
    strikes = (
        on("runner", ExecutionLaunched),
        on("proxy", ExecutionLaunched),
        on("builder", RecordsSealed),
        on("evaluator", ExecutionTerminated),
        on("admission", TreeBuilt, RewardAssigned, GroupReady),
        on("scheduler", RoleTransitionRequested),
        on("packer", MicroStepEnqueued),
        core_at_work,
        on("nats-server", MicroStepClaimed),
        on("cell-1", OptimizerStepped),
    )
    async with opened_run(tmp_path) as (opened, bus):
        archive = await _finished_under(strikes, opened, bus)
    tally = await _checked(archive, steps=4)
    assert len(tally.launched) == 32


async def test_a_step_is_taken_once_however_its_core_and_its_members_die(tmp_path: Path) -> None:
    strikes = (
        on("cell-0", GradientReduced),  # summed, not durable: the step is redone
        last_member,
        core_before_publication,
        on("cell-1", WeightsPublished),
    )
    async with opened_run(tmp_path, steps=4, groups=4) as (opened, bus):
        archive = await _finished_under(strikes, opened, bus)
    tally = await _checked(archive, steps=4)
    assert len(tally.launched) == 64


async def _finished_under(strikes: tuple[Strike, ...], opened: Opened, bus: Bus) -> Path:
    """See a run through while the strikes fall, one after the other; its archive."""
    train = await Command.start("resume", opened.run, "--runs", opened.folder.parent, "--json")
    ending = asyncio.create_task(train.result())
    striking = asyncio.create_task(_strike(strikes, opened, bus))
    try:
        await asyncio.wait((ending, striking), return_when=asyncio.FIRST_COMPLETED)
        assert striking.done(), f"the run ended before every process was hit: {train.lines}"
        await striking
        result = await ending
    finally:
        striking.cancel()
        if train.process.returncode is None:
            train.process.terminate()
            await asyncio.gather(ending, return_exceptions=True)
    assert result["dispatched"] == result["launched"] == result["terminated"]
    assert result["micro_steps"] == result["micro_steps_committed"]
    return Path(result["archive"])


async def _strike(strikes: tuple[Strike, ...], opened: Opened, bus: Bus) -> None:
    async with listening(bus) as log:
        for strike in strikes:
            _, event = await heard(log, lambda event, strike=strike: bool(strike(event)))
            victim = strike(event)
            assert opened.server is not None
            pid = opened.server.pid if victim == "nats-server" else processes(opened.folder)[victim]
            await asyncio.to_thread(kill, pid)


async def _checked(archive: Path, steps: int) -> Tally:
    async with open_source(str(archive), archive.parent) as source:
        assert (await verify(source)).differences == []
        return await check_log(source, steps)
