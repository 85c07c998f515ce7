"""Events about a run as a whole, about offices, timers and evaluation of held-out tasks."""

from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from schemas.base import Digest, Float32s, Model, Token
from schemas.refs import WeightsRef


class RunStarted(Model):
    """Said once by `control`: all that the run depends on."""

    type: Literal["RunStarted"] = "RunStarted"
    v: Literal[1] = 1
    config: dict[str, Any]
    """The resolved configuration, every default filled in."""
    config_digest: Digest
    seed: int
    code_version: str
    weights: WeightsRef
    """Policy version 0."""
    tasks: tuple[str, ...]
    """Names of the training tasks, in the order that the schedule counts them."""
    heldout: tuple[str, ...]
    """Names of the held-out tasks."""


class RunFinished(Model):
    """Said by `scheduler` when the last step is published and d = p = f."""

    type: Literal["RunFinished"] = "RunFinished"
    v: Literal[1] = 1
    steps: NonNegativeInt
    dispatched: NonNegativeInt
    launched: NonNegativeInt
    terminated: NonNegativeInt


class ConfigRejected(Model):
    """Said by `control`: a configuration that cannot be honoured, found after the run was opened."""

    type: Literal["ConfigRejected"] = "ConfigRejected"
    v: Literal[1] = 1
    key: str
    value: str
    rule: str


class OfficeTaken(Model):
    """A singleton decider begins a term: this commit's sequence is the term."""

    type: Literal["OfficeTaken"] = "OfficeTaken"
    v: Literal[2] = 2
    service: Token
    instance: Token
    rules: PositiveInt = 2
    """What it decides by. 1: each loss of a claimant counts against its micro-step; 2: only one that died alone."""


class EventQuarantined(Model):
    """A stored message that no model accepts: readers step over it, with this as the reason."""

    type: Literal["EventQuarantined"] = "EventQuarantined"
    v: Literal[1] = 1
    stream: str
    sequence: PositiveInt
    subject: str
    digest: Digest
    reason: str


class TimerSet(Model):
    """A decider asks its own shell for a `TimerFired` after this long."""

    type: Literal["TimerSet"] = "TimerSet"
    v: Literal[1] = 1
    timer: Token
    seconds: NonNegativeFloat


class TimerFired(Model):
    """The shell of the producer that set the timer says that its time is up."""

    type: Literal["TimerFired"] = "TimerFired"
    v: Literal[1] = 1
    timer: Token


class EvaluationStarted(Model):
    """Said by `scheduler`: measure the published policy on held-out tasks; outside d, p and f."""

    type: Literal["EvaluationStarted"] = "EvaluationStarted"
    v: Literal[1] = 1
    evaluation: Token
    version: NonNegativeInt
    episodes: PositiveInt


class EvaluationScored(Model):
    """Said by `examiner`: one score an episode, NaN where no valid score could be had."""

    type: Literal["EvaluationScored"] = "EvaluationScored"
    v: Literal[1] = 1
    evaluation: Token
    version: NonNegativeInt
    """What was measured: a later policy than was asked for where that had been published by then."""
    scores: Float32s
    """(episodes,), in [0, 1] or NaN, in the order of the held-out tasks."""
    mean: float
    """Mean of the valid scores; NaN is never stored: 0 when none is valid."""
    valid: NonNegativeInt
    seconds: NonNegativeFloat
