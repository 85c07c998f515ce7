"""The shell of a singleton: what it says about messages that no model accepts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from bus import subjects
from bus.memory import MemoryBroker, MemoryBus
from bus.streams import Limits
from gyre.config import Config
from schemas.envelope import COMMIT, Event
from schemas.refs import WeightsRef
from schemas.roles import CellLost, CellRegistered
from schemas.runs import EventQuarantined, OfficeTaken, RunStarted, TimerFired, TimerSet
from services.minds import scheduling
from services.office import office_of
from services.place import Place
from services.quarantine import Quarantine
from services.scheduler import watch

RUN = "office"
Kind = TypeVar("Kind", CellLost, EventQuarantined, OfficeTaken, TimerFired)


def begin() -> RunStarted:
    config = Config()
    return RunStarted(
        config=config.table(),
        config_digest=config.digest(),
        seed=0,
        code_version="1",
        weights=WeightsRef(digest="0" * 64, size=1, address="weights"),
        tasks=("t0", "t1"),
        heldout=(),
    )


@pytest.fixture
async def broker(tmp_path: Path) -> MemoryBroker:
    """A run that was begun."""
    made = MemoryBroker()
    made.provision(RUN, Limits())
    place = Place("control", "control-1", RUN, tmp_path, "", Config())
    bus = MemoryBus(made, RUN, "control", "control-1", tmp_path)
    await bus.ev.append(place.subject("run"), place.commit((begin(),), as_of=0, correlation=RUN))
    return made


@asynccontextmanager
async def scheduler(broker: MemoryBroker, folder: Path, instance: str) -> AsyncGenerator[None]:
    """A scheduler at work."""
    place = Place("scheduler", instance, RUN, folder, "", Config())
    bus = MemoryBus(broker, RUN, "scheduler", instance, folder)
    serving = asyncio.create_task(office_of(place, bus, scheduling(begin()), Quarantine(place, bus, 0.0)).run())
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def heard(broker: MemoryBroker, folder: Path, kind: type[Kind], count: int) -> list[Kind]:
    """The first so many events of a kind."""
    bus = MemoryBus(broker, RUN, "tester", "one", folder)
    found: list[Kind] = []
    async with asyncio.timeout(20), aclosing(bus.ev.read(0)) as log:
        async for stored in log:
            found += [event for event in stored.commit.events if isinstance(event, kind)] if stored.commit else []
            if len(found) >= count:
                return found
    raise AssertionError("the log ended")


async def test_what_no_model_accepts_is_told_once_whoever_folds_the_log_anew(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    bad = broker.store(RUN, subjects.ev(RUN, "stranger", "here"), b"no commit")
    for number in range(1, 4):  # each with a folder of its own: without a snapshot
        async with scheduler(broker, tmp_path / str(number), f"scheduler-{number}"):
            await heard(broker, tmp_path, OfficeTaken, number)
            await heard(broker, tmp_path, EventQuarantined, 1)
    place = Place("stranger", "one", RUN, tmp_path, "", Config())
    told = COMMIT.dump_json(place.commit((TimerFired(timer="t"),), as_of=0, correlation=RUN))
    nothing = told.partition(b'"events":')[0] + b'"events":[]}'
    worse = broker.store(RUN, subjects.ev(RUN, "stranger", "here"), nothing)
    async with scheduler(broker, tmp_path / "4", "scheduler-4"):
        quarantined = await heard(broker, tmp_path, EventQuarantined, 2)
    assert [event.sequence for event in quarantined] == [bad, worse]
    assert quarantined[1].reason.startswith("events: ")


async def test_timers_that_fired_are_not_fired_again_by_who_folds_the_log_anew(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    place = Place("scheduler", "scheduler-0", RUN, tmp_path, "", Config())
    bus = MemoryBus(broker, RUN, "scheduler", "scheduler-0", tmp_path)

    async def say(*events: Event) -> None:
        await bus.ev.append(place.subject("timer"), place.commit(events, as_of=0, correlation=RUN))

    await say(*(TimerSet(timer=f"t{number}", seconds=0.0) for number in range(20)))
    for _ in range(5000):  # more than a reader hands over at a time
        await say(TimerSet(timer="later", seconds=3600.0))
    await say(*(TimerFired(timer=f"t{number}") for number in range(20)))
    await say(TimerSet(timer="open", seconds=0.0))
    async with scheduler(broker, tmp_path / "1", "scheduler-1"):
        fired = await heard(broker, tmp_path, TimerFired, 21)
    assert fired[20].timer == "open"


async def test_a_timer_waits_no_longer_than_it_was_set_for_when_the_clock_was_set_back(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    place = Place("scheduler", "scheduler-0", RUN, tmp_path, "", Config())
    commit = place.commit((TimerSet(timer="supply", seconds=0.0),), as_of=0, correlation=RUN)
    ahead = commit.model_copy(update={"time": commit.time + 3_600_000_000_000})
    await MemoryBus(broker, RUN, "scheduler", "scheduler-0", tmp_path).ev.append(place.subject("timer"), ahead)
    async with scheduler(broker, tmp_path / "1", "scheduler-1"):
        (fired,) = await heard(broker, tmp_path, TimerFired, 1)
    assert fired.timer == "supply"


async def test_who_was_replaced_behind_a_snapshot_is_not_lost_however_much_it_is_missed(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    config = Config.model_validate({"cells": {"heartbeat_seconds": 0.01, "lost_after_seconds": 3600.0}})

    async def register(cell: int, instance: str) -> None:
        place = Place("cell", instance, RUN, tmp_path, "", config)
        said = CellRegistered(cell=cell, instance=instance, url="http://h", capacity=1, version=0)
        bus = MemoryBus(broker, RUN, "cell", instance, tmp_path)
        await bus.ev.append(place.subject("cell", cell), place.commit((said,), as_of=0, correlation=RUN))

    async def ends(cell: int, instance: str) -> None:
        """Its last word, heard by all who listen once a later beat of the scheduler is."""
        bus = MemoryBus(broker, RUN, "cell", instance, tmp_path)
        await bus.tell(subjects.hint(RUN, "heartbeat", cell), f"{instance} ends: broken".encode())
        await beats.asend(None)

    await register(0, "core")
    await register(1, "former")
    async with scheduler(broker, tmp_path, "scheduler-1"):
        await heard(broker, tmp_path, OfficeTaken, 1)
    await register(1, "later")

    place = Place("scheduler", "scheduler-2", RUN, tmp_path, "", config)
    bus = MemoryBus(broker, RUN, "scheduler", "scheduler-2", tmp_path)
    office = office_of(place, bus, scheduling(begin()))
    assert [cell.instance for cell in office.state.cells.members] == ["core", "former"]
    async with asyncio.timeout(20), aclosing(bus.listen(subjects.hint(RUN, "heartbeat", "scheduler"))) as beats:
        works = [asyncio.create_task(watch(place, bus, office))]
        await beats.asend(None)
        await ends(1, "former")
        works.append(asyncio.create_task(office.run()))
        await heard(broker, tmp_path, OfficeTaken, 2)
        await ends(0, "core")
        lost = await heard(broker, tmp_path, CellLost, 1)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
    assert [event.instance for event in lost] == ["core"]
