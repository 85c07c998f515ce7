"""Who may say what: service kinds by event type. One producer kind per event type, no dual writes (design §4 rule 2).

Only what every singleton decider needs for itself (its office, its timers) has more than one kind: each says it on its
own subjects. The permissions of the NATS users and the tables in docs/events are made from this.
"""

from collections.abc import Mapping
from typing import Literal, get_args

Service = Literal[
    "control", "scheduler", "runner", "proxy", "builder", "evaluator", "admission", "packer", "cell", "examiner"
]
Stream = Literal["EV", "CALL"]

SERVICES: tuple[Service, ...] = get_args(Service)
SINGLETONS: frozenset[Service] = frozenset({"scheduler", "admission", "packer"})
"""Deciders of which a run has one at a time: they take office in the log (design §4 rule 4)."""

_SAYS: Mapping[Service, str] = {
    "control": "RunStarted ConfigRejected",
    "scheduler": (
        "RunFinished EventQuarantined GroupDispatched ExecutionDispatched LaunchGranted CancellationRequested CellLost "
        "RoleTransitionRequested BurstEnded EvaluationStarted"
    ),
    "runner": "ExecutionLaunched ExecutionTerminated",
    "proxy": (
        "ModelCallRecorded DeliveryCorrected ModelCallRetried ModelCallContinued HistoryRejected RouteAssigned "
        "RouteMoved RequestCancelled KvHandoffCompleted RecordsSealed"
    ),
    "builder": "TreeBuilt",
    "evaluator": "AssessmentRecorded RewardAssigned RewardUnresolved RegradeStarted RegradeCompleted",
    "admission": "GroupReady TrajectoriesAdmitted",
    "packer": (
        "BatchOpened GroupAssigned MicroStepEnqueued MicroStepReissued ExecutionMasked StreamClosed StepAborted"
    ),
    "cell": (
        "CellRegistered RoleTransitionPhaseCompleted RoleTransitionCompleted RoleTransitionFailed MicroStepClaimed "
        "RatioMeasured MicroStepCompleted CellJoined JoinWindowClosed ContributionDiscarded ReductionOpened "
        "GradientReduced OptimizerStepped WeightsBroadcast WeightsPublished CheckpointSaved"
    ),
    "examiner": "EvaluationScored",
}

SPEAKERS: Mapping[str, frozenset[Service]] = {
    **{kind: frozenset({service}) for service, kinds in _SAYS.items() for kind in kinds.split()},
    **dict.fromkeys(("OfficeTaken", "TimerSet", "TimerFired"), SINGLETONS),
}
"""Event type -> the service kinds that may say it; every type of the union is here."""


_ENTITIES: Mapping[str, str] = {
    "run": "RunStarted ConfigRejected RunFinished BurstEnded",
    "office": "OfficeTaken",
    "timer": "TimerSet TimerFired",
    "quarantine": "EventQuarantined",
    "group": "GroupDispatched GroupReady",
    "execution": (
        "ExecutionDispatched LaunchGranted CancellationRequested ExecutionLaunched ExecutionTerminated "
        "ModelCallRetried ModelCallContinued HistoryRejected RouteAssigned RouteMoved RequestCancelled "
        "KvHandoffCompleted RecordsSealed TreeBuilt AssessmentRecorded RewardAssigned RewardUnresolved "
        "TrajectoriesAdmitted"
    ),
    "assess": "AssessmentRecorded",
    "beside": "AssessmentRecorded",
    "regrade": "RegradeStarted RegradeCompleted AssessmentRecorded",
    "evaluation": "EvaluationStarted EvaluationScored",
    "cell": (
        "CellRegistered CellLost CellJoined ContributionDiscarded RoleTransitionRequested "
        "RoleTransitionPhaseCompleted RoleTransitionCompleted RoleTransitionFailed"
    ),
    "core": (
        "CellRegistered JoinWindowClosed ReductionOpened GradientReduced OptimizerStepped WeightsBroadcast "
        "WeightsPublished CheckpointSaved"
    ),
    "batch": "BatchOpened GroupAssigned ExecutionMasked StreamClosed StepAborted",
    "step": "MicroStepEnqueued MicroStepClaimed MicroStepCompleted MicroStepReissued RatioMeasured",
}

ENTITIES: Mapping[str, frozenset[str]] = {
    kind: frozenset(entity for entity, kinds in _ENTITIES.items() if kind in kinds.split()) for kind in SPEAKERS
}
"""Event type of EV -> what its subjects begin with after `ev.<run>.<service>`; readers ask for no more than that."""


def may_say(service: str, kind: str) -> bool:
    """Whether a service kind may say events of this type."""
    return service in SPEAKERS.get(kind, ())


def stream_of(kind: str) -> Stream:
    """The stream in which a type is said: request records and what corrects them in CALL, everything else in EV."""
    return "CALL" if kind in {"ModelCallRecorded", "DeliveryCorrected"} else "EV"
