"""Second deciders on one run, and a power cut: the log has one leader, and nothing acknowledged is missing."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from bus.jetstream import Bus
from bus.log import Stored
from bus.server import NatsServer
from schemas.dispatch import ExecutionLaunched, ExecutionTerminated
from schemas.roles import CellLost, CellRegistered
from schemas.runs import OfficeTaken
from schemas.training import MicroStepClaimed
from services.exits import EXIT_REPLACED
from services.place import new_instance
from services.source import messages, open_source
from tests.e2e.living import Command, all_gone, heard, listening, opened_run, processes
from tests.e2e.rules import check_log

pytestmark = pytest.mark.timeout(300)
OFFICES = ("scheduler", "packer")
CUTS = (ExecutionLaunched, ExecutionTerminated, MicroStepClaimed)


async def test_who_loses_an_office_stops_and_has_it_back_once_the_other_is_gone(tmp_path: Path) -> None:
    async with opened_run(tmp_path, steps=1) as (opened, bus), listening(bus) as log:
        train = await Command.start("resume", opened.run, "--runs", opened.folder.parent, "--json")
        await taken(log, *OFFICES)
        former = [processes(opened.folder)[name] for name in OFFICES]
        rivals = [await Command.start("serve", name, "--folder", opened.folder) for name in OFFICES]
        taking = [asyncio.create_task(rival.end()) for rival in rivals]
        try:
            await taken(log, *OFFICES)
            assert await all_gone(former, 10.0)
            await _lose_the_core(opened.folder, bus, log)
            said = [_last_line(opened.folder, name) for name in OFFICES]
            for rival in rivals:
                rival.stop(signal.SIGKILL)
            await taken(log, *OFFICES)
            result = await train.result()
            assert [line for line in train.lines if "hangs" in line] == ["WARNING cell-0 hangs; ending it"]
            for name, line in zip(OFFICES, said, strict=True):
                assert any(f"{name} stopped: another one took its place" in each for each in train.lines)
                assert any(f"{name}: the one that took its place is silent" in each for each in train.lines)
                assert f"another {name} holds the office of run tried" in line
                assert line.endswith("this one stops")
        finally:
            for rival in rivals:
                if rival.process.returncode is None:
                    rival.stop(signal.SIGKILL)
            await asyncio.gather(*taking)
        assert EXIT_REPLACED == 3
    async with open_source(result["archive"], tmp_path) as source:
        tally = await check_log(source, steps=1)
        assert len(tally.launched) == 8


async def taken(log: AsyncGenerator[Stored, None], *services: str) -> None:
    """Each of these offices is taken, in whatever order."""
    missing = set(services)
    while missing:
        _, event = await heard(log, lambda event: isinstance(event, OfficeTaken))
        assert isinstance(event, OfficeTaken)
        missing.discard(event.service)


def _last_line(folder: Path, service: str) -> str:
    return (folder / "logs" / f"{service}.log").read_text().splitlines()[-1]


async def test_a_power_cut_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async with opened_run(tmp_path, steps=1) as (opened, bus), listening(bus) as log:
        train = await Command.start("resume", opened.run, "--runs", opened.folder.parent, "--json")
        for number, kind in enumerate(CUTS):
            stored, _ = await heard(log, lambda event, kind=kind: isinstance(event, kind))
            copy = tmp_path / f"cut-{number}"
            await asyncio.to_thread(_copy, opened.folder / "nats", copy)
            assert await _holds(copy, opened.run, tmp_path, bus, stored.sequence)
        await train.result()


async def _lose_the_core(folder: Path, bus: Bus, log: AsyncGenerator[Stored, None]) -> None:
    """It stands still until it is taken for lost, and then comes again as another instance."""
    async with aclosing(bus.ev.read(0)) as whole:  # it may have registered before the offices were taken
        _, event = await heard(whole, lambda event: isinstance(event, CellRegistered) and event.cell == 0)
    os.kill(processes(folder)["cell-0"], signal.SIGSTOP)
    await heard(log, lambda event: isinstance(event, CellLost) and event.cell == 0)
    _, again = await heard(log, lambda event: isinstance(event, CellRegistered) and event.cell == 0)
    assert isinstance(event, CellRegistered)
    assert isinstance(again, CellRegistered)
    assert event.instance != again.instance


def _copy(store: Path, target: Path) -> None:
    """What the disk holds at this moment, more or less: the server goes on writing meanwhile.

    A cut is one moment, a copy is not: temporary files that are renamed and queue blocks that are emptied may be gone
    when their turn comes. A message block of EV or CALL is never taken away, so one that is missing is an error.
    """
    for folder, _, files in os.walk(store):
        place = target / Path(folder).relative_to(store)
        place.mkdir(parents=True, exist_ok=True)
        for name in set(files) - {"lock", "server.json"}:
            try:
                shutil.copy2(Path(folder) / name, place / name)
            except FileNotFoundError:
                truth = "/streams/EV_" in folder or "/streams/CALL_" in folder
                assert not (truth and name.endswith(".blk")), f"{folder}/{name} was taken away"


async def _holds(copy: Path, run: str, folder: Path, bus: Bus, sequence: int) -> bool:
    """Whether a new server on the copy gives every message up to this sequence as the living one does."""
    server = await asyncio.to_thread(NatsServer(copy).start)
    try:
        cut = await Bus.connect(server.url, run, "reader", new_instance("reader"), folder)
        try:
            found = [stored async for stored in messages(cut.ev, until=sequence)]
        finally:
            await cut.close()
    finally:
        await asyncio.to_thread(server.stop)
    living: list[Stored] = [stored async for stored in messages(bus.ev, until=sequence)]
    return found == living and living[-1].sequence == sequence
