"""Executions and groups under way: each from its dispatch until its group is ready and it has ended.

Its size is bounded by what is dispatched and not done, not by the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gyre.core.diagnosis.finding import At, Hear
from schemas.calls import ModelCallRecorded, RecordsSealed
from schemas.dispatch import (
    ExecutionDispatched,
    ExecutionLaunched,
    ExecutionTerminated,
    GroupDispatched,
    LaunchGranted,
)
from schemas.rewards import AssessmentRecorded, GroupReady, RewardAssigned, RewardUnresolved, TreeBuilt


@dataclass(slots=True, eq=False)
class Execution:
    """One that is under way, with the last event of each kind about it."""

    name: str
    group: str
    dispatched: At
    granted: At | None = None
    launched: At | None = None
    deadline: float = 0.0
    """Seconds from launch."""
    called: At | None = None
    """Its latest record, of those that were read."""
    terminated: At | None = None
    sealed: At | None = None
    built: At | None = None
    settled: At | None = None
    failed: list[At] = field(default_factory=list)
    """Designated assessments that found no score."""
    """Seconds that these took."""

    @property
    def running(self) -> bool:
        """Launched, and not ended."""
        return self.launched is not None and self.terminated is None


@dataclass(slots=True, eq=False)
class Group:
    """One that is not ready."""

    name: str
    size: int
    """Executions dispatched in it, a surplus included."""
    dispatched: At
    members: list[str] = field(default_factory=list)


class Book:
    """What is under way."""

    def __init__(self) -> None:
        """Nothing is."""
        self.executions: dict[str, Execution] = {}
        self.groups: dict[str, Group] = {}
        self.longest_deadline = 0.0
        """Of all executions so far, seconds."""
        self.latest: dict[str, At] = {}
        """Stage -> the last time that any execution reached it: whoever is at work there is alive."""

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {
            GroupDispatched: self._group,
            ExecutionDispatched: self._dispatched,
            LaunchGranted: lambda at, event: self._mark(event.execution, "granted", at),
            ExecutionLaunched: self._launched,
            ExecutionTerminated: self._terminated,
            RecordsSealed: lambda at, event: self._mark(event.execution, "sealed", at),
            TreeBuilt: lambda at, event: self._mark(event.execution, "built", at),
            AssessmentRecorded: self._assessed,
            RewardAssigned: lambda at, event: self._mark(event.execution, "settled", at),
            RewardUnresolved: lambda at, event: self._mark(event.execution, "settled", at),
            GroupReady: self._ready,
            ModelCallRecorded: lambda at, event: self._mark(event.execution, "called", at),
        }

    def members(self, group: Group) -> list[Execution]:
        """The executions of a group that is not ready."""
        return [self.executions[each] for each in group.members]

    def _mark(self, name: str, stage: str, at: At) -> None:
        self.latest[stage] = at
        execution = self.executions.get(name)
        if execution is not None:
            setattr(execution, stage, at)

    def _group(self, at: At, event: GroupDispatched) -> None:
        self.groups.setdefault(event.group, Group(event.group, event.executions + event.surplus, at))

    def _dispatched(self, at: At, event: ExecutionDispatched) -> None:
        group = self.groups.get(event.group)
        if group is None or event.execution in self.executions:
            return
        self.executions[event.execution] = Execution(event.execution, event.group, at)
        group.members.append(event.execution)

    def _launched(self, at: At, event: ExecutionLaunched) -> None:
        self.latest["launched"] = at
        self.longest_deadline = max(self.longest_deadline, event.deadline_seconds)
        execution = self.executions.get(event.execution)
        if execution is not None and execution.launched is None:
            execution.launched, execution.deadline = at, event.deadline_seconds

    def _terminated(self, at: At, event: ExecutionTerminated) -> None:
        self._mark(event.execution, "terminated", at)
        if event.group not in self.groups:  # of a surplus, cancelled once its group was ready
            self.executions.pop(event.execution, None)

    def _assessed(self, at: At, event: AssessmentRecorded) -> None:
        execution = self.executions.get(event.execution)
        self.latest["settled"] = at
        if execution is not None and event.designated and not event.valid:
            execution.failed.append(at)

    def _ready(self, at: At, event: GroupReady) -> None:
        group = self.groups.pop(event.group, None)
        for name in group.members if group is not None else ():
            if self.executions[name].terminated is not None:
                del self.executions[name]
