"""The fold behind every timeline: (seconds, event) pairs in the order in which they were said.

The same for a log and for a simulation with its virtual seconds, since both speak the same events. It reads
CellRegistered, CellLost, RoleTransitionRequested, -Completed, -Failed; ExecutionDispatched, -Launched, -Terminated;
RouteAssigned, RouteMoved (executions without a route count as spread over all serving places alike); BatchOpened,
GroupAssigned, MicroStepClaimed, -Completed, ContributionDiscarded, ReductionOpened, OptimizerStepped, WeightsPublished,
BurstEnded; EvaluationStarted, -Scored; RunFinished. Any other event only moves the time on, which
ends with the run.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from gyre.core.timeline import BurstMark, EvaluationSpan, Level, Standing, StepMark, Timeline
from gyre.core.timeline_cells import Cells
from gyre.core.timeline_series import thin_levels
from schemas.calls import RouteAssigned, RouteMoved
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.roles import (
    CellLost,
    CellRegistered,
    CellRole,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import EvaluationScored, EvaluationStarted, RunFinished
from schemas.training import (
    BatchOpened,
    BurstEnded,
    ContributionDiscarded,
    GroupAssigned,
    MicroStepClaimed,
    MicroStepCompleted,
    OptimizerStepped,
    ReductionOpened,
    WeightsPublished,
)

_TOWARDS: Mapping[CellRole, Standing] = {"train": "to_train", "rollout": "to_rollout"}
LEVELS = 4096
"""Most levels kept; beyond it, half as many."""


def fold(pairs: Iterable[tuple[float, Event]]) -> Timeline:
    """The timeline of events with their times in seconds."""
    folding = TimelineFold()
    for seconds, event in pairs:
        folding.add(seconds, event)
    return folding.timeline()


class TimelineFold:
    """Takes pairs one by one; its memory grows with cells, steps and running executions only."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._zero: float | None = None
        self._cells = Cells()
        self._dispatched, self._launched, self._terminated = 0, 0, 0
        self._handles = self._handlers()
        self._counts = (0, 0, 0, 0)
        self._levels = [Level(0.0, 0, 0, 0, 0)]
        self._batches: dict[int, StepMark] = {}
        """Steps under way, `updated` still open, `staleness` still a sum."""
        self._steps: list[StepMark] = []
        self._published = 0.0
        self._bursts: list[BurstMark] = []
        self._evaluating = 0.0
        self._evaluations: list[EvaluationSpan] = []
        self._finished = False

    def add(self, seconds: float, event: Event) -> None:
        """One event, at seconds on any one clock; a time before the last event's counts as that one's."""
        if self._zero is None:
            self._zero = seconds
        if not self._finished:  # states scored again after the end, say, are no part of it
            self._cells.pass_to(seconds - self._zero)
        handler = self._handles.get(type(event))
        if handler is not None:
            handler(event)
            self._level()

    def timeline(self) -> Timeline:
        """All so far; more may be added afterwards."""
        return Timeline(
            seconds=self._cells.now,
            lanes=self._cells.lanes(),
            levels=tuple(self._levels),
            use=self._cells.use(),
            steps=tuple(self._steps),
            bursts=tuple(self._bursts),
            evaluations=tuple(self._evaluations),
            finished=self._finished,
        )

    def _level(self) -> None:
        counts = (self._dispatched, self._launched, self._terminated, self._cells.capacity)
        if counts == self._counts:
            return
        self._counts = counts
        level = Level(self._cells.now, *counts)
        if self._levels[-1].seconds == level.seconds:
            self._levels[-1] = level
            return
        self._levels.append(level)
        if len(self._levels) > LEVELS:
            self._levels = thin_levels(self._levels, LEVELS // 2)

    def _handlers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        cells = self._cells
        return {
            CellRegistered: lambda event: cells.register(event.cell, event.instance, event.capacity),
            CellLost: lambda event: cells.stand(event.cell, event.instance, "lost"),
            RoleTransitionRequested: lambda event: cells.stand(event.cell, event.instance, _TOWARDS[event.to]),
            RoleTransitionCompleted: lambda event: cells.stand(event.cell, event.instance, event.to),
            RoleTransitionFailed: lambda event: cells.stand(event.cell, event.instance, None),
            RouteAssigned: lambda event: cells.route(event.execution, event.cell),
            RouteMoved: lambda event: cells.route(event.execution, event.to_cell),
            MicroStepClaimed: lambda event: cells.claim(event.cell, 1),
            MicroStepCompleted: lambda event: cells.claim(event.cell, -1),
            ContributionDiscarded: lambda event: cells.claim(event.cell, 0),
            ExecutionDispatched: self._dispatch,
            ExecutionLaunched: self._launch,
            ExecutionTerminated: self._terminate,
            BatchOpened: self._open,
            GroupAssigned: self._assign,
            ReductionOpened: self._reduce,
            OptimizerStepped: self._step,
            WeightsPublished: self._publish,
            BurstEnded: self._end_burst,
            EvaluationStarted: self._evaluate,
            EvaluationScored: self._score,
            RunFinished: self._finish,
        }

    def _dispatch(self, _: ExecutionDispatched) -> None:
        self._dispatched += 1

    def _launch(self, event: ExecutionLaunched) -> None:
        self._launched += self._cells.launch(event.execution)

    def _terminate(self, event: ExecutionTerminated) -> None:
        self._terminated += self._cells.end(event.execution)

    def _open(self, event: BatchOpened) -> None:
        self._batches[event.step] = StepMark(event.step, self._cells.now, 0.0, 1, 0, 0.0)

    def _assign(self, event: GroupAssigned) -> None:
        if (batch := self._batches.get(event.step)) is not None:
            groups, staleness = batch.groups + 1, batch.staleness + event.staleness
            self._batches[event.step] = replace(batch, groups=groups, staleness=staleness)

    def _reduce(self, event: ReductionOpened) -> None:
        self._cells.update(True)
        if (batch := self._batches.get(event.step)) is not None:
            self._batches[event.step] = replace(batch, members=len(event.members))

    def _step(self, event: OptimizerStepped) -> None:
        self._cells.update(False)
        if (batch := self._batches.pop(event.step, None)) is not None:
            mean = batch.staleness / batch.groups if batch.groups else 0.0
            self._steps.append(replace(batch, updated=self._cells.now, staleness=mean))

    def _publish(self, _: WeightsPublished) -> None:
        self._published = self._cells.now

    def _end_burst(self, event: BurstEnded) -> None:
        mark = BurstMark(event.burst, event.version, self._published, self._cells.now, event.retained)
        self._bursts.append(mark)

    def _evaluate(self, _: EvaluationStarted) -> None:
        self._evaluating = self._cells.now

    def _score(self, event: EvaluationScored) -> None:
        self._evaluations.append(EvaluationSpan(event.version, self._evaluating, self._cells.now))

    def _finish(self, _: RunFinished) -> None:
        self._finished = True
