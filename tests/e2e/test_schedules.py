"""Each kind of schedule as a user starts it: a short training to its end, and its log decided again."""

from collections import Counter
from pathlib import Path

import pytest

from bus.log import Stored
from schemas.dispatch import CancellationRequested, ExecutionTerminated
from schemas.roles import RoleTransitionRequested
from schemas.runs import EvaluationScored, EvaluationStarted
from schemas.training import OptimizerStepped, WeightsPublished
from services.replay import verify
from services.source import messages, open_source
from tests.e2e.living import RUN, Command, write_config
from tests.e2e.rules import check_hearing, check_log

pytestmark = pytest.mark.timeout(300)
ASYNC = ("schedule.kind=async", "cells.trainers=1", "schedule.mu=1", "schedule.phi=1")
COLOCATE = ("schedule.kind=colocate", "schedule.phi=0", "schedule.stream=false", "cells.standalone=1")
SLOW = """harness.command=["/bin/sh", "-c", 'sleep 2; exec "$@"', "sh", "{python}", "-I", "-S", "{reference}",
"--max-turns", "3", "--max-tokens", "24"]"""
"""What starts late still sleeps when its group has all the scores that it needs."""
SURPLUS = ("schedule.oversample=2", "schedule.launch_order=longest_predicted", SLOW)


async def _trained(folder: Path, overrides: tuple[str, ...]) -> list[Stored]:
    """Two steps to their end; the log that they left, after every rule was held against it."""
    words = [word for override in overrides for word in ("--set", override)]
    train = await Command.start("train", write_config(folder, steps=2), "--json", *words)
    result = await train.result()
    assert result["steps"] == 2
    assert result["dispatched"] == result["launched"] == result["terminated"]
    assert result["staleness_mean"] == result["staleness_expected"]
    async with open_source(RUN, folder / "runs") as source:
        verdict = await verify(source)
        await check_log(source, steps=2)
        await check_hearing(source)
        assert verdict.differences == []
        return [stored async for stored in messages(source.ev)]


def _moves(log: list[Stored]) -> list[tuple[int, str]]:
    events = (event for stored in log if stored.commit for event in stored.commit.events)
    return [(event.cell, event.to) for event in events if isinstance(event, RoleTransitionRequested)]


async def test_a_fixed_split_trains_with_cells_that_never_serve(tmp_path: Path) -> None:
    log = await _trained(tmp_path, ASYNC)
    assert _moves(log) == [(0, "train")]


async def test_trainers_that_never_stop_publish_nothing_that_an_evaluation_would_measure_beside_its_own(
    tmp_path: Path,
) -> None:
    log = await _trained(tmp_path, (*ASYNC, "evaluation.every=1", "evaluation.episodes=4"))
    measured: int | None = None
    done, published, beside = 0, 0, []
    for event in (event for stored in log if stored.commit for event in stored.commit.events):
        match event:
            case OptimizerStepped(version=version):
                done = version
            case EvaluationStarted():
                measured = done
            case WeightsPublished(version=version):
                published += 1
                beside += [version] if measured is not None and version > measured else []
            case EvaluationScored():
                measured = None
            case _:
                pass
    assert (published, beside) == (2, [])


async def test_a_pool_switches_as_one_and_the_engine_beside_it_never_does(tmp_path: Path) -> None:
    log = await _trained(tmp_path, COLOCATE)
    assert _moves(log) == [(0, "train"), (1, "train"), (1, "rollout")]  # the core's way back is the run's end


async def test_what_a_group_does_not_need_is_cancelled_and_ends_once(tmp_path: Path) -> None:
    log = await _trained(tmp_path, SURPLUS)
    events = [event for stored in log if stored.commit for event in stored.commit.events]
    asked = {event.execution for event in events if isinstance(event, CancellationRequested)}
    reasons = Counter(event.reason for event in events if isinstance(event, ExecutionTerminated))
    assert sum(reasons.values()) == 2 * 2 * 6
    assert 2 <= reasons["cancelled"] <= len(asked) <= 2 * 2 * 2  # the last two of g2 found no place at first
