"""`gyre compare` as a user starts it: three real runs with modelled compute, short ones."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from bus.log import ReadLog
from gyre.core.staleness import expected_mean
from schemas.calls import ModelCallRecorded
from schemas.envelope import Event
from schemas.training import OptimizerStepped, ReductionOpened
from services.source import messages, open_source
from tests.e2e.living import Command, write_modelled

pytestmark = pytest.mark.timeout(300)


async def test_three_schedules_run_on_the_same_executions_and_are_told_side_by_side(tmp_path: Path) -> None:
    path = write_modelled(tmp_path, "pair", steps=4, token_seconds=0.02, training_seconds=0.8)
    result = await (await Command.start("compare", path, "--json")).result()
    assert list(result["schedules"]) == ["elastic", "async", "colocate"]
    for kind, found in result["schedules"].items():
        simulated = result["simulated"][kind]
        assert found["seconds"] > 0.95 * simulated["seconds"]  # a control plane takes time, it gives none
        assert found["staleness"] == pytest.approx(simulated["staleness"])
        assert 0.0 < found["utilisation"] < 1.0
        await _check(tmp_path / "runs" / result["runs"][kind])
    assert result["schedules"]["elastic"]["staleness"] == pytest.approx(expected_mean(4, 2, 0.5, 2))
    assert result["speedups"].keys() == result["simulated_speedups"].keys() == {"async", "colocate"}


async def _check(run: Path) -> None:
    """Each of 16 executions made its 6 calls, and each update is of exactly the batch's four executions."""
    async with open_source(str(run / f"{run.name}.jsonl.zst"), run.parent) as source:
        calls = [event async for event in _events(source.calls) if isinstance(event, ModelCallRecorded)]
        events = [event async for event in _events(source.ev)]
    assert len(calls) == 16 * 6
    assert {each.finish for each in calls} == {"stop"}
    assert sum(isinstance(each, OptimizerStepped) for each in events) == 4
    opened = [each for each in events if isinstance(each, ReductionOpened)]
    assert {each.step: len(each.contributions) for each in opened} == dict.fromkeys(range(1, 5), 4)


async def _events(log: ReadLog) -> AsyncGenerator[Event, None]:
    async for stored in messages(log):
        for event in stored.commit.events if stored.commit else ():
            yield event
