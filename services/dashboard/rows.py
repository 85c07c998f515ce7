"""What each event changes in the dashboard's tables: pure, so that a log and a warehouse fill them alike.

Times are seconds since the run's first event. What was said first of a thing stands, and repeating an event changes
nothing. An execution that was never dispatched (a held-out episode) has no row: it is outside d, p and f.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from schemas.calls import RecordsSealed, RouteAssigned, RouteMoved
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated, GroupDispatched
from schemas.envelope import Event
from schemas.rewards import GroupReady, RewardAssigned, RewardUnresolved, TreeBuilt, alike
from schemas.runs import EvaluationScored, RunFinished
from schemas.training import (
    BatchOpened,
    GroupAssigned,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    MicroStepReissued,
    OptimizerStepped,
    ReductionOpened,
    StepAborted,
    StreamClosed,
    TrajectoriesAdmitted,
    WeightsPublished,
)

Change = tuple[str, tuple[Any, ...]]
"""A statement of SQLite with its values."""

TABLES = """
CREATE TABLE executions (execution TEXT PRIMARY KEY, group_id TEXT, task TEXT, version INT, dispatched_at REAL,
    launched_at REAL, terminated_at REAL, graded_at REAL, admitted_at REAL, reason TEXT, stage TEXT, detail TEXT,
    seconds REAL, reward REAL, placeholder INT, excluded INT, calls INT, leaves INT, tokens INT, targets INT,
    advantage REAL, cell INT);
CREATE INDEX by_dispatch ON executions(dispatched_at);
CREATE INDEX by_launch ON executions(launched_at);
CREATE INDEX by_end ON executions(terminated_at);
CREATE INDEX by_version ON executions(version, dispatched_at);
CREATE TABLE groups (group_id TEXT PRIMARY KEY, place INT, task TEXT, version INT, executions INT, dispatched_at REAL,
    ready_at REAL, assigned_at REAL, step INT, staleness INT, scored INT, mean REAL, lowest REAL, highest REAL);
CREATE INDEX by_step ON groups(step);
CREATE TABLE steps (step INTEGER PRIMARY KEY, version INT, wanted INT, opened_at REAL, closed_at REAL, updated_at REAL,
    members INT, loss REAL, gradient_norm REAL);
CREATE TABLE micro_steps (step INT, micro_step INT, kind TEXT, tokens INT, enqueued_at REAL,
    PRIMARY KEY (step, micro_step)) WITHOUT ROWID;
CREATE TABLE claims (sequence INTEGER PRIMARY KEY, step INT, micro_step INT, cell INT, claimed_at REAL,
    completed_at REAL, void_at REAL, trained INT, masked INT, max_delta_log_p REAL);
