"""A run of two cells and two bursts, told by hand with round times, for timelines and pictures of them."""

from schemas.calls import RouteAssigned, RouteMoved
from schemas.dispatch import ExecutionDispatched, GroupDispatched
from schemas.envelope import Event
from schemas.roles import CellLost, CellRole, RoleTransitionCompleted, RoleTransitionRequested
from schemas.runs import EvaluationStarted, RunFinished
from schemas.training import (
    BatchOpened,
    BurstEnded,
    Contribution,
    MicroStepClaimed,
    MicroStepCompleted,
    ReductionOpened,
)
from tests.core.world import assigned, launched, published, registered, run_started, scored, stepped, terminated

Told = list[tuple[float, Event]]


def dispatched(execution: str) -> ExecutionDispatched:
    return ExecutionDispatched(execution=execution, group="g", task="a", index=0, version=0, seed=0)


def asked(cell: int, to: CellRole) -> RoleTransitionRequested:
    return RoleTransitionRequested(transition="t1", cell=cell, instance=f"cell-{cell}", to=to)


def moved(cell: int, to: CellRole) -> RoleTransitionCompleted:
    return RoleTransitionCompleted(transition="t1", cell=cell, instance=f"cell-{cell}", to=to, version=0)


def lost(cell: int) -> CellLost:
    return CellLost(cell=cell, instance=f"cell-{cell}", reason="silent")


def claimed(cell: int, micro_step: int = 0) -> MicroStepClaimed:
    return MicroStepClaimed(step=1, micro_step=micro_step, cell=cell, instance=f"cell-{cell}")


def done(cell: int, micro_step: int = 0) -> MicroStepCompleted:
    return MicroStepCompleted(
        step=1, micro_step=micro_step, cell=cell, instance=f"cell-{cell}", claim=1, stats=(), seconds=1
    )


def opened(step: int) -> BatchOpened:
    return BatchOpened(step=step, version=step - 1, groups=1)


def reduced(step: int, members: tuple[int, ...]) -> ReductionOpened:
    shares = (Contribution(micro_step=0, cell=0, claim=1),)
    instances = tuple(f"cell-{cell}" for cell in members)
    return ReductionOpened(step=step, epoch=1, members=members, instances=instances, contributions=shares)


def ended(burst: int, version: int) -> BurstEnded:
    return BurstEnded(burst=burst, version=version, retained=False)


def a_burst(at: float, step: int) -> Told:
    """Two executions on cell 1 of two (4 places each); the core trains a second later, for 6 of 10 seconds."""
    one, other = f"x{step}-0", f"x{step}-1"
    return [
        (at, dispatched(one)),
        (at, dispatched(other)),
        (at, launched(one)),
        (at, launched(other)),
        (at, RouteAssigned(execution=one, cell=1)),
        (at, RouteAssigned(execution=other, cell=0)),
        (at + 1, asked(0, "train")),
        (at + 1, RouteMoved(execution=other, from_cell=0, to_cell=1, reason="it left")),
        (at + 2, moved(0, "train")),
        (at + 2, opened(step)),
        (at + 2, assigned("g", step)),
        (at + 2, claimed(0)),
        (at + 5, done(0)),
        (at + 5, terminated(one)),
        (at + 6, reduced(step, (0,))),
        (at + 7, stepped(step)),
        (at + 7, terminated(other)),
        (at + 8, published(step)),
        (at + 8, ended(step, step)),
        (at + 8, asked(0, "rollout")),
        (at + 9, moved(0, "rollout")),
    ]


def a_run() -> Told:
    """An evaluation of 10 s, then two bursts of 10 s each."""
    return [
        (0, run_started()),
        (0, registered(0, "cell-0")),
        (0, registered(1, "cell-1")),
        (0, EvaluationStarted(evaluation="e0", version=0, episodes=1)),
        (10, scored("e0", 0)),
        (10, GroupDispatched(group="g", index=0, task="a", version=0, executions=2)),
        *a_burst(10, 1),
        *a_burst(20, 2),
        (30, RunFinished(steps=2, dispatched=4, launched=4, terminated=4)),
    ]
