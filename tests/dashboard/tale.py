"""A run with something for every view, told with round times: two cells, six steps, and hostile words wherever an
agent, a harness or an evaluator may put some. Its first execution has the tree of the small run."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bus import subjects
from bus.log import BusPort
from gyre.config import Config
from schemas import dispatch, rewards, roles, runs, training
from schemas.base import pack_floats
from schemas.calls import ModelCallRecorded, RecordsSealed, RouteAssigned, RouteMoved
from schemas.envelope import Commit, Event, Producer
from tests.core.world import DIGEST, WEIGHTS, published, registered, stepped
from tests.services import small_run

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
RUN = "tale"
STEPS, GROUPS, SIZE, MU = 6, 2, 4, 2
CONFIG = Config.of(
    {
        "run": {"steps": STEPS},
        "schedule": {"groups": GROUPS, "executions": SIZE, "phi": 0, "mu": MU},
        "cells": {"count": 2, "concurrency": 8},
    }
)
BEGIN = 1_900_000_000.0
"""UTC seconds of an archived tale's zero."""
LENGTH = 40.0
"""Seconds that it lasts."""
REASONS: tuple[dispatch.Reason, ...] = ("completed", "completed", "timeout", "failed")


@dataclass(frozen=True)
class Line:
    """One commit of one event."""

    at: float
    service: str
    entity: tuple[str | int, ...]
    event: Event


