"""How far a run has come: the fold behind the live display, `gyre status` and the closing summary."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from gyre.core.pauses import Pauses, heard
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.rewards import GroupReady
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import EvaluationScored, EvaluationStarted, RunFinished, RunStarted
from schemas.training import (
    BatchOpened,
    GroupAssigned,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    ReductionOpened,
    StepAborted,
    StreamClosed,
    WeightsPublished,
)

_OfCell = CellLost | RoleTransitionRequested | RoleTransitionCompleted | RoleTransitionFailed


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step, as far as it has come."""

    step: int
    opened: int
    """UTC, ns."""
    rewards: tuple[float, ...] = ()
    """Mean reward of each group in it that has a reward."""
    staleness: tuple[int, ...] = ()
    """v_t - v_d of each group in it."""
    enqueued: int = 0
    """Training micro-steps queued."""
    completed: frozenset[int] = frozenset()
    committed: int = 0
    """Training micro-steps in the reduction that was applied."""
    members: int = 1
    closed: bool = False
    stepped: int = 0
    """UTC, ns, of its update; 0 before."""
    seconds: float = 0.0
    """From BatchOpened to OptimizerStepped, less the time in which nothing of the run ran."""
    loss: float = 0.0
    gradient_norm: float = 0.0
    max_delta_log_p: float = 0.0
    """nats"""
    targets: int = 0
    current: frozenset[str] = frozenset()
    """Executions of groups dispatched at the very weights that are trained: all their tokens were sampled from them."""
    current_targets: int = 0
    """Targets of `current`: there the two sides differ by arithmetic alone."""
    current_max_delta_log_p: float = 0.0
    """nats, over `current_targets`."""
    current_choices: int = 0
    """Of experts that `current` took in the engine and took again."""
    current_overlap: float = 0.0
    """Of these, as many as the trainer's routers would have made (shares of one choice add up)."""
    current_top: float = 0.0
    """Of these, those whose likeliest expert is the router's."""
    masked: int = 0
    """Executions with m_i = 0."""
    executions: int = 0

    @property
    def reward(self) -> float | None:
        """Mean over its groups."""
        return fmean(self.rewards) if self.rewards else None


@dataclass(frozen=True, slots=True)
class Progress:
    """A run so far."""

    dispatched: int = 0
    launched: int = 0
    terminated: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Termination reason -> executions."""
    published: int = 0
    roles: dict[int, str] = field(default_factory=dict)
    """Cell -> rollout, train, moving or lost."""
    instances: dict[int, str] = field(default_factory=dict)
    """Cell -> its process; none while it is lost. What is said of another one says nothing about the cell."""
    former: dict[int, str] = field(default_factory=dict)
    """Cell -> its role before the transition that was asked last: it keeps that one if it is rolled back."""
    steps: tuple[Step, ...] = ()
    ready: dict[str, tuple[float | None, int, tuple[str, ...]]] = field(default_factory=dict)
    """Ready, unassigned group -> (mean reward, valid executions, all executions)."""
    valid: int = 0
    scored: int = 0
    evaluating: str = ""
    evaluations: tuple[tuple[int, float, int], ...] = ()
    """(version, mean, valid episodes) of each evaluation."""
    finished: bool = False
    aborted: str = ""
    pauses: Pauses = field(default_factory=Pauses)
    first: int = 0
    last: int = 0
    """UTC, ns, of the first commit and of the latest up to the run's end: what is said of it later is no part of it."""

    @property
    def waterlevel(self) -> int:
        """Executions dispatched and not terminated: w = d - f."""
        return self.dispatched - self.terminated

    @property
    def done(self) -> tuple[Step, ...]:
        """Steps whose update is durable."""
        return tuple(step for step in self.steps if step.seconds > 0)

    @property
    def seconds(self) -> float:
        """From the first commit to the run's end, or the latest, less the time in which nothing of it ran."""
        return (self.last - self.first - self.pauses.within(self.first, self.last)) / 1e9


def evolve(state: Progress, time: int, event: Event, by: str = "") -> Progress:
    """Fold one event; `time` is its commit's (UTC, ns), `by` the process that says it: none is heard without it."""
    if by and not state.finished and not isinstance(event, RunStarted):  # whoever opens a run says nothing more
        state = _paused(state, heard(state.pauses, by, state.last, time))
    state = replace(state, first=state.first or time, last=state.last if state.finished else max(state.last, time))
    if (handler := _RUN.get(type(event))) is not None:
        return handler(state, event)
    if isinstance(event, BatchOpened):
        return replace(state, steps=(*state.steps, Step(event.step, time)))
    if (change := _STEP.get(type(event))) is None or not state.steps:
        return state
    step = change(state, state.steps[-1], time, event)
    ready = state.ready
    if isinstance(event, GroupAssigned):
        ready = {key: value for key, value in ready.items() if key != event.group}
    return replace(state, steps=(*state.steps[:-1], step), ready=ready)


def _paused(state: Progress, pauses: Pauses) -> Progress:
    if len(pauses.found) >= len(state.pauses.found):
        return replace(state, pauses=pauses)
    steps = tuple(_timed(step, pauses) if step.stepped else step for step in state.steps)
    return replace(state, pauses=pauses, steps=steps)  # what was taken for a pause was none


