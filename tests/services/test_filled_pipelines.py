"""Cells whose trainers hold micro-steps until later ones push them through, as real processes over a real server."""

import signal
from pathlib import Path

import pytest

from schemas.envelope import Event
from schemas.training import (
    ContributionDiscarded,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    Passage,
    TrajectoriesAdmitted,
)
from services.reexecute import reexecute
from services.source import messages
from tests.services.fleet import Fleet, fleet
from tests.services.test_training_cells import stepped
from tests.trainers import batch

pytestmark = pytest.mark.timeout(300)
STAGES = 3


async def events(run: Fleet) -> list[Event]:
    """All of the log."""
    return [
        event async for stored in messages(run.source.ev) for event in (stored.commit.events if stored.commit else ())
    ]


def last_passages(found: list[Event], step: int) -> dict[int, Passage | None]:
    """What each cell's last completion of a step says of its pipeline."""
    said = [each for each in found if isinstance(each, MicroStepCompleted) and each.step == step]
    return {each.cell: each.passage for each in said}


def at_rest(found: list[Event]) -> bool:
    """Whether all that was admitted is queued and claimed, and the cell has completed what needs no further input."""
    queued = {each.micro_step: each for each in found if isinstance(each, MicroStepEnqueued)}
    segments = [one for each in queued.values() if each.kind == "train" for row in each.rows for one in row.segments]
    wanted = sum(each.targets for each in found if isinstance(each, TrajectoriesAdmitted))
    completed = {each.micro_step for each in found if isinstance(each, MicroStepCompleted)}
    claimed = {each.micro_step for each in found if isinstance(each, MicroStepClaimed)}
    left = sum(len(queued[each].rows) for each in claimed - completed)
    return sum(sum(each.target) for each in segments) == wanted and claimed == queued.keys() and left == STAGES - 1


async def test_a_queue_that_runs_empty_pauses_the_pipeline_with_one_start_up_and_one_drain(tmp_path: Path) -> None:
    async with fleet(tmp_path) as run:
        await run.start(0, stages=STAGES)
        await run.joined(0)
        for count in (3, 4):
            await run.admit(count)
            while not at_rest(await events(run)):
                await run.heard(lambda _: True)
        await run.admit(3)
        await run.heard(stepped(1))
        found = await events(run)
        done = await reexecute(run.source, batch.trainer())
    (passage,) = last_passages(found, 1).values()
    rows = [each.rows for each in found if isinstance(each, MicroStepEnqueued) and each.kind == "train"]
    assert passage is not None
    assert passage.pauses >= 2  # and wherever the packer was slower than the cell
    assert passage == Passage(startups=1, drains=1, pauses=passage.pauses, rows=sum(map(len, rows)))
    assert [each.differences() for each in done.steps] == [()]


async def test_cells_that_die_with_micro_steps_in_hand_leave_every_update_as_it_was(tmp_path: Path) -> None:
    async with fleet(tmp_path) as run:
        await run.start(0, stages=STAGES)
        await run.joined(0)
        await run.start(1, stages=STAGES)
        await run.joined(1)
        await run.admit(4)
        one = await run.heard(lambda event: isinstance(event, MicroStepClaimed) and event.cell == 1)
        assert isinstance(one, MicroStepClaimed)
        await run.kill(1)  # what it had in hand is claimed anew
        await run.admit(6)
        await run.heard(stepped(1))
        await run.admit(5)  # step 2: the core dies with a pipeline that is filled
        await run.heard(lambda event: isinstance(event, MicroStepClaimed) and (event.step, event.cell) == (2, 0))
        await run.kill(0)
        await run.start(0, stages=STAGES)
        await run.admit(5)
        await run.heard(stepped(2))
        found = await events(run)
        done = await reexecute(run.source, batch.trainer())
    assert sum(isinstance(each, OptimizerStepped) for each in found) == 2
    assert [each.differences() for each in done.steps] == [(), ()]
    for passage in last_passages(found, 2).values():
        assert passage is not None
        assert passage.startups == passage.drains


async def test_a_cell_that_hangs_with_micro_steps_in_hand_is_fenced_out(tmp_path: Path) -> None:
    async with fleet(tmp_path) as run:
        await run.start(0, stages=STAGES)
        await run.joined(0)
        await run.start(1, stages=2)
        await run.joined(1)
        await run.admit(5)
        await run.heard(lambda event: isinstance(event, MicroStepClaimed) and event.cell == 1)
        run.signal(1, signal.SIGSTOP)
        await run.lose(1)
        await run.admit(5)
        await run.heard(stepped(1))
        run.signal(1, signal.SIGCONT)
        await run.ended(1)
        found = await events(run)
        done = await reexecute(run.source, batch.trainer())
    assert not any(isinstance(each, ContributionDiscarded) and each.cell == 0 for each in found)
    assert [each.differences() for each in done.steps] == [()]