def tale() -> list[Line]:
    """All of it, in order of time; the first execution's records go into CALL."""
    return sorted((*_beginning(), *(line for burst in range(STEPS // MU) for line in _burst(burst)), *_end()), key=_at)


async def say(bus: BusPort, lines: list[Line], zero: float, first: int = 1) -> int:
    """Say lines one after the other, at their times after `zero` (UTC seconds); returns the last sequence of EV."""
    head = 0
    claims: dict[int, int] = {}
    for number, line in enumerate(lines, first):
        commit = Commit(
            run=RUN,
            producer=Producer(service=line.service, instance=f"{line.service}-1"),
            commit=f"c{number}",
            causation=0,
            as_of=0,
            correlation=RUN,
            time=round((zero + line.at) * 1e9),
            events=(of_claim(line.event, claims),),
        )
        if isinstance(line.event, ModelCallRecorded):
            await bus.calls.append(subjects.call(RUN, line.event.execution), commit)
        else:
            head = await bus.ev.append(subjects.ev(RUN, line.service, *line.entity), commit)
        if isinstance(line.event, training.MicroStepClaimed):
            claims[line.event.micro_step] = head
    return head


def of_claim(event: Event, claims: dict[int, int]) -> Event:
    """The event; a completion names the sequence of its claim, which is known once that is said."""
    if isinstance(event, training.MicroStepCompleted):
        return event.model_copy(update={"claim": claims[event.micro_step]})
    return event


def _at(line: Line) -> float:
    return line.at


def _beginning() -> Iterator[Line]:
    begin = runs.RunStarted(
        config=CONFIG.table(),
        config_digest=CONFIG.digest(),
        seed=0,
        code_version="1",
        weights=WEIGHTS,
        tasks=("a",),
        heldout=("b",),
    )
    yield Line(0, "control", ("run",), begin)
    for cell in range(2):
        yield Line(0.5, "cell", ("cell", cell), registered(cell, f"cell-{cell}", 8))
    evaluation = runs.EvaluationScored(
        evaluation="e0", version=0, scores=pack_floats([0.25]), mean=0.25, valid=1, seconds=1
    )
    yield Line(1, "examiner", ("evaluation", "e0"), evaluation)


def _burst(burst: int) -> Iterator[Line]:
    """Twelve seconds: executions, then the core trains two steps and publishes."""
    start = 2.0 + 12 * burst
    for place in range(MU * GROUPS):
        yield from _group(burst * MU * GROUPS + place, burst * MU, start + place / 10)
    for at, to in ((start + 6, "train"), (start + 11, "rollout")):
        asked: dict[str, Any] = {"transition": f"t{burst}{to}", "cell": 0, "instance": "cell-0", "to": to}
        yield Line(at, "scheduler", ("cell", 0), roles.RoleTransitionRequested(**asked))
        yield Line(at + 0.5, "cell", ("cell", 0), roles.RoleTransitionCompleted(**asked, version=0))
    for step in (burst * MU + 1, burst * MU + 2):
        yield from _step(step, burst * MU, start + 6.5 + 2 * (step - burst * MU - 1))
    yield Line(start + 10.8, "cell", ("weights",), published(burst * MU + MU))


def _group(index: int, version: int, at: float) -> Iterator[Line]:
    group, task = f"g{index}", f"task-{index % 5}"
    told: dict[str, Any] = {"group": group, "index": index, "task": task, "version": version}
    yield Line(at, "scheduler", ("group", group), dispatch.GroupDispatched(**told, executions=SIZE - 1, surplus=1))
    outcomes = []
    for place in range(SIZE):
        execution, reward = f"x{index}-{place}", _reward(index, place)
        excluded = (index, place) == (1, 3)
        yield from _execution(execution, group, task, place, version, at)
        standing = "excluded" if excluded else "valid"
        outcomes.append(rewards.Outcome(execution=execution, standing=standing, reward=None if excluded else reward))
        judged: Event = rewards.RewardAssigned(execution=execution, group=group, reward=reward)
        if excluded:
            judged = rewards.RewardUnresolved(execution=execution, group=group, attempts=3, reason=HOSTILE)
        yield Line(at + 4 + place / 10, "evaluator", ("execution", execution), judged)
    ready = rewards.GroupReady(group=group, index=index, version=version, outcomes=tuple(outcomes))
    yield Line(at + 5, "admission", ("group", group), ready)


def _reward(index: int, place: int) -> float:
    """Groups of all zeros (but for rounding), of all ones and of both, getting better."""
    return (0.0, 1.0)[(index + place) % 3 < 1 + index // 5] if index % 4 else (index > 4) + place * 1e-17


def _execution(execution: str, group: str, task: str, place: int, version: int, at: float) -> Iterator[Line]:
    about = ("execution", execution)
    sent = dispatch.ExecutionDispatched(
        execution=execution, group=group, task=task, index=place, version=version, seed=place
    )
    yield Line(at, "scheduler", (*about, "dispatched"), sent)
    token = {"token_digest": DIGEST, "deadline_seconds": 60}
    launched = dispatch.ExecutionLaunched(execution=execution, group=group, runner="r", **token)
    yield Line(at + 0.5 + place / 10, "runner", (*about, "launched"), launched)
    yield Line(at + 0.6 + place / 10, "proxy", about, RouteAssigned(execution=execution, cell=place % 2))
    if place == 1:
        moved = RouteMoved(execution=execution, from_cell=1, to_cell=0, reason="role change")
        yield Line(at + 0.9 + place / 10, "proxy", about, moved)
    for record in small_run.RECORDS if execution == "x0-0" else ():
        yield Line(at + 1, "proxy", about, hostile(record))
    calls = len(small_run.RECORDS) if execution == "x0-0" else 0
    sealed = RecordsSealed(execution=execution, last_sequence=calls, count=calls, digest=DIGEST)
    yield Line(at + 3.2, "proxy", about, sealed)
    ended = dispatch.ExecutionTerminated(
        execution=execution,
        group=group,
        task=task,
        reason=REASONS[place],
        stage="agent",
        exit_code=0,
        seconds=2.5 + place / 10,
        state=None,
        detail=HOSTILE,
    )
    yield Line(at + 3.1 + place / 10, "runner", (*about, "terminated"), ended)
    if execution == "x0-0":
        admitted = small_run.ADMITTED.model_copy(update={"group": group})
        yield Line(at + 5.1, "admission", about, admitted)


def hostile(record: ModelCallRecorded) -> ModelCallRecorded:
    """The record with markup in what the client and the model said."""
    return record.model_copy(
        update={"messages": record.messages.replace("Write", HOSTILE.replace('"', '\\"') + " Write")}
    )


def _step(step: int, version: int, at: float) -> Iterator[Line]:
    yield Line(at, "packer", ("batch", step), training.BatchOpened(step=step, version=version, groups=GROUPS))
    for place in range(GROUPS):
        group = f"g{(step - 1) * GROUPS + place}"
        taken = training.GroupAssigned(step=step, group=group, version=version, staleness=step - 1 - version)
        yield Line(at + 0.1 + place / 5, "packer", ("batch", step), taken)
    for micro in range(4):
        yield from _micro(step, micro, at + 0.3 + micro / 10)
    yield Line(at + 0.8, "packer", ("batch", step), training.StreamClosed(step=step, micro_steps=4))
    share = training.Contribution(micro_step=0, cell=0, claim=1)
    told: dict[str, Any] = {"members": (0,), "instances": ("cell-0",), "contributions": (share,)}
    yield Line(at + 1.5, "cell", ("step", step), training.ReductionOpened(step=step, epoch=1, **told))
    done = stepped(step).model_copy(update={"loss": 0.1 * step, "gradient_norm": 1.0 / step})
    yield Line(at + 1.8, "cell", ("step", step), done)


def _micro(step: int, micro: int, at: float) -> Iterator[Line]:
    queued = training.MicroStepEnqueued(step=step, micro_step=micro, kind="train", rows=(), tokens=100 + micro)
    yield Line(at, "packer", ("step", step, micro), queued)
    if (step, micro) == (2, 1):  # its first claim is never completed
        lost = training.MicroStepClaimed(step=step, micro_step=micro, cell=1, instance="cell-1")
        yield Line(at + 0.1, "cell", ("step", step, micro), lost)
        again = training.MicroStepReissued(
            step=step, micro_step=micro, enqueued=1, reissue=1, reason=f"cell 1 is lost {HOSTILE}"
        )
        yield Line(at + 0.2, "packer", ("step", step, micro), again)
    taken = training.MicroStepClaimed(step=step, micro_step=micro, cell=0, instance="cell-0")
    yield Line(at + 0.3, "cell", ("step", step, micro), taken)
    stats = training.ExecutionStats(
        execution="x0-0",
        targets=9,
        ratio=1.0,
        mask=0 if micro == 3 else 1,
        loss=0.1,
        max_delta_log_p=0.01 * step,
        k3=0.0,
    )
    done = training.MicroStepCompleted(
        step=step, micro_step=micro, cell=0, instance="cell-0", claim=1, stats=(stats,), seconds=0.2
    )
    yield Line(at + 0.5, "cell", ("step", step, micro), done)


def _end() -> Iterator[Line]:
    evaluation = runs.EvaluationScored(
        evaluation="e6", version=6, scores=pack_floats([0.75]), mean=0.75, valid=1, seconds=1
    )
    yield Line(39, "examiner", ("evaluation", "e6"), evaluation)
    count = STEPS * GROUPS * SIZE
    finished = runs.RunFinished(steps=STEPS, dispatched=count, launched=count, terminated=count)
    yield Line(LENGTH, "scheduler", ("run",), finished)
