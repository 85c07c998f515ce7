"""What each optimizer step was made of and what it came to, as the log recorded it: enough to do it again (design §8).

A fold over EV that keeps references and numbers, no tokens: micro-steps are named by the sequence of their commit.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gyre.core import ledger
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.rewards import GroupReady
from schemas.runs import RunStarted
from schemas.training import (
    Contribution,
    ExecutionStats,
    GradientReduced,
    GroupAssigned,
    MicroStepCompleted,
    MicroStepEnqueued,
    Moments,
    OptimizerStepped,
    ReductionOpened,
    TrajectoriesAdmitted,
)

Stats = tuple[ExecutionStats, ...]


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """One group of a step's batch: what its advantages are made from, and where its trajectories are."""

    group: str
    rewards: dict[str, float | None]
    """Execution -> reward, in the order of their place; None for the excluded."""
    admitted: dict[str, int] = field(default_factory=dict)
    """Execution -> sequence of its TrajectoriesAdmitted, in order."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One committed step."""

    step: int
    weights: WeightsRef
    """At which its gradient was taken."""
    optimizer: WeightsRef | None
    """The optimizer's state before it; None before the first update."""
    trained: dict[int, int]
    """Training micro-step -> sequence of its MicroStepEnqueued, in order."""
    measured: dict[int, int]
    """The same of measuring ones."""
    contributions: tuple[Contribution, ...]
    """What was frozen for the sum."""
    stats: tuple[Stats, ...]
    """What the completions of these contributions found."""
    reduced: GradientReduced
    stepped: OptimizerStepped
    groups: tuple[RecordedGroup, ...] = ()
    """In the order in which they were assigned."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What the ledger lacks or holds too often; () for every step that was committed rightly."""
        return ledger.check(self.contributions, self.trained)


@dataclass(frozen=True, slots=True)
class Recording:
    """The run so far, and the step that is collecting."""

    weights: WeightsRef | None = None
    optimizer: WeightsRef | None = None
    trained: dict[int, int] = field(default_factory=dict)
    measured: dict[int, int] = field(default_factory=dict)
    stats: dict[int, Stats] = field(default_factory=dict)
    """Claim -> what its completion found."""
    ready: dict[str, RecordedGroup] = field(default_factory=dict)
    """Groups that are ready and in no batch."""
    groups: tuple[RecordedGroup, ...] = ()
    """Those of the step that is collecting."""
    opened: ReductionOpened | None = None
    reduced: GradientReduced | None = None
    steps: tuple[RecordedStep, ...] = ()


def evolve(state: Recording, sequence: int, event: Event) -> Recording:
    """Fold one event."""
    handler = _HANDLERS.get(type(event))
    return state if handler is None else handler(state, sequence, event)


def merged(found: Iterable[Stats]) -> dict[str, ExecutionStats]:
    """What several micro-steps found, by execution: targets, losses and k3 add up, and the largest |delta| counts."""
    whole: dict[str, ExecutionStats] = {}
    for each in (stats for one in found for stats in one):
        before = whole.get(each.execution)
        whole[each.execution] = each if before is None else _added(before, each)
    return whole


def _added(before: ExecutionStats, more: ExecutionStats) -> ExecutionStats:
    return before.model_copy(
        update={
            "targets": before.targets + more.targets,
            "loss": before.loss + more.loss,
            "k3": before.k3 + more.k3,
            "max_delta_log_p": max(before.max_delta_log_p, more.max_delta_log_p),
            "moments": _both(before.moments, more.moments),
        }
    )


def _both(one: Moments | None, other: Moments | None) -> Moments | None:
    if one is None or other is None:
        return None
    return Moments(**{name: value + getattr(other, name) for name, value in one})


def _started(state: Recording, sequence: int, event: RunStarted) -> Recording:  # noqa: ARG001 - a handler
    return replace(state, weights=event.weights)


def _ready(state: Recording, sequence: int, event: GroupReady) -> Recording:  # noqa: ARG001 - a handler
    group = RecordedGroup(event.group, {each.execution: each.reward for each in event.outcomes})
    return replace(state, ready=state.ready | {event.group: group})


def _admitted(state: Recording, sequence: int, event: TrajectoriesAdmitted) -> Recording:
    group = state.ready.get(event.group)
    if group is None or event.execution in group.admitted:
        return state
    more = replace(group, admitted=group.admitted | {event.execution: sequence})
    return replace(state, ready=state.ready | {event.group: more})


def _assigned(state: Recording, sequence: int, event: GroupAssigned) -> Recording:  # noqa: ARG001 - a handler
    group = state.ready.get(event.group)
    if group is None:
        return state
    left = {name: each for name, each in state.ready.items() if name != event.group}
    return replace(state, ready=left, groups=(*state.groups, group))


def _enqueued(state: Recording, sequence: int, event: MicroStepEnqueued) -> Recording:
    if event.kind == "measure":
        return replace(state, measured=state.measured | {event.micro_step: sequence})
    return replace(state, trained=state.trained | {event.micro_step: sequence})


def _completed(state: Recording, sequence: int, event: MicroStepCompleted) -> Recording:  # noqa: ARG001 - a handler
    return replace(state, stats=state.stats | {event.claim: event.stats})


def _opened(state: Recording, sequence: int, event: ReductionOpened) -> Recording:  # noqa: ARG001 - a handler
    return replace(state, opened=event)


def _reduced(state: Recording, sequence: int, event: GradientReduced) -> Recording:  # noqa: ARG001 - a handler
    return replace(state, reduced=event)


def _stepped(state: Recording, sequence: int, event: OptimizerStepped) -> Recording:  # noqa: ARG001 - a handler
    if state.weights is None or state.opened is None or state.reduced is None:  # the log does not begin at its start
        return Recording(event.weights, event.optimizer, ready=state.ready, steps=state.steps)
    done = RecordedStep(
        step=event.step,
        weights=state.weights,
        optimizer=state.optimizer,
        trained=dict(sorted(state.trained.items())),
        measured=dict(sorted(state.measured.items())),
        contributions=state.opened.contributions,
        stats=tuple(state.stats.get(each.claim, ()) for each in state.opened.contributions),
        reduced=state.reduced,
        stepped=event,
        groups=state.groups,
    )
    return Recording(event.weights, event.optimizer, ready=state.ready, steps=(*state.steps, done))


_HANDLERS: Mapping[type[Any], Callable[[Recording, int, Any], Recording]] = {
    RunStarted: _started,
    GroupReady: _ready,
    TrajectoriesAdmitted: _admitted,
    GroupAssigned: _assigned,
    MicroStepEnqueued: _enqueued,
    MicroStepCompleted: _completed,
    ReductionOpened: _opened,
    GradientReduced: _reduced,
    OptimizerStepped: _stepped,
}
