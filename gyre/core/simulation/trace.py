"""A recorded run as a workload: the same executions and micro-steps, told again under other settings.

What an execution takes on a full engine follows from what it took and from how full the engines were meanwhile.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, linear_regression
from typing import Literal

from gyre.core.simulation.setting import Timings, latency
from gyre.core.simulation.workload import Job

Measure = Literal[
    "to_train", "to_rollout", "update", "publication", "launch", "admission", "evaluation", "claim", "commit"
]
"""Durations that a log tells, named as in `Timings`."""
MEASURES: tuple[Measure, ...] = (
    "to_train",
    "to_rollout",
    "update",
    "publication",
    "launch",
    "admission",
    "evaluation",
    "claim",
    "commit",
)


MIN_LOADS, MOST_RELIEF = 2, 0.95


@dataclass(frozen=True, slots=True)
class Recorded:
    """One execution as it was; times in seconds of the trace."""

    launched: float
    ended: float
    scored: float


@dataclass(frozen=True, slots=True)
class MicroStep:
    """One micro-step as it was."""

    completed: float
    """Seconds of the trace."""
    tokens: int
    seconds: float
    """From its claim to its completion."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a log told."""

    zero: float
    """The first event, seconds on the clock of the pairs; every other time counts from there."""
    began: float
    """When the run had all its cells: its first launch or evaluation, seconds of the trace."""
    groups: int
    """Groups that were dispatched."""
    executions: Mapping[tuple[int, int], Recorded]
    """(group, index) -> an execution that ended."""
    tokens: Mapping[int, tuple[int, ...]]
    """Group -> the tokens of each of its micro-steps; what trained nothing is missing."""
    micro_steps: tuple[MicroStep, ...]
    measured: Mapping[Measure, tuple[tuple[float, float], ...]]
    """What -> (when it had passed, how long it took), seconds."""
    loads: tuple[tuple[float, float], ...]
    """(seconds, load from then on): running executions per serving place."""
    updates: tuple[float, ...]
    """When each optimizer update was done, seconds of the trace."""

    def timings(self, until: float) -> Timings:
        """Mean durations of what had passed by then; 0 for what had not: see `unseen`."""
        return Timings(**{what: fmean(self._early(what, until) or (0.0,)) for what in MEASURES})

    def unseen(self, until: float) -> tuple[Measure, ...]:
        """What had not happened by then, and did later: nothing is known of it."""
        return tuple(what for what in MEASURES if self.measured.get(what) and not self._early(what, until))

    def _early(self, what: Measure, until: float) -> list[float]:
        return [seconds for at, seconds in self.measured.get(what, ()) if at <= until]

    def step_cost(self, until: float) -> tuple[float, float]:
        """(seconds, seconds a token) of a micro-step: a line through those completed by then; 0 if none was."""
        known = [each for each in self.micro_steps if each.completed <= until]
        tokens, seconds = [float(each.tokens) for each in known], [each.seconds for each in known]
        if len(set(tokens)) > 1:
            slope, intercept = linear_regression(tokens, seconds)
            if slope >= 0.0 and intercept >= 0.0:
                return intercept, slope
        return 0.0, sum(seconds) / max(1.0, sum(tokens))

    def load_at(self, seconds: float) -> float:
        """Running executions per serving place at a time, seconds of the trace."""
        place = bisect_right(self.loads, (seconds, inf)) - 1
        return self.loads[place][1] if place >= 0 else 0.0


class Replayed:
    """A trace as a workload; a longer run goes over its groups again, one that has no end gets a mean one's."""

    def __init__(self, trace: Trace, relief: float, until: float = inf) -> None:
        """Micro-steps cost what those completed by `until` (seconds of the trace) say; see `Setting` for `relief`."""
        self._trace = trace
        self._fixed, self._each = trace.step_cost(until)
        self._work = _Work(trace.loads, relief)
        jobs = {place: self._job(each) for place, each in trace.executions.items()}
        self._jobs = jobs
        self._mean = Job(
            fmean(job.work for job in jobs.values()) if jobs else 0.0,
            scoring=fmean(job.scoring for job in jobs.values()) if jobs else 0.0,
        )

    def jobs(self, index: int, task: str, executions: int) -> tuple[Job, ...]:
        group = index % max(1, self._trace.groups)
        return tuple(self._jobs.get((group, place), self._mean) for place in range(executions))

    def micro_steps(self, index: int) -> tuple[float, ...]:
        tokens = self._trace.tokens.get(index % max(1, self._trace.groups), ())
        return tuple(self._fixed + self._each * each for each in tokens)

    def _job(self, recorded: Recorded) -> Job:
        work = self._work.between(recorded.launched, recorded.ended)
        return Job(work, scoring=max(0.0, recorded.scored - recorded.ended))


class _Work:
    """How much work an engine does from one time to another, under the loads that it had."""

    def __init__(self, loads: tuple[tuple[float, float], ...], relief: float) -> None:
        self._relief = relief
        self._at = [seconds for seconds, _ in loads] or [0.0]
        self._load = [load for _, load in loads] or [1.0]
        self._done = [0.0]
        for place in range(len(self._at) - 1):
            lasted = self._at[place + 1] - self._at[place]
            self._done.append(self._done[-1] + lasted / latency(self._load[place], relief))

    def between(self, since: float, until: float) -> float:
        return self._until(until) - self._until(since)

    def _until(self, seconds: float) -> float:
        place = max(0, bisect_right(self._at, seconds) - 1)
        return self._done[place] + (seconds - self._at[place]) / latency(self._load[place], self._relief)


def fit_relief(calls: Sequence[tuple[float, float]]) -> float:
    """The relief of `Setting` that calls show: a line through (load, seconds a token); 0 where they show none.

    ``seconds = full * (1 - relief * (1 - load))``, so relief is the line's slope over its value at full load.
    """
    loads, seconds = [load for load, _ in calls], [each for _, each in calls]
    if len(set(loads)) < MIN_LOADS:
        return 0.0
    slope, intercept = linear_regression(loads, seconds)
    full = intercept + slope
    return min(max(slope / full, 0.0), MOST_RELIEF) if full > 0.0 else 0.0
