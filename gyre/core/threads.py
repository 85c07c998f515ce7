"""From which earlier event each event goes on: the words that a work item and what is done with it have in common.

A claim names its micro-step, a termination its execution, a reward the execution that it is of. The envelope of a
commit says besides what made a decider speak (`causation`); `SAID` stands for that where it is the better answer. A
cell's envelope only says what it had heard last: it is asked when nothing else is known.
"""

from collections.abc import Callable, Mapping
from typing import Any

from schemas.calls import KvHandoffCompleted, ModelCallRetried, RouteMoved
from schemas.envelope import Event
from schemas.rewards import AssessmentRecorded, GroupReady
from schemas.roles import CellLost, RoleTransitionRequested
from schemas.training import CellJoined, MicroStepCompleted, MicroStepEnqueued, ReductionOpened

Key = tuple[str | int, ...]
"""(what it is, what it is of): the latest event marked so is meant."""
Tier = tuple[Key, ...]
"""Keys of one rank: of what they lead to, the latest is the main cause."""

SAID: Key = ("said",)
"""The commit that the envelope names."""
AT = "at"
"""("at", sequence): the commit with this sequence."""

_NAMES: Mapping[str, str] = {
    "GroupDispatched": "group",
    "ExecutionDispatched": "execution",
    "LaunchGranted": "execution",
    "CancellationRequested": "execution",
    "ExecutionLaunched": "execution",
    "ExecutionTerminated": "execution",
    "RouteAssigned": "execution",
    "RouteMoved": "execution",
    "ModelCallRetried": "call",
    "RecordsSealed": "execution",
    "TreeBuilt": "execution",
    "RewardAssigned": "execution",
    "RewardUnresolved": "execution",
    "GroupReady": "group",
    "TrajectoriesAdmitted": "execution",
    "BatchOpened": "step",
    "GroupAssigned": "group",
    "MicroStepEnqueued": "step micro_step",
    "MicroStepReissued": "step micro_step",
    "MicroStepClaimed": "step micro_step",
    "StreamClosed": "step",
    "ReductionOpened": "step",
    "GradientReduced": "step",
    "OptimizerStepped": "version",
    "WeightsPublished": "version",
    "RoleTransitionRequested": "transition",
    "RoleTransitionCompleted": "cell",
    "CellRegistered": "cell instance",
    "TimerSet": "timer",
    "EvaluationStarted": "evaluation",
    "RegradeStarted": "regrade",
}
"""What each event that others go on from is of."""

_MARKS: Mapping[type[Any], Callable[[Any], Key]] = {
    RouteMoved: lambda event: ("RouteAssigned", event.execution),
    AssessmentRecorded: lambda event: ("designated" if event.designated else "beside", event.execution),
    RoleTransitionRequested: lambda event: ("leaving" if event.to == "train" else "returning", event.cell),
    CellLost: lambda event: ("leaving", event.cell),
    CellJoined: lambda event: ("joined", event.step, event.cell),
    MicroStepCompleted: lambda event: ("completed", event.claim),
}
"""What an event is found by besides, or instead."""

