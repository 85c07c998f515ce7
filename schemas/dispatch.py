"""Events about groups and executions: dispatched d, launched p, terminated f (design §6)."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from schemas.base import Digest, Model, Token
from schemas.refs import StateRef

Reason = Literal["completed", "failed", "timeout", "cancelled"]
Stage = Literal["setup", "agent", "closing"]


class GroupDispatched(Model):
    """Said by `scheduler`: N executions of one query, and perhaps a surplus, are about to be dispatched."""

    type: Literal["GroupDispatched"] = "GroupDispatched"
    v: Literal[1] = 1
    group: Token
    index: NonNegativeInt
    """Place of the group in the run, from 0."""
    task: Token
    version: NonNegativeInt
    """Published policy version at dispatch (v_d)."""
    executions: PositiveInt
    """N: so many are trained on."""
    surplus: NonNegativeInt = 0
    """Executions beyond N: what is left once N are validly scored is cancelled."""


class ExecutionDispatched(Model):
    """Said by `scheduler`, each its own commit: d + 1, and an entry of the rollout queue."""

    type: Literal["ExecutionDispatched"] = "ExecutionDispatched"
    v: Literal[1] = 1
    execution: Token
    group: Token
    task: Token
    index: NonNegativeInt
    """Place of the execution in its group, from 0."""
    version: NonNegativeInt
    seed: NonNegativeInt


class LaunchGranted(Model):
    """Said by `scheduler`: there is room to launch this queued execution."""

    type: Literal["LaunchGranted"] = "LaunchGranted"
    v: Literal[1] = 1
    execution: Token


class CancellationRequested(Model):
    """Said by `scheduler`: end this execution, its group has what it needs."""

    type: Literal["CancellationRequested"] = "CancellationRequested"
    v: Literal[1] = 1
    execution: Token


class ExecutionLaunched(Model):
    """Said by `runner`: p + 1. The proxy accepts the execution's token from here on."""

    type: Literal["ExecutionLaunched"] = "ExecutionLaunched"
    v: Literal[1] = 1
    execution: Token
    group: Token
    runner: Token
    """Instance of the runner that holds the harness process."""
    token_digest: Digest
    """SHA-256 of the execution's bearer token; the token itself is never in the log."""
    deadline_seconds: PositiveFloat


class ExecutionTerminated(Model):
    """Said by `runner`, once for each launched execution: f + 1, and an entry of the evaluation queue."""

    type: Literal["ExecutionTerminated"] = "ExecutionTerminated"
    v: Literal[2] = 2
    execution: Token
    group: Token
    task: Token
    reason: Reason
    stage: Stage
    exit_code: int | None
    seconds: NonNegativeFloat
    """Of the stage that it ended in."""
    setup_seconds: NonNegativeFloat | None = None
    """From its launch to the start of its harness; None: it never started, or is not known."""
    state: StateRef | None
    """The preserved workspace; None when nothing assessable was left."""
    detail: str = ""
    """One line for people: what the harness said last, or why it failed."""
