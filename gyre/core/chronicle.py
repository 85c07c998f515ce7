"""What became of every group, execution and step: a fold over EV that forgets nothing, for people who look back.

Its size is that of the run: a small record for each execution, group and step, no tokens. Deciders forget what is done
with; whoever compares two runs, or asks what a group was at some moment, needs it still.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated, GroupDispatched, LaunchGranted
from schemas.envelope import Event
from schemas.rewards import GroupReady, RewardAssigned, RewardUnresolved
from schemas.training import (
    BatchOpened,
    GroupAssigned,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    ReductionOpened,
    StreamClosed,
    TrajectoriesAdmitted,
)


@dataclass(slots=True)
class Execution:
    """One execution; of no group that was dispatched if it is a held-out episode (these are not told in EV)."""

    group: str
    task: str
    version: int
    """Published policy version at its dispatch."""
    standing: str = "queued"
    """queued, granted, running, ended; then valid, placeholder or excluded."""
    reason: str = ""
    """How it ended: completed, failed, timeout or cancelled; "" before."""
    stage: str = ""
    seconds: float = 0.0
    reward: float | None = None
    advantage: float | None = None
    """None until its trajectories are admitted."""
    targets: int = 0


@dataclass(slots=True)
class Group:
    """One group."""

    index: int
    task: str
    version: int
    standing: str = "open"
    """open, ready, assigned (to a batch) or trained."""
    step: int = 0
    """Whose batch it is in; 0: none yet."""
    staleness: int | None = None
    executions: list[str] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    """Once it is ready; None where excluded."""


@dataclass(slots=True)
class Batch:
    """One step's batch."""

    version: int
    """Of the weights that its gradient is taken at."""
    opened: int
    """UTC, ns."""
    groups: list[str] = field(default_factory=list)
    enqueued: int = 0
    """Training micro-steps."""
    measuring: int = 0
    """Measuring micro-steps."""
    claimed: dict[int, int] = field(default_factory=dict)
    """Cell -> claims."""
    completed: int = 0
    """Times that a cell dropped what it had summed."""
    closed: bool = False
    """Whether all of its micro-steps are queued."""
    epochs: int = 0
    """Reductions opened."""
    members: list[int] = field(default_factory=list)
    updated: int = 0
    """UTC, ns, of its update; 0 before."""
    loss: float | None = None
    gradient_norm: float | None = None


class Chronicle:
    """Takes events one by one."""

    def __init__(self) -> None:
        """Nothing happened yet."""
        self.executions: dict[str, Execution] = {}
        self.groups: dict[str, Group] = {}
        self.batches: dict[int, Batch] = {}

    def add(self, time: int, event: Event) -> None:
        """One event; `time` is its commit's, UTC ns. What is about something unknown changes nothing."""
        if (handler := _HANDLERS.get(type(event))) is not None:
            handler(self, event)
        elif isinstance(event, BatchOpened):
            self.batches[event.step] = Batch(event.version, time)
        elif isinstance(event, OptimizerStepped):
            self._stepped(time, event)

    def _stepped(self, time: int, event: OptimizerStepped) -> None:
        if (batch := self.batches.get(event.step)) is None:
            return
        batch.updated, batch.loss, batch.gradient_norm = time, event.loss, event.gradient_norm
        for name in batch.groups:
            self.groups[name].standing = "trained"


def _group(book: Chronicle, event: GroupDispatched) -> None:
    book.groups.setdefault(event.group, Group(event.index, event.task, event.version))


def _dispatched(book: Chronicle, event: ExecutionDispatched) -> None:
    if event.execution in book.executions:
        return
    book.executions[event.execution] = Execution(event.group, event.task, event.version)
    if (group := book.groups.get(event.group)) is not None:
        group.executions.append(event.execution)


def _granted(book: Chronicle, event: LaunchGranted) -> None:
    _stand(book, event.execution, "granted", standing="granted")


def _launched(book: Chronicle, event: ExecutionLaunched) -> None:
    _stand(book, event.execution, "running", standing="running")


def _terminated(book: Chronicle, event: ExecutionTerminated) -> None:
    how = {"reason": event.reason, "stage": event.stage, "seconds": event.seconds}
    _stand(book, event.execution, "ended", standing="ended", **how)


def _rewarded(book: Chronicle, event: RewardAssigned) -> None:
    standing = "placeholder" if event.placeholder else "valid"
    _stand(book, event.execution, "scored", standing=standing, reward=event.reward)


def _unresolved(book: Chronicle, event: RewardUnresolved) -> None:
    _stand(book, event.execution, "scored", standing="excluded")


def _admitted(book: Chronicle, event: TrajectoriesAdmitted) -> None:
    _stand(book, event.execution, "admitted", advantage=event.advantage, targets=event.targets)


def _stand(book: Chronicle, execution: str, rank: str, **changes: Any) -> None:
    """An execution goes one way: what is said late about an earlier rank changes nothing."""
    known = book.executions.get(execution)
    if known is None or _rank(known.standing) > _RANKS[rank]:
        return
    for name, value in changes.items():
        setattr(known, name, value)


_RANKS = {"queued": 0, "granted": 1, "running": 2, "ended": 3, "scored": 4, "admitted": 5}


def _rank(standing: str) -> int:
    return _RANKS.get(standing, _RANKS["scored"])


def _ready(book: Chronicle, event: GroupReady) -> None:
    if (group := book.groups.get(event.group)) is not None and group.standing == "open":
        group.standing, group.rewards = "ready", [each.reward for each in event.outcomes]


def _assigned(book: Chronicle, event: GroupAssigned) -> None:
    group, batch = book.groups.get(event.group), book.batches.get(event.step)
    if group is None or batch is None:
        return
    group.standing, group.step, group.staleness = "assigned", event.step, event.staleness
    batch.groups.append(event.group)


def _in_batch(change: Callable[[Batch, Any], None]) -> Callable[[Chronicle, Any], None]:
    def handler(book: Chronicle, event: Any) -> None:
        if (batch := book.batches.get(event.step)) is not None:
            change(batch, event)

    return handler


def _enqueued(batch: Batch, event: MicroStepEnqueued) -> None:
    batch.enqueued += event.kind == "train"
    batch.measuring += event.kind == "measure"


def _claimed(batch: Batch, event: MicroStepClaimed) -> None:
    batch.claimed[event.cell] = batch.claimed.get(event.cell, 0) + 1


def _completed(batch: Batch, _: MicroStepCompleted) -> None:
    batch.completed += 1


def _closed(batch: Batch, _: StreamClosed) -> None:
    batch.closed = True


def _reducing(batch: Batch, event: ReductionOpened) -> None:
    batch.epochs, batch.members = batch.epochs + 1, list(event.members)


_HANDLERS: Mapping[type[Any], Callable[[Chronicle, Any], None]] = {
    GroupDispatched: _group,
    ExecutionDispatched: _dispatched,
    LaunchGranted: _granted,
    ExecutionLaunched: _launched,
    ExecutionTerminated: _terminated,
    RewardAssigned: _rewarded,
    RewardUnresolved: _unresolved,
    TrajectoriesAdmitted: _admitted,
    GroupReady: _ready,
    GroupAssigned: _assigned,
    MicroStepEnqueued: _in_batch(_enqueued),
    MicroStepClaimed: _in_batch(_claimed),
    MicroStepCompleted: _in_batch(_completed),
    StreamClosed: _in_batch(_closed),
    ReductionOpened: _in_batch(_reducing),
}
FOLDS = frozenset(_HANDLERS) | {BatchOpened, OptimizerStepped}
"""The events that a chronicle tells of."""