CREATE INDEX of_step ON claims(step, micro_step);
CREATE TABLE publications (version INTEGER PRIMARY KEY, at REAL);
CREATE TABLE evaluations (version INTEGER PRIMARY KEY, at REAL, mean REAL, valid INT);
CREATE TABLE ends (name TEXT PRIMARY KEY, at REAL, detail TEXT);
"""
"""A claim is void once its micro-step was given to somebody else."""


def changes(sequence: int, at: float, event: Event) -> tuple[Change, ...]:
    """What one event changes; nothing for most types.

    Args:
        sequence: of its message in EV; a claim is named by it.
        at: seconds since the run's first event.
        event: as said.
    """
    handler = _HANDLERS.get(type(event))
    return handler(sequence, at, event) if handler else ()


def row(table: str, key: Mapping[str, Any], values: Mapping[str, Any]) -> Change:
    """A row with this key, made if it is not there; only what it does not say yet is set."""
    return upsert(table, tuple(key), tuple(values)), (*key.values(), *values.values())


def known(table: str, key: Mapping[str, Any], values: Mapping[str, Any]) -> Change:
    """The same for a row that has to be there already."""
    return _update(table, tuple(key), tuple(values)), (*values.values(), *key.values())


@cache
def upsert(table: str, keys: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """The statement of `row`: it takes the keys' values, then the columns'."""
    names, marks = ", ".join((*keys, *columns)), ", ".join("?" * (len(keys) + len(columns)))
    sets = ", ".join(f"{each} = COALESCE({table}.{each}, excluded.{each})" for each in columns)
    return (
        f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) "  # noqa: S608 - names of ours
        f"DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"
    )


@cache
def _update(table: str, keys: tuple[str, ...], columns: tuple[str, ...]) -> str:
    sets = ", ".join(f"{each} = COALESCE({each}, ?)" for each in columns)
    return f"UPDATE {table} SET {sets} WHERE {' AND '.join(f'{each} = ?' for each in keys)}"  # noqa: S608


def _execution(name: str, **values: Any) -> tuple[Change, ...]:
    return (known("executions", {"execution": name}, values),)


def _dispatched(_: int, at: float, event: ExecutionDispatched) -> tuple[Change, ...]:
    values = {"group_id": event.group, "task": event.task, "version": event.version, "dispatched_at": at}
    return (row("executions", {"execution": event.execution}, values),)


def _terminated(_: int, at: float, event: ExecutionTerminated) -> tuple[Change, ...]:
    told = {"reason": event.reason, "stage": event.stage, "detail": event.detail, "seconds": event.seconds}
    return _execution(event.execution, terminated_at=at, **told)


def _built(_: int, __: float, event: TreeBuilt) -> tuple[Change, ...]:
    longest = max((leaf.tokens for leaf in event.leaves), default=0)
    return _execution(event.execution, leaves=len(event.leaves), tokens=longest)


def _admitted(_: int, at: float, event: TrajectoriesAdmitted) -> tuple[Change, ...]:
    return _execution(event.execution, admitted_at=at, targets=event.targets, advantage=event.advantage)


def _routed(_: int, __: float, event: RouteAssigned) -> tuple[Change, ...]:
    return (("UPDATE executions SET cell = ? WHERE execution = ?", (event.cell, event.execution)),)


def _moved(_: int, __: float, event: RouteMoved) -> tuple[Change, ...]:
    return (("UPDATE executions SET cell = ? WHERE execution = ?", (event.to_cell, event.execution)),)


def _group(_: int, at: float, event: GroupDispatched) -> tuple[Change, ...]:
    told = {"task": event.task, "version": event.version, "executions": event.executions + event.surplus}
    return (row("groups", {"group_id": event.group}, {"place": event.index, **told, "dispatched_at": at}),)


def _ready(_: int, at: float, event: GroupReady) -> tuple[Change, ...]:
    rewards = [each.reward for each in event.outcomes if each.reward is not None]
    found: dict[str, Any] = {"ready_at": at, "scored": len(rewards)}
    if rewards:
        lowest, highest = min(rewards), max(rewards)
        same = alike(lowest, highest)
        found |= {"mean": sum(rewards) / len(rewards), "lowest": lowest, "highest": lowest if same else highest}
    return (row("groups", {"group_id": event.group}, {"place": event.index, "version": event.version, **found}),)


def _assigned(_: int, at: float, event: GroupAssigned) -> tuple[Change, ...]:
    found = {"assigned_at": at, "step": event.step, "staleness": event.staleness}
    return (row("groups", {"group_id": event.group}, found),)


def _opened(_: int, at: float, event: BatchOpened) -> tuple[Change, ...]:
    return (row("steps", {"step": event.step}, {"wanted": event.groups, "opened_at": at}),)


def _reduced(_: int, __: float, event: ReductionOpened) -> tuple[Change, ...]:
    return (("UPDATE steps SET members = ? WHERE step = ?", (len(event.members), event.step)),)


def _stepped(_: int, at: float, event: OptimizerStepped) -> tuple[Change, ...]:
    found = {"version": event.version, "loss": event.loss, "gradient_norm": event.gradient_norm}
    return (row("steps", {"step": event.step}, {"updated_at": at, **found}),)


def _enqueued(_: int, at: float, event: MicroStepEnqueued) -> tuple[Change, ...]:
    key = {"step": event.step, "micro_step": event.micro_step}
    return (row("micro_steps", key, {"kind": event.kind, "tokens": event.tokens, "enqueued_at": at}),)


def _claimed(sequence: int, at: float, event: MicroStepClaimed) -> tuple[Change, ...]:
    told = {"step": event.step, "micro_step": event.micro_step, "cell": event.cell, "claimed_at": at}
    return (row("claims", {"sequence": sequence}, told),)


def _completed(_: int, at: float, event: MicroStepCompleted) -> tuple[Change, ...]:
    found = {
        "completed_at": at,
        "trained": len(event.stats),
        "masked": sum(1 - each.mask for each in event.stats),
        "max_delta_log_p": max((each.max_delta_log_p for each in event.stats), default=0.0),
    }
    return (known("claims", {"sequence": event.claim}, found),)


def _reissued(_: int, at: float, event: MicroStepReissued) -> tuple[Change, ...]:
    return (known("claims", {"step": event.step, "micro_step": event.micro_step}, {"void_at": at}),)


_HANDLERS: Mapping[type[Any], Callable[[int, float, Any], tuple[Change, ...]]] = {
    ExecutionDispatched: _dispatched,
    ExecutionLaunched: lambda _, at, event: _execution(event.execution, launched_at=at),
    ExecutionTerminated: _terminated,
    RecordsSealed: lambda _, __, event: _execution(event.execution, calls=event.count),
    TreeBuilt: _built,
    RewardAssigned: lambda _, at, event: _execution(
        event.execution, graded_at=at, reward=event.reward, placeholder=int(event.placeholder), excluded=0
    ),
    RewardUnresolved: lambda _, at, event: _execution(event.execution, graded_at=at, excluded=1),
    TrajectoriesAdmitted: _admitted,
    RouteAssigned: _routed,
    RouteMoved: _moved,
    GroupDispatched: _group,
    GroupReady: _ready,
    GroupAssigned: _assigned,
    BatchOpened: _opened,
    StreamClosed: lambda _, at, event: (row("steps", {"step": event.step}, {"closed_at": at}),),
    ReductionOpened: _reduced,
    OptimizerStepped: _stepped,
    MicroStepEnqueued: _enqueued,
    MicroStepClaimed: _claimed,
    MicroStepCompleted: _completed,
    MicroStepReissued: _reissued,
    WeightsPublished: lambda _, at, event: (row("publications", {"version": event.version}, {"at": at}),),
    EvaluationScored: lambda _, at, event: (
        row("evaluations", {"version": event.version}, {"at": at, "mean": event.mean, "valid": event.valid}),
    ),
    RunFinished: lambda _, at, __: (row("ends", {"name": "finished"}, {"at": at}),),
    StepAborted: lambda _, at, event: (
        row("ends", {"name": "aborted"}, {"at": at, "detail": f"step {event.step}: {event.reason}"}),
    ),
}
