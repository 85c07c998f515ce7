"""gyre assess in memory: the work of an agent that is still at it, under real tests."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from schemas.rewards import AssessmentRecorded, RewardAssigned
from services import evaluator, runner
from services.assess import AssessError, assess
from tests.core.test_groups import CALL
from tests.pipes import told

SAID = "ev.r.evaluator.assess.x0-0"


@asynccontextmanager
async def at_work(run: Any, script: str) -> AsyncIterator[None]:
    """An execution whose harness ran this script and waits; it goes on when this ends."""
    for name in ("up", "on"):
        os.mkfifo(run.folder / name)
    run.harness(f"{script}; echo up >{run.folder}/up; cat {run.folder}/on; echo done >>out")
    async with run.serving(runner.serve, "runner"), run.serving(evaluator.serve, "evaluator"):
        await run.dispatch("x0-0", "job")
        await run.grant("x0-0")
        await told(run.folder / "up")
        yield
        await asyncio.to_thread((run.folder / "on").write_text, "")
        await run.heard("ev.r.evaluator.execution.x0-0", 1)


async def record(run: Any, call: str) -> None:
    place = run.place("proxy")
    event = CALL.model_copy(update={"execution": "x0-0", "call": call})
    await run.bus.calls.append("call.r.x0-0", place.commit((event,), as_of=0, correlation="x0-0"))


async def test_half_the_work_has_a_score_of_its_own_and_the_reward_is_what_the_end_gives(run: Any) -> None:
    run.task("job", 'wc -l <out | grep -q 1 && echo 0.5 >"$REWARD_FILE" || echo 1 >"$REWARD_FILE"')
    async with at_work(run, "echo half >out"):
        await record(run, "c0")
        place = run.place("evaluator")
        first, second = [await assess(place, run.bus, "x0-0") for _ in range(2)]
    assert (first.score, first.valid, first.designated, first.branch) == (0.5, True, False, "c0")
    assert (first.attempt, second.attempt, first.state) == (1, 2, second.state)
    assert [one.commit.events for one in await run.heard(SAID, 2)] == [(first,), (second,)]
    designated, reward = (await run.heard("ev.r.evaluator.execution.x0-0", 1))[0].commit.events
    assert isinstance(designated, AssessmentRecorded)
    assert designated.state != first.state
    assert reward == RewardAssigned(execution="x0-0", group="g0", reward=1.0)
    assert not (run.folder / "scoring").exists()


async def test_a_workspace_is_copied_without_what_a_copy_would_wait_for(run: Any) -> None:
    run.task("job", "[ -f out ] && [ ! -e pipe ] && [ -L nowhere ]")
    async with at_work(run, "echo half >out; mkfifo pipe; ln -s gone nowhere"):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(run.folder / "work/x0-0/ws/s"))
        assert (await assess(run.place("evaluator"), run.bus, "x0-0")).score == 1.0
        assert (run.folder / "work/x0-0/ws/pipe").exists()


async def test_a_link_by_the_tasks_own_name_for_its_workspace_is_part_of_the_work(run: Any) -> None:
    run.task("job", "[ -f current ]")
    run.named("job", "/app")
    async with at_work(run, "echo half >out; ln -s /app/out current"):
        assert (await assess(run.place("evaluator"), run.bus, "x0-0")).score == 1.0
    assert (await run.heard("ev.r.evaluator.execution.x0-0", 1))[0].commit.events[0].score == 1.0


@pytest.mark.parametrize("put", ["link", "much"])
async def test_what_an_end_would_not_keep_is_not_copied_either(run: Any, put: str) -> None:
    run.task("job", "exit 0")
    async with at_work(run, "echo half >out"):
        place = run.folder / "work/x0-0/ws"
        if put == "link":
            place.rename(run.folder / "elsewhere")
            place.symlink_to(run.folder)
        else:
            with (place / "sparse").open("wb") as file:
                file.truncate(1 << 40)
        with pytest.raises(AssessError, match=r"work/x0-0/ws: cannot be copied .*it is not kept"):
            await assess(run.place("evaluator"), run.bus, "x0-0")
    assert await run.count(SAID) == 0


async def test_a_workspace_of_any_depth_is_copied(run: Any) -> None:
    run.task("job", "[ -f out ]")
    deep = "p=d; for n in 1 2 3 4 5 6 7 8 9; do p=$p/$p; done; mkdir -p $p && mkdir -p $p/$p; echo half >out"
    async with at_work(run, deep):
        assert (await assess(run.place("evaluator"), run.bus, "x0-0")).score == 1.0
    assert not (run.folder / "scoring").exists()


async def test_a_workspace_that_is_not_here_is_not_taken_for_an_empty_one(run: Any) -> None:
    run.task("job", "exit 0")
    async with at_work(run, "echo half >out"):
        (run.folder / "work/x0-0/ws").rename(run.folder / "elsewhere")
        with pytest.raises(AssessError, match=r"work/x0-0/ws: cannot be copied while it is worked in: .*No such file"):
            await assess(run.place("evaluator"), run.bus, "x0-0")
    assert await run.count(SAID) == 0


@pytest.mark.parametrize("execution", ["x9-9", "x.*", ""])
async def test_an_execution_that_never_ran_is_said_to_be_unknown(run: Any, execution: str) -> None:
    with pytest.raises(AssessError, match="never launched"):
        await assess(run.place("evaluator"), run.bus, execution)


async def test_an_execution_that_has_ended_is_left_to_a_regrade(run: Any) -> None:
    run.task("job", "exit 0")
    async with at_work(run, "echo half >out"):
        pass
    with pytest.raises(AssessError, match="gyre regrade r"):
        await assess(run.place("evaluator"), run.bus, "x0-0")
    assert await run.count(SAID) == 0
