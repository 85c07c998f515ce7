"""What is to be done: how long each execution would take on a full engine, and what training its group costs."""

from dataclasses import dataclass
from math import exp, inf, sqrt
from random import Random
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Job:
    """One execution."""

    work: float
    """Seconds on an engine that is full all the while."""
    limit: float = inf
    """Seconds from launch after which its harness is ended."""
    scoring: float = 0.0
    """Seconds from its end to its score."""
    overtime: float = 0.0
    """Seconds that scoring takes longer if the harness was ended at its limit."""


class Workload(Protocol):
    """All executions of a run; each group is asked for once, in the order of dispatch."""

    def jobs(self, index: int, task: str, executions: int) -> tuple[Job, ...]:
        """The executions of the run's group `index`."""

    def micro_steps(self, index: int) -> tuple[float, ...]:
        """What training on the group costs, node-seconds for each of its micro-steps."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Executions whose time is lognormal: partly their query's, partly their own."""

    median: float
    """Seconds, on a full engine."""
    sigma: float
    """Standard deviation of the logarithm."""
    between: float
    """Share of the logarithm's variance that all executions of a query have in common, in [0, 1]."""
    limit: float = inf
    """Harness limit, seconds."""
    overall: float = inf
    """Limit of execution and scoring together, seconds."""
    exhausted: float = 0.0
    """Share of the executions ended at the harness limit whose scoring takes until the overall limit."""


class Sampled:
    """A workload drawn from a distribution; group by group, so that every schedule meets the same executions."""

    def __init__(self, durations: Durations, batch: float, groups: int, parts: int, chance: Random) -> None:
        """Training of a batch of `groups` groups costs `batch` node-seconds, in `parts` micro-steps a group."""
        self._durations, self._chance = durations, chance
        self._micro_steps = (batch / groups / parts,) * parts
        self._queries: dict[str, float] = {}
        """Task -> what its executions have in common: the deviation of the logarithm."""

    def jobs(self, index: int, task: str, executions: int) -> tuple[Job, ...]:
        found, draw = self._durations, self._chance.gauss
        if task not in self._queries:
            self._queries[task] = draw(0.0, found.sigma * sqrt(found.between))
        center, own = self._queries[task], found.sigma * sqrt(1.0 - found.between)
        return tuple(self._job(found.median * exp(center + draw(0.0, own))) for _ in range(executions))

    def _job(self, work: float) -> Job:
        found = self._durations
        if self._chance.random() < found.exhausted:
            return Job(work, found.limit, overtime=found.overall - found.limit)
        return Job(work, found.limit)

    def micro_steps(self, index: int) -> tuple[float, ...]:
        return self._micro_steps
