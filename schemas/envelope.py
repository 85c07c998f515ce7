"""The commit: all the events of one decision by one producer, stored or not stored as one (design §4)."""

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter

from schemas import calls, dispatch, rewards, roles, runs, training
from schemas.base import Model, Token

Event = Annotated[
    runs.RunStarted
    | runs.RunFinished
    | runs.ConfigRejected
    | runs.OfficeTaken
    | runs.EventQuarantined
    | runs.TimerSet
    | runs.TimerFired
    | runs.EvaluationStarted
    | runs.EvaluationScored
    | dispatch.GroupDispatched
    | dispatch.ExecutionDispatched
    | dispatch.LaunchGranted
    | dispatch.CancellationRequested
    | dispatch.ExecutionLaunched
    | dispatch.ExecutionTerminated
    | calls.ModelCallRecorded
    | calls.DeliveryCorrected
    | calls.ModelCallRetried
    | calls.ModelCallContinued
    | calls.HistoryRejected
    | calls.RouteAssigned
    | calls.RouteMoved
    | calls.RequestCancelled
    | calls.KvHandoffCompleted
    | calls.RecordsSealed
    | rewards.TreeBuilt
    | rewards.AssessmentRecorded
    | rewards.RewardAssigned
    | rewards.RewardUnresolved
    | rewards.GroupReady
    | rewards.RegradeStarted
    | rewards.RegradeCompleted
    | roles.CellRegistered
    | roles.CellLost
    | roles.RoleTransitionRequested
    | roles.RoleTransitionPhaseCompleted
    | roles.RoleTransitionCompleted
    | roles.RoleTransitionFailed
    | training.TrajectoriesAdmitted
    | training.BatchOpened
    | training.GroupAssigned
    | training.MicroStepEnqueued
    | training.MicroStepClaimed
    | training.RatioMeasured
    | training.ExecutionMasked
    | training.MicroStepCompleted
    | training.MicroStepReissued
    | training.StreamClosed
    | training.StepAborted
    | training.CellJoined
    | training.JoinWindowClosed
    | training.ContributionDiscarded
    | training.ReductionOpened
    | training.GradientReduced
    | training.OptimizerStepped
    | training.WeightsBroadcast
    | training.WeightsPublished
    | training.BurstEnded
    | training.CheckpointSaved,
    Field(discriminator="type"),
]
"""Any event, told apart by `type`; `v` is its schema version."""


class Producer(Model):
    """Who says it: a service kind and one process of that kind."""

    service: Token
    instance: Token


class Commit(Model):
    """One message of the log. An event's identity is (stream sequence, index)."""

    run: Token
    producer: Producer
    commit: Token
    """Id of the commit: a resend carries the same one."""
    causation: NonNegativeInt
    """Stream sequence of what made it be said; 0 for a beginning."""
    as_of: NonNegativeInt
    """Last sequence folded before deciding; never below the producer's own last commit."""
    correlation: Token
    """The execution, step or run it is about."""
    time: PositiveInt
    """UTC, nanoseconds since the epoch."""
    events: Annotated[tuple[Event, ...], Field(min_length=1)]
    """What was decided: a commit that says nothing is none."""


COMMIT: TypeAdapter[Commit] = TypeAdapter(Commit)
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