_GOES_ON: Mapping[str, tuple[str, ...]] = {
    "ExecutionDispatched": ("GroupDispatched group", "said"),
    "LaunchGranted": ("ExecutionDispatched execution", "said"),
    "CancellationRequested": ("said", "ExecutionDispatched execution"),
    "ExecutionLaunched": ("LaunchGranted execution", "ExecutionDispatched execution"),
    "ExecutionTerminated": ("ExecutionLaunched execution", "CancellationRequested execution"),
    "RouteAssigned": ("ExecutionLaunched execution",),
    "ModelCallContinued": ("ModelCallRetried call", "RouteAssigned execution"),
    "RequestCancelled": ("RouteAssigned execution", "leaving cell"),
    "HistoryRejected": ("RouteAssigned execution", "ExecutionLaunched execution"),
    "RecordsSealed": ("ExecutionTerminated execution",),
    "TreeBuilt": ("RecordsSealed execution",),
    "AssessmentRecorded": ("ExecutionTerminated execution", "ExecutionLaunched execution"),
    "RewardAssigned": ("designated execution", "ExecutionTerminated execution"),
    "RewardUnresolved": ("designated execution", "ExecutionTerminated execution"),
    "TrajectoriesAdmitted": ("GroupReady group", "TreeBuilt execution"),
    "GroupAssigned": ("GroupReady group", "BatchOpened step", "said"),
    "MicroStepReissued": ("said", "MicroStepEnqueued step micro_step"),
    "MicroStepClaimed": ("MicroStepReissued step micro_step", "MicroStepEnqueued step micro_step", "joined step cell"),
    "MicroStepCompleted": ("at claim",),
    "RatioMeasured": ("MicroStepClaimed step micro_step",),
    "CellJoined": ("BatchOpened step", "RoleTransitionCompleted cell"),
    "JoinWindowClosed": ("StreamClosed step",),
    "ContributionDiscarded": ("joined step cell",),
    "GradientReduced": ("ReductionOpened step",),
    "OptimizerStepped": ("GradientReduced step",),
    "CheckpointSaved": ("OptimizerStepped version",),
    "WeightsBroadcast": ("OptimizerStepped version",),
    "WeightsPublished": ("OptimizerStepped version",),
    "BurstEnded": ("WeightsPublished version", "said"),
    "EvaluationScored": ("EvaluationStarted evaluation",),
    "RoleTransitionPhaseCompleted": ("RoleTransitionRequested transition",),
    "RoleTransitionCompleted": ("RoleTransitionRequested transition",),
    "RoleTransitionFailed": ("RoleTransitionRequested transition",),
    "CellRegistered": (),
    "CellLost": ("CellRegistered cell instance",),
    "TimerFired": ("TimerSet timer",),
    "RegradeCompleted": ("RegradeStarted regrade",),
}
"""Ranks of causes, the main one first; an event of a type that is not here goes on from what its envelope says."""


def marks(event: Event) -> tuple[Key, ...]:
    """By which keys later events find this one."""
    found = [_key(event, f"{event.type} {_NAMES[event.type]}")] if event.type in _NAMES else []
    if (more := _MARKS.get(type(event))) is not None:
        found.append(more(event))
    return tuple(found)


def tiers(event: Event) -> tuple[Tier, ...]:
    """From what an event goes on, the most telling rank first; what is not in the log is passed over."""
    if (found := _MANY.get(type(event))) is not None:
        return found(event)
    return tuple((_key(event, form),) for form in _GOES_ON.get(event.type, ("said",)))


def _key(event: Event, form: str) -> Key:
    name, *fields = form.split()
    return (name, *(getattr(event, field) for field in fields))


def _ready(event: GroupReady) -> tuple[Tier, ...]:
    members = [each.execution for each in event.outcomes]
    return (tuple((kind, each) for each in members for kind in ("RewardAssigned", "RewardUnresolved", "TreeBuilt")),)


def _enqueued(event: MicroStepEnqueued) -> tuple[Tier, ...]:
    executions = dict.fromkeys(segment.execution for row in event.rows for segment in row.segments)
    return ((SAID,), tuple(("TrajectoriesAdmitted", each) for each in executions))


def _reduction(event: ReductionOpened) -> tuple[Tier, ...]:
    return (tuple(("completed", each.claim) for each in event.contributions), (("StreamClosed", event.step),))


def _left(event: RouteMoved | ModelCallRetried) -> tuple[Tier, ...]:
    return ((("leaving", event.from_cell),), (("RouteAssigned", event.execution),))


def _handed(event: KvHandoffCompleted) -> tuple[Tier, ...]:
    return ((("RouteMoved", event.execution),), (("leaving", event.from_cell),))


_MANY: Mapping[type[Any], Callable[[Any], tuple[Tier, ...]]] = {
    GroupReady: _ready,
    MicroStepEnqueued: _enqueued,
    ReductionOpened: _reduction,
    RouteMoved: _left,
    ModelCallRetried: _left,
    KvHandoffCompleted: _handed,
}
"""Events that go on from several others, or from one by another name."""
