"""A run in numbers, for the edge of its scheduler: a fold of what concerns the run as a whole.

It reads the log beside the scheduler, from its start, and decodes nothing that is not counted here.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, get_args

from bus.log import BusPort
from gyre.config_schedule import CellsSection
from gyre.core.roles import Cell, Cells, evolve_cells
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.rewards import GroupReady, RewardAssigned, RewardUnresolved
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import RunFinished
from schemas.training import (
    BatchOpened,
    GroupAssigned,
    MicroStepCompleted,
    MicroStepEnqueued,
    MicroStepReissued,
    OptimizerStepped,
    WeightsPublished,
)
from services.hearing import filters_of
from services.meters import Meters

ROLES = ("rollout", "train", "moving", "lost")
_Moved = CellRegistered | CellLost | RoleTransitionRequested | RoleTransitionCompleted | RoleTransitionFailed


@dataclass(slots=True)
class RunFold:
    """The run so far."""

    section: CellsSection
    cells: Cells = field(init=False)
    """As the scheduler has them, but for the timers of its retries: neither capacity nor a role hangs on those."""
    dispatched: int = 0
    launched: int = 0
    terminated: int = 0
    settled: int = 0
    """Executions whose reward is assigned or given up."""
    published: int = 0
    finished: int = 0
    ready: dict[str, float | None] = field(default_factory=dict)
    """Ready, unassigned group -> its mean reward."""
    enqueued: set[tuple[int, int]] = field(default_factory=set)
    """Micro-steps of the open batch that nobody has completed."""
    opened: int = 0
    """When the open batch was, UTC, ns."""
    rewards: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    """Of the open batch's groups."""
    step: dict[str, float] = field(default_factory=dict)
    """Name -> value of the latest step."""

    def __post_init__(self) -> None:
        """No cell has registered."""
        self.cells = Cells(trainers=self.section.trainers)

    def take(self, event: Event, time: int) -> None:
        """Fold one event; `time` is its commit's (UTC, ns)."""
        if (fold := _FOLDS.get(type(event))) is not None:
            fold(self, event)
        elif isinstance(event, BatchOpened):
            self.opened, self.rewards, self.staleness = time, [], []
            self.enqueued.clear()
        elif isinstance(event, OptimizerStepped):
            self.step = self._stepped(event, time)

    def _stepped(self, event: OptimizerStepped, time: int) -> dict[str, float]:
        means: dict[str, Sequence[float]] = {"reward_mean": self.rewards, "staleness_mean": self.staleness}
        return {
            "step": event.step,
            "step_seconds": (time - self.opened) / 1e9,
            "loss": event.loss,
            "gradient_norm": event.gradient_norm,
            **{name: fmean(values) for name, values in means.items() if values},
        }

    def assigned(self, event: GroupAssigned) -> None:
        """A ready group joins the open batch."""
        mean = self.ready.pop(event.group, None)
        if mean is not None:
            self.rewards.append(mean)
        self.staleness.append(event.staleness)

    def moved(self, event: _Moved) -> None:
        """What concerns a cell; one that is none of this run has no place in C_R."""
        if isinstance(event, CellRegistered) and event.cell >= self.section.count + self.section.standalone:
            return
        self.cells = evolve_cells(self.cells, event)

    @property
    def roles(self) -> Counter[str]:
        """Role -> cells in it."""
        return Counter(map(_role, self.cells.members))

    @property
    def queues(self) -> dict[str, int]:
        """Queue -> what waits in it or is being worked on."""
        return {
            "rollout": self.dispatched - self.launched,
            "eval": self.terminated - self.settled,
            "step": len(self.enqueued),
        }


def _role(cell: Cell) -> str:
    if not cell.alive:
        return "lost"
    return "moving" if cell.standing == "moving" else cell.role


def _group_ready(fold: RunFold, event: GroupReady) -> None:
    rewards = [each.reward for each in event.outcomes if each.reward is not None]
    fold.ready[event.group] = fmean(rewards) if rewards else None


def _counts(name: str) -> Callable[[RunFold, Any], None]:
    def count(fold: RunFold, _: Any) -> None:
        setattr(fold, name, getattr(fold, name) + 1)

    return count


_FOLDS: Mapping[type[Any], Callable[[RunFold, Any], None]] = {
    ExecutionDispatched: _counts("dispatched"),
    ExecutionLaunched: _counts("launched"),
    ExecutionTerminated: _counts("terminated"),
    RewardAssigned: _counts("settled"),
    RewardUnresolved: _counts("settled"),
    RunFinished: _counts("finished"),
    WeightsPublished: lambda fold, event: setattr(fold, "published", event.version),
    **dict.fromkeys(get_args(_Moved), RunFold.moved),
    GroupReady: _group_ready,
    GroupAssigned: RunFold.assigned,
    MicroStepEnqueued: lambda fold, event: fold.enqueued.add((event.step, event.micro_step)),
    MicroStepReissued: lambda fold, event: fold.enqueued.add((event.step, event.micro_step)),
    MicroStepCompleted: lambda fold, event: fold.enqueued.discard((event.step, event.micro_step)),
}
KINDS: tuple[type[Any], ...] = (*_FOLDS, BatchOpened, OptimizerStepped)
_GAUGES = {
    "dispatched": "d: executions dispatched.",
    "launched": "p: executions launched.",
    "terminated": "f: executions that ended.",
    "waterlevel": "w = d - f.",
    "capacity": "C_R: executions that may run at once.",
    "ready_groups": "Groups that are ready and in no batch.",
    "published_version": "What rollout engines serve.",
    "finished": "1 once the run is finished.",
    "step": "Optimizer steps taken.",
    "step_seconds": "Of the latest step, from its first group to the update.",
    "loss": "Of the latest step.",
    "gradient_norm": "Of the latest step, before clipping.",
    "reward_mean": "Over the latest step's groups.",
    "staleness_mean": "v_t - v_d over the latest step's groups, in training steps.",
}


class RunMeters:
    """The fold and its gauges."""

    def __init__(self, meters: Meters, cells: CellsSection) -> None:
        """In the registry of the process that serves them."""
        self.fold = RunFold(cells)
        self._gauges = {name: meters.add_gauge(f"gyre_run_{name}", text) for name, text in _GAUGES.items()}
        self._cells = meters.add_gauge("gyre_run_cells", "Cells by role.", "role")
        self._queues = meters.add_gauge("gyre_queue_length", "Entries that wait or are being worked on.", "queue")

    async def follow(self, bus: BusPort) -> None:
        """Fold until cancelled."""
        said = bus.ev.read(0, *filters_of(bus.run, KINDS))
        async with contextlib.aclosing(said):
            async for stored in said:
                if stored.commit is not None:
                    for event in stored.commit.events:
                        self.fold.take(event, stored.commit.time)

    def show(self) -> None:
        """Bring the gauges up to date."""
        fold = self.fold
        values: dict[str, float] = {
            "dispatched": fold.dispatched,
            "launched": fold.launched,
            "terminated": fold.terminated,
            "waterlevel": fold.dispatched - fold.terminated,
            "capacity": fold.cells.capacity,
            "ready_groups": len(fold.ready),
            "published_version": fold.published,
            "finished": fold.finished,
            **fold.step,
        }
        for name, value in values.items():
            self._gauges[name](value)
        roles = fold.roles
        for role in ROLES:
            self._cells(roles[role], role=role)
        for queue, length in fold.queues.items():
            self._queues(length, queue=queue)
