"""What a run did, over time: which role each cell had, the waterlevel, steps, bursts, and how far cells were used.

The data alone; `gyre.core.timeline_fold` builds it from (seconds, event) pairs, of a log or of a simulation. Its size
is bounded by the number of cells and of steps: long series are thinned to what a picture can show, sums stay exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Standing = Literal["rollout", "train", "to_train", "to_rollout", "lost"]
"""What a cell is at a time; to_train and to_rollout: a role transition is under way."""
STANDINGS: tuple[Standing, ...] = ("rollout", "train", "to_train", "to_rollout", "lost")


@dataclass(frozen=True, slots=True)
class Interval:
    """A cell stood so from `start` to `end`, seconds."""

    start: float
    end: float
    standing: Standing


@dataclass(frozen=True, slots=True)
class Lane:
    """One cell, from when it first registered."""

    cell: int
    capacity: int
    """Concurrent executions its engine takes (C_e)."""
    intervals: tuple[Interval, ...]
    """Without gaps, in order. In long runs those too short to be seen are merged into what surrounds them."""
    seconds: Mapping[Standing, float]
    """Exact time in each standing, seconds."""
    used: float
    """Seconds in use: in rollout, by the share of its places that executions fill; in training, while it holds a
    claimed micro-step, or (the core) reduces and updates. A transition, waiting and being lost are no use, and what
    held-out episodes fill is not counted: they are outside d, p and f."""

    @property
    def lifetime(self) -> float:
        """Seconds since it first registered."""
        return sum(self.seconds.values())

    @property
    def utilisation(self) -> float:
        """Share of its lifetime that it was in use, in [0, 1]."""
        return self.used / self.lifetime if self.lifetime > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Level:
    """The counters from `seconds` on, executions over the whole run."""

    seconds: float
    dispatched: int
    launched: int
    terminated: int
    capacity: int
    """C_R at that time, executions."""

    @property
    def waterlevel(self) -> int:
        """The executions at large, w = d - f."""
        return self.dispatched - self.terminated

    @property
    def queued(self) -> int:
        """Queued executions, d - p."""
        return self.dispatched - self.launched

    @property
    def running(self) -> int:
        """Running executions, p - f."""
        return self.launched - self.terminated


@dataclass(frozen=True, slots=True)
class Use:
    """What the cells did from `start` to `end`, each field a time average in cells; together: the cells registered."""

    start: float
    end: float
    rollout: float
    """Serving, in so far as places are filled: serving cells times (p - f) / C_R."""
    rollout_free: float
    train: float
    """Holding a claimed micro-step, or reducing and updating."""
    train_waiting: float
    moving: float
    lost: float


@dataclass(frozen=True, slots=True)
class StepMark:
    """One optimizer step that is done; times in seconds."""

    step: int
    opened: float
    updated: float
    members: int
    """Cells in the reduction."""
    groups: int
    staleness: float
    """Mean v_t - v_d over its groups, training steps."""


@dataclass(frozen=True, slots=True)
class BurstMark:
    """One burst that has ended; times in seconds."""

    burst: int
    version: int
    published: float
    ended: float
    retained: bool
    """Whether the core stayed in training."""


@dataclass(frozen=True, slots=True)
class EvaluationSpan:
    """One evaluation on held-out tasks, outside d, p and f; times in seconds."""

    version: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run so far, or whole. All times are seconds since its first event."""

    seconds: float
    """Time of the latest event."""
    lanes: tuple[Lane, ...]
    """By cell."""
    levels: tuple[Level, ...]
    """In order; the last one is exact."""
    use: tuple[Use, ...]
    """Equal bins without gaps from 0 on; the last one is cut at `seconds`."""
    steps: tuple[StepMark, ...]
    bursts: tuple[BurstMark, ...]
    evaluations: tuple[EvaluationSpan, ...]
    finished: bool
    """Whether the run has said its end."""

    @property
    def utilisation(self) -> float:
        """Share of all cells' lifetimes that they were in use, in [0, 1]."""
        lifetime = sum(lane.lifetime for lane in self.lanes)
        return sum(lane.used for lane in self.lanes) / lifetime if lifetime > 0 else 0.0

    @property
    def staleness(self) -> float:
        """Mean over the groups of all steps that are done, training steps; 0 when there is none."""
        groups = sum(step.groups for step in self.steps)
        return sum(step.staleness * step.groups for step in self.steps) / groups if groups else 0.0

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """From one update to the next, data waiting included; the first one from 0."""
        updates = [0.0, *(step.updated for step in self.steps)]
        return tuple(later - earlier for earlier, later in pairwise(updates))

    def shares(self) -> dict[Standing, float]:
        """Share of all cells' lifetimes in each standing, in [0, 1]."""
        lifetime = sum(lane.lifetime for lane in self.lanes)
        return {
            each: sum(lane.seconds[each] for lane in self.lanes) / lifetime if lifetime > 0 else 0.0
            for each in STANDINGS
        }
