"""Dispatched d, launched p, terminated f, and where each execution and group stands (design §6; paper §4.2).

0 <= f <= p <= d holds by construction: an execution moves queued -> granted -> running -> gone, one way, and what
does not fit (a launch of something never dispatched, a second termination) changes nothing. Gone ones are forgotten.
"""

from dataclasses import dataclass, replace

from gyre.core.plan import Plan, execution_name, group_name
from schemas.dispatch import (
    ExecutionDispatched,
    ExecutionLaunched,
    ExecutionTerminated,
    GroupDispatched,
    LaunchGranted,
)
from schemas.rewards import GroupReady
from schemas.training import GroupAssigned

DispatchEvent = (
    GroupDispatched
    | ExecutionDispatched
    | LaunchGranted
    | ExecutionLaunched
    | ExecutionTerminated
    | GroupReady
    | GroupAssigned
)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Counters over the whole run, and the executions and groups that are under way."""

    groups: int = 0
    """Groups dispatched; the newest may still lack some of its executions."""
    version: int = 0
    """Published version at the newest group's dispatch."""
    task: str = ""
    """Task of the newest group."""
    dispatched: int = 0
    launched: int = 0
    terminated: int = 0
    queued: tuple[str, ...] = ()
    """Executions neither granted nor launched, oldest first."""
    granted: tuple[str, ...] = ()
    """Granted, not yet launched: they hold their place in C_R."""
    running: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()
    """Groups that are not ready, oldest first."""
    ready: tuple[str, ...] = ()
    """Groups that are ready and in no batch, in order of readiness."""
    assigned: int = 0
    """Groups that went into a batch, over the whole run."""

    @property
    def waterlevel(self) -> int:
        """The waterlevel, w = d - f."""
        return self.dispatched - self.terminated

    @property
    def holding(self) -> int:
        """Places of C_R that are taken: running, or granted and about to run."""
        return len(self.granted) + len(self.running)


def evolve_dispatch(state: Dispatch, event: DispatchEvent, executions: int) -> Dispatch:
    """Fold one event; `executions` is N."""
    match event:
        case GroupDispatched() | ExecutionDispatched():
            return _dispatched(state, event, executions)
        case LaunchGranted(execution=execution):
            return _granted(state, execution)
        case ExecutionLaunched(execution=execution):
            return _launched(state, execution)
        case ExecutionTerminated(execution=execution):
            return _terminated(state, execution)
        case GroupReady(group=group) if group in state.unready:
            return replace(state, unready=_without(state.unready, group), ready=(*state.ready, group))
        case GroupAssigned(group=group) if group in state.ready:
            return replace(state, ready=_without(state.ready, group), assigned=state.assigned + 1)
    return state


def next_dispatch(
    state: Dispatch, plan: Plan, quota: int, version: int
) -> GroupDispatched | ExecutionDispatched | None:
    """What is missing until `quota` groups are dispatched whole, one event at a time; None: nothing is."""
    group, index = divmod(state.dispatched, plan.executions)
    if group < state.groups:
        execution = execution_name(group, index)
        return ExecutionDispatched(
            execution=execution,
            group=group_name(group),
            task=state.task,
            index=index,
            version=state.version,
            seed=plan.execution_seed(execution),
        )
    if group >= quota:
        return None
    return GroupDispatched(
        group=group_name(group), index=group, task=plan.task(group), version=version, executions=plan.executions
    )


def next_launch(state: Dispatch, capacity: int) -> str | None:
    """The execution to launch now: the oldest queued one, if min(d - p, C_R - (p - f)) > 0 (eq. 4)."""
    return state.queued[0] if state.queued and capacity > state.holding else None


def _dispatched(state: Dispatch, event: GroupDispatched | ExecutionDispatched, executions: int) -> Dispatch:
    if isinstance(event, GroupDispatched):
        if event.index != state.groups:
            return state
        unready = (*state.unready, event.group)
        return replace(state, groups=state.groups + 1, version=event.version, task=event.task, unready=unready)
    expected = execution_name(*divmod(state.dispatched, executions))
    if event.execution != expected or state.dispatched >= state.groups * executions:
        return state
    return replace(state, dispatched=state.dispatched + 1, queued=(*state.queued, event.execution))


def _granted(state: Dispatch, execution: str) -> Dispatch:
    if execution not in state.queued:
        return state
    return replace(state, queued=_without(state.queued, execution), granted=(*state.granted, execution))


def _launched(state: Dispatch, execution: str) -> Dispatch:
    if execution not in state.granted and execution not in state.queued:
        return state
    return replace(
        state,
        launched=state.launched + 1,
        queued=_without(state.queued, execution),
        granted=_without(state.granted, execution),
        running=(*state.running, execution),
    )


def _terminated(state: Dispatch, execution: str) -> Dispatch:
    if execution not in state.running:
        return state
    return replace(state, terminated=state.terminated + 1, running=_without(state.running, execution))


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)
