"""Trees of executions whose records a power cut took from CALL, and spared their seals in EV ("laptop" durability)."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from bus.log import BusPort
from bus.memory import MemoryBroker, MemoryBus
from bus.streams import Limits
from gyre.core import tree as trees
from schemas.calls import ModelCallRecorded, RecordsSealed
from schemas.rewards import TreeBuilt
from services.builder import serve_builder
from services.speaker import Speaker
from tests.services.small_run import ROOT

RUN = "torn"


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.provision(RUN, Limits())
    return broker


def record(execution: str) -> ModelCallRecorded:
    return ROOT.model_copy(update={"execution": execution, "call": f"{execution}-c0"})


def sealed(execution: str, last: int, *records: ModelCallRecorded) -> RecordsSealed:
    digest = trees.records_digest(trees.record_digest(each) for each in records)
    return RecordsSealed(execution=execution, last_sequence=last, count=len(records), digest=digest)


async def built(bus: BusPort, *executions: str) -> dict[str, TreeBuilt]:
    """What the builder makes of these."""
    found: dict[str, TreeBuilt] = {}
    building = asyncio.create_task(serve_builder(bus))
    try:
        async with asyncio.timeout(30), contextlib.aclosing(bus.ev.read()) as said:
            async for stored in said:
                events = stored.commit.events if stored.commit else ()
                found |= {each.execution: each for each in events if isinstance(each, TreeBuilt)}
                if found.keys() >= set(executions):
                    return found
    finally:
        building.cancel()
        await asyncio.gather(building, return_exceptions=True)
    raise AssertionError("a log never ends")


async def test_records_that_a_power_cut_took_give_an_empty_tree_and_later_trees_are_built(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus = MemoryBus(broker, RUN, "proxy", "one", tmp_path)
    speaker = Speaker(bus)
    some = record("x0-0")
    assert await speaker.record(some, 0) == 1  # the first of three, and nothing of x0-1
    await speaker.say("x0-0", sealed("x0-0", 3, some, some, some), 0)
    await speaker.say("x0-1", sealed("x0-1", 5, record("x0-1")), 0)
    await speaker.say("x0-2", sealed("x0-2", await speaker.record(record("x0-2"), 0), record("x0-2")), 0)
    found = await built(MemoryBus(broker, RUN, "builder", "two", tmp_path), "x0-0", "x0-1", "x0-2")
    assert {name: tree.nodes for name, tree in found.items()} == {"x0-0": 0, "x0-1": 0, "x0-2": 1}
    assert len(caplog.records) == 2


async def test_what_stands_in_the_place_of_the_last_record_tells_that_it_is_gone(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    bus = MemoryBus(broker, RUN, "proxy", "one", tmp_path)
    speaker = Speaker(bus)
    some = record("x0-0")
    for execution in ("x0-0", "x0-1", "x0-1", "x0-1"):
        await speaker.record(record(execution), 0)
    await speaker.say("x0-0", sealed("x0-0", 3, some, some), 0)
    found = await built(MemoryBus(broker, RUN, "builder", "two", tmp_path), "x0-0")
    assert found["x0-0"].nodes == 0
