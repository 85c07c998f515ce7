"""Runners, evaluators, engines and the proxy in virtual time: executions from dispatch to score."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from gyre.core.routes import LEFT
from gyre.core.simulation.agenda import Agenda
from gyre.core.simulation.engines import Engines
from gyre.core.simulation.router import Router
from gyre.core.simulation.setting import Setting
from gyre.core.simulation.training import Tell
from gyre.core.simulation.words import REWARD, launched, terminated
from gyre.core.simulation.workload import Job, Workload
from schemas.calls import RouteAssigned, RouteMoved
from schemas.dispatch import (
    CancellationRequested,
    ExecutionDispatched,
    GroupDispatched,
    LaunchGranted,
    Reason,
)
from schemas.rewards import RewardAssigned

_UNLIMITED = 1e9  # seconds: what an execution without a limit says its deadline is
Admit = Callable[[str, int, int, tuple[float, ...]], None]
"""Group, its index, its version and the costs of its micro-steps: it is ready."""


@dataclass(slots=True)
class _Group:
    event: GroupDispatched
    jobs: tuple[Job, ...]
    unscored: int
    """Valid scores that it lacks."""


@dataclass(slots=True)
class _Execution:
    event: ExecutionDispatched
    job: Job
    began: float = -1.0


class Fleet:
    """All that executes."""

    def __init__(
        self, setting: Setting, workload: Workload, agenda: Agenda, tell: Tell, admit: Admit, *, watched: bool
    ) -> None:
        """Nothing runs. What no decider reads is said only where somebody watches."""
        self._setting, self._workload, self._agenda = setting, workload, agenda
        self._tell, self._admit, self._watched = tell, admit, watched
        self._engines = Engines(agenda, setting.relief, self._done)
        self._router = Router()
        self._groups: dict[str, _Group] = {}
        self._live: dict[str, _Execution] = {}
        """Dispatched and not terminated."""
        for cell in range(setting.plan.cells + setting.plan.standalone):
            self._engines.open(cell, setting.capacity_of(cell))
            self.open(cell)
        self.reactions: dict[type[Any], Callable[[Any], None]] = {
            GroupDispatched: self._dispatched,
            ExecutionDispatched: self._queued,
            LaunchGranted: self._granted,
            CancellationRequested: self._cancelled,
        }

    def open(self, cell: int) -> None:
        """A cell serves."""
        self._router.open(cell, self._setting.capacity_of(cell))

    def close(self, cell: int) -> None:
        """A cell serves no more: its executions go on elsewhere."""
        self._router.close(cell)
        for execution in self._engines.on(cell):
            self._move(execution, cell)

    def settle(self) -> None:
        """Nothing more changes at this moment."""
        self._engines.settle()

    def _move(self, execution: str, cell: int) -> None:
        there = self._router.onward()
        work = self._engines.take(execution)
        self._router.add(cell, -1)
        self._engines.place(there, execution, work)
        self._router.add(there, 1)
        if self._watched:
            self._tell(RouteMoved(execution=execution, from_cell=cell, to_cell=there, reason=LEFT))

    def _dispatched(self, event: GroupDispatched) -> None:
        count = event.executions + event.surplus
        jobs = self._workload.jobs(event.index, event.task, count)
        self._groups[event.group] = _Group(event, jobs, event.executions)

    def _queued(self, event: ExecutionDispatched) -> None:
        self._live[event.execution] = _Execution(event, self._groups[event.group].jobs[event.index])

    def _granted(self, event: LaunchGranted) -> None:
        wait = self._setting.timings.launch
        if wait > 0.0:
            self._agenda.after(wait, self._launch, event.execution)
        else:
            self._launch(event.execution)

    def _launch(self, name: str) -> None:
        execution = self._live.get(name)
        if execution is None:  # cancelled while its sandbox was made
            return
        execution.began = self._agenda.now
        self._tell(launched(execution.event, min(execution.job.limit, _UNLIMITED)))
        cell = self._router.choose()
        self._router.add(cell, 1)
        self._engines.place(cell, name, execution.job.work)
        if self._watched:
            self._tell(RouteAssigned(execution=name, cell=cell))
        if execution.job.limit < execution.job.work:  # no engine is slower than a full one
            self._agenda.after(execution.job.limit, self._overdue, name, execution)

    def _overdue(self, name: str, execution: _Execution) -> None:
        if self._live.get(name) is execution:
            self._leave(name)
            self._end(name, "timeout", execution.job.scoring + execution.job.overtime)

    def _done(self, name: str, cell: int) -> None:
        self._router.add(cell, -1)
        self._end(name, "completed", self._live[name].job.scoring)

    def _cancelled(self, event: CancellationRequested) -> None:
        """One that still waits in the queue is launched only to be ended."""
        name = event.execution
        execution = self._live.get(name)
        if execution is None:
            return
        if execution.began >= 0.0:
            self._leave(name)
        else:
            execution.began = self._agenda.now
            self._tell(launched(execution.event, _UNLIMITED))
        self._end(name, "cancelled", inf)

    def _leave(self, name: str) -> None:
        cell = self._engines.cell_of(name)
        self._engines.take(name)
        self._router.add(cell, -1)

    def _end(self, name: str, reason: Reason, scoring: float) -> None:
        """It has left its engine; its score comes `scoring` seconds later, or never."""
        execution = self._live.pop(name)
        self._tell(terminated(execution.event, reason, self._agenda.now - execution.began))
        if scoring == 0.0:
            self._score(execution.event)
        elif scoring < inf:
            self._agenda.after(scoring, self._score, execution.event)

    def _score(self, event: ExecutionDispatched) -> None:
        """A valid score; the N-th of its group makes the group ready."""
        if self._watched or self._setting.plan.oversample:
            self._tell(RewardAssigned(execution=event.execution, group=event.group, reward=REWARD))
        group = self._groups.get(event.group)
        if group is None:
            return
        group.unscored -= 1
        if group.unscored == 0:
            del self._groups[event.group]
            self._agenda.after(self._setting.timings.admission, self._admit_group, group.event)

    def _admit_group(self, event: GroupDispatched) -> None:
        self._admit(event.group, event.index, event.version, self._workload.micro_steps(event.index))
