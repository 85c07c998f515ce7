"""Cells as real processes over a real server, gloo between them, SIGKILL among them: every update is that of one
trainer that takes all micro-steps, whoever joined, died or was fenced out.
"""

import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from schemas.envelope import Event
from schemas.training import (
    MicroStepClaimed,
    MicroStepCompleted,
    OptimizerStepped,
    ReductionOpened,
)
from services.reexecute import Rerun, reexecute
from tests.services.fleet import Fleet, fleet
from tests.services.training_cell import LEFT_BEHIND
from tests.trainers import batch

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As many as the cells have."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stepped(step: int) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, OptimizerStepped) and event.step == step


async def again(run: Fleet) -> Rerun:
    """The run done again by one trainer."""
    done = await reexecute(run.source, batch.trainer())
    assert [each.differences() for each in done.steps] == [()] * len(done.steps)
    return done


async def test_satellites_that_come_and_die_at_any_time_leave_every_update_as_it_was(tmp_path: Path) -> None:
    async with fleet(tmp_path) as run:
        await run.start(0)
        await run.joined(0)
        await run.start(1)
        await run.joined(1)  # at 0 %
        await run.admit(3)
        await run.start(2)
        await run.joined(2)  # at 30 %
        await run.admit(3)
        done = await run.heard(lambda event: isinstance(event, MicroStepCompleted) and event.cell > 0)
        assert isinstance(done, MicroStepCompleted)
        await run.kill(done.cell)  # what it completed is lost with it
        await run.admit(3)
        await run.start(done.cell)
        await run.joined(done.cell)  # at 90 %, as another instance
        await run.admit(1)
        await run.heard(stepped(1))

        await run.admit(10)  # step 2: everybody stays; one is killed with the sum under way
        await run.heard(lambda event: isinstance(event, ReductionOpened) and event.step == 2)
        await run.kill(2)
        await run.heard(stepped(2))

        await run.admit(5)  # step 3: one hangs with work in hand, is taken for lost, and comes back too late
        await run.heard(lambda event: isinstance(event, MicroStepClaimed) and (event.step, event.cell) == (3, 1))
        run.signal(1, signal.SIGSTOP)
        await run.lose(1)
        await run.admit(5)
        await run.heard(stepped(3))
        run.signal(1, signal.SIGCONT)
        assert await run.ended(1) == LEFT_BEHIND

        found = await again(run)
    assert len(found.steps) == 3
    assert found.update_apart is not None
    assert found.update_apart < 1e-2


async def test_a_core_that_dies_at_every_point_of_a_step_leaves_its_update_as_it_was(tmp_path: Path) -> None:
    async with fleet(tmp_path) as run:
        await run.start(0, POINTS[0])
        await run.joined(0)
        await run.start(1)
        await run.joined(1)
        await run.admit(10)
        for here, then in pairwise((*POINTS, "")):
            assert await run.ended(0) == -signal.SIGKILL
            assert (tmp_path / "failpoints" / here).is_file()
            await run.start(0, then)
        await run.heard(stepped(1))
        await run.admit(10)
        await run.heard(stepped(2))
        done = await again(run)
    assert [each.step for each in done.steps] == [1, 2]
    assert done.update_apart is not None
    assert done.update_apart < 1e-2


POINTS = ("claimed", "completed", "reduced", "stepped", "committed")