def _timed(step: Step, pauses: Pauses) -> Step:
    nanoseconds = step.stepped - step.opened - pauses.within(step.opened, step.stepped)
    return replace(step, seconds=max(1e-9, nanoseconds / 1e9))


def _terminated(state: Progress, event: ExecutionTerminated) -> Progress:
    reasons = state.reasons | {event.reason: state.reasons.get(event.reason, 0) + 1}
    return replace(state, terminated=state.terminated + 1, reasons=reasons)


def _scored(state: Progress, event: EvaluationScored) -> Progress:
    found = (event.version, event.mean, event.valid)
    return replace(state, evaluating="", evaluations=(*state.evaluations, found))


def _ready(state: Progress, event: GroupReady) -> Progress:
    rewards = [each.reward for each in event.outcomes if each.reward is not None]
    mean = fmean(rewards) if rewards else None
    return replace(
        state,
        ready=state.ready | {event.group: (mean, len(rewards), tuple(each.execution for each in event.outcomes))},
        valid=state.valid + len(rewards),
        scored=state.scored + len(event.outcomes),
    )


def _registered(state: Progress, event: CellRegistered) -> Progress:
    instances = state.instances | {event.cell: event.instance}
    return replace(state, instances=instances, roles=state.roles | {event.cell: "rollout"})


def _lost(state: Progress, event: CellLost) -> Progress:
    instances = {key: value for key, value in state.instances.items() if (key, value) != (event.cell, event.instance)}
    return replace(_role(state, event, "lost"), instances=instances)


def _asked(state: Progress, event: RoleTransitionRequested) -> Progress:
    asked = _role(state, event, "moving")
    former = "rollout" if event.to == "train" else "train"
    return asked if asked is state else replace(asked, former=state.former | {event.cell: former})


def _rolled_back(state: Progress, event: RoleTransitionFailed) -> Progress:
    moves = state.roles.get(event.cell) == "moving"
    return _role(state, event, state.former.get(event.cell, "rollout")) if moves else state


def _role(state: Progress, event: _OfCell, role: str) -> Progress:
    known = state.instances.get(event.cell) == event.instance
    return replace(state, roles=state.roles | {event.cell: role}) if known else state


def _assigned(state: Progress, step: Step, _: int, event: GroupAssigned) -> Step:
    mean, _valid, executions = state.ready.get(event.group, (None, 0, ()))
    rewards = step.rewards if mean is None else (*step.rewards, mean)
    current = step.current if event.staleness else step.current.union(executions)
    return replace(step, rewards=rewards, staleness=(*step.staleness, event.staleness), current=current)


def _enqueued(_: Progress, step: Step, __: int, event: MicroStepEnqueued) -> Step:
    return replace(step, enqueued=step.enqueued + (event.kind == "train"))


def _stepped(state: Progress, step: Step, time: int, event: OptimizerStepped) -> Step:
    updated = replace(step, stepped=time, loss=event.loss, gradient_norm=event.gradient_norm)
    return _timed(updated, state.pauses)


def _completed(_: Progress, step: Step, __: int, event: MicroStepCompleted) -> Step:
    if event.micro_step in step.completed:
        return step
    current = [each for each in event.stats if each.execution in step.current]
    experts = [each.experts for each in current if each.experts is not None]
    return replace(
        step,
        completed=step.completed | {event.micro_step},
        current_targets=step.current_targets + sum(each.targets for each in current),
        current_max_delta_log_p=max([step.current_max_delta_log_p, *(each.max_delta_log_p for each in current)]),
        current_choices=step.current_choices + sum(each.choices for each in experts),
        current_overlap=step.current_overlap + sum(each.choices * each.overlap for each in experts),
        current_top=step.current_top + sum(each.choices * each.top for each in experts),
        max_delta_log_p=max([step.max_delta_log_p, *(each.max_delta_log_p for each in event.stats)]),
        targets=step.targets + sum(each.targets for each in event.stats),
        masked=step.masked + sum(1 - each.mask for each in event.stats),
        executions=step.executions + len(event.stats),
    )


_RUN: Mapping[type[Any], Callable[[Progress, Any], Progress]] = {
    ExecutionDispatched: lambda state, _: replace(state, dispatched=state.dispatched + 1),
    ExecutionLaunched: lambda state, _: replace(state, launched=state.launched + 1),
    ExecutionTerminated: _terminated,
    CellRegistered: _registered,
    CellLost: _lost,
    RoleTransitionRequested: _asked,
    RoleTransitionFailed: _rolled_back,
    RoleTransitionCompleted: lambda state, event: _role(state, event, event.to),
    WeightsPublished: lambda state, event: replace(state, published=event.version),
    EvaluationStarted: lambda state, event: replace(state, evaluating=event.evaluation),
    EvaluationScored: _scored,
    RunFinished: lambda state, _: replace(state, finished=True),
    StepAborted: lambda state, event: replace(state, aborted=f"step {event.step}: {event.reason}"),
    GroupReady: _ready,
}
_STEP: Mapping[type[Any], Callable[[Progress, Step, int, Any], Step]] = {
    GroupAssigned: _assigned,
    MicroStepEnqueued: _enqueued,
    StreamClosed: lambda _, step, __, ___: replace(step, closed=True),
    MicroStepCompleted: _completed,
    ReductionOpened: lambda _, step, __, event: replace(
        step, committed=len(event.contributions), members=len(event.members)
    ),
    OptimizerStepped: _stepped,
}
