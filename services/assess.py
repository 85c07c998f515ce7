"""`gyre assess`: what the work of a running execution is worth so far; its reward stays what its end will give.

A copy of the workspace is taken while the agent goes on, so it holds each file as it was when it was read. The copy is
preserved and scored as an ending is, and said as an assessment that is not designated, with the call it follows.
"""

import asyncio
import time
from pathlib import Path

from bus import subjects
from bus.errors import Conflict
from bus.log import BusPort, Expect
from gyre.core.tree import Called
from gyre.errors import GyreError
from gyre.tasks.folder import Task, load_tasks
from schemas.dispatch import ExecutionDispatched, ExecutionTerminated
from schemas.refs import StateRef
from schemas.rewards import AssessmentRecorded
from services import workspace
from services.grading import Scorer, scoring_folder
from services.judges import judges_of
from services.place import Place


class AssessError(GyreError):
    """An execution cannot be assessed now; one line with the way out."""


async def assess(place: Place, bus: BusPort, execution: str) -> AssessmentRecorded:
    """Copy, preserve and score what a running execution has done so far, and say it.

    Args:
        place: of this process, an evaluator.
        bus: of the run.
        execution: its id; it must be running on this machine.

    Raises:
        AssessError: it does not run here, or its files cannot be copied.
        TaskError, BusError: one line with the way out.
    """
    task, launched = await _running(place, bus, execution)
    tasks = {each.name: each for each in load_tasks(place.folder / "tasks/train")}
    judges = judges_of(place.config, place.folder)
    scorer = Scorer(bus.blobs, tasks, judges.designated, place.config.evaluator.setup_seconds)
    try:
        with scoring_folder(place.folder, place.instance) as folder:
            state, branch = await _snapshot(place, bus, execution, tasks.get(task))
            began = time.monotonic()
            verdict = await scorer.verdict(task, state, folder / execution, place.config.reward.budget_seconds)
    finally:
        await judges.close()
    last = await bus.ev.last(place.subject("assess", execution))
    earlier = last.commit.events[-1] if last and last.commit else None
    attempt = 1 + (earlier.attempt if isinstance(earlier, AssessmentRecorded) else 0)
    found = AssessmentRecorded(
        assessment=f"{execution}-i{attempt}",
        execution=execution,
        designated=False,
        attempt=attempt,
        state=state,
        branch=branch,
        score=verdict.score,
        valid=verdict.valid,
        seconds=time.monotonic() - began,
        detail=verdict.detail,
        provenance=verdict.provenance,
    )
    await _say(place, bus, found, launched, last.sequence if last else 0)
    return found


async def _snapshot(place: Place, bus: BusPort, execution: str, task: Task | None) -> tuple[StateRef, str | None]:
    """The preserved copy, and the last call that was recorded before it; None if one was recorded meanwhile."""
    before = await _last_call(place, bus, execution)
    archive = await asyncio.to_thread(_copied, place.folder / "work" / execution / "ws", task)
    blob = await asyncio.to_thread(bus.blobs.put, archive)
    branch = before if before == await _last_call(place, bus, execution) else None
    return StateRef(digest=blob.digest, size=blob.size, address=blob.address), branch


async def _say(place: Place, bus: BusPort, found: AssessmentRecorded, launched: int, after: int) -> None:
    subject = place.subject("assess", found.execution)
    as_of = max(launched, after)
    commit = place.commit((found,), as_of=as_of, correlation=found.execution, causation=launched)
    try:
        await bus.ev.append(subject, commit, Expect(subject, after))
    except Conflict as error:
        raise AssessError(f"execution {found.execution}: another gyre assessed it meanwhile; try again") from error


async def _running(place: Place, bus: BusPort, execution: str) -> tuple[str, int]:
    """Its task, and the sequence of its launch."""
    never = AssessError(f"execution {execution}: was never launched; `gyre status {place.run}` says how far the run is")
    if not subjects.TOKEN.fullmatch(execution):
        raise never
    said = await bus.ev.last(subjects.ev(place.run, "scheduler", "execution", execution, "dispatched"))
    entry = said.commit.events[0] if said and said.commit else None
    last = await bus.ev.last(subjects.execution(place.run, "runner", execution))
    if not isinstance(entry, ExecutionDispatched) or last is None or last.commit is None:
        raise never
    if isinstance(last.commit.events[-1], ExecutionTerminated):
        raise AssessError(f"execution {execution}: has ended; `gyre regrade {place.run}` scores what it left again")
    return entry.task, last.sequence


async def _last_call(place: Place, bus: BusPort, execution: str) -> str | None:
    last = await bus.calls.last(subjects.call(place.run, execution))
    event = last.commit.events[-1] if last and last.commit else None
    return event.call if isinstance(event, Called) else None


def _copied(source: Path, task: Task | None) -> bytes:
    """The archive of a folder in which somebody works; nothing in it is touched."""
    try:
        return workspace.preserve(source, task=task, worked_in=True)
    except (workspace.WorkspaceError, OSError) as error:
        raise AssessError(f"workspace {source}: cannot be copied while it is worked in: {error}") from error
