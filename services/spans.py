"""A run's log as spans: executions with their calls and their scoring, steps with their micro-steps.

Pure bookkeeping. A span's id follows from what it is of, so that a call finds its execution's span before that has
ended, and the same log told twice gives the same spans.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.calls import ModelCallRecorded
from schemas.dispatch import ExecutionLaunched, ExecutionTerminated
from schemas.rewards import RewardAssigned, RewardUnresolved
from schemas.training import (
    BatchOpened,
    GradientReduced,
    MicroStepClaimed,
    MicroStepCompleted,
    OptimizerStepped,
    ReductionOpened,
)

_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of time of one trace; times are UTC, ns."""

    name: str
    trace: int
    id: int
    parent: int
    """0 for a root."""
    start: int
    end: int
    attributes: dict[str, str | int | float]
    failed: str = ""
    """Why it is an error, if it is one."""


@dataclass(slots=True)
class Open:
    """What has begun and not ended; small, and kept beside the position."""

    launched: dict[str, int] = field(default_factory=dict)
    """Execution -> when, UTC, ns."""
    terminated: dict[str, int] = field(default_factory=dict)
    """Execution -> when, until its reward is settled."""
    claims: dict[str, int] = field(default_factory=dict)
    """`step.micro_step` -> when it was claimed last."""
    batches: dict[str, int] = field(default_factory=dict)
    reductions: dict[str, int] = field(default_factory=dict)
    """Step -> when."""


class Spans:
    """Makes spans of events."""

    def __init__(self, run: str, opened: Open | None = None) -> None:
        """Go on with what had begun."""
        self.run, self.open = run, opened or Open()

    def take(self, event: Any, time: int, sequence: int) -> list[Span]:
        """What ends with this event; `time` (UTC, ns) and `sequence` are its commit's."""
        make = _MADE.get(type(event))
        return make(self, event, time, {"gyre.run": self.run, "gyre.sequence": sequence}) if make else []

    def launched(self, event: ExecutionLaunched, time: int, _: Mapping[str, Any]) -> list[Span]:
        """The root of an execution begins."""
        self.open.launched[event.execution] = time
        return []

    def called(self, event: ModelCallRecorded, time: int, said: dict[str, Any]) -> list[Span]:
        """A call is said when it ends."""
        attributes = {
            **said,
            "gyre.execution": event.execution,
            "gyre.call": event.call,
            "gyre.kind": event.kind,
            "gyre.finish": event.finish,
            "gyre.queue_seconds": event.queue_seconds,
            "gen_ai.usage.input_tokens": event.prefix_tokens + len(event.input_ids) // _ID_BYTES,
            "gen_ai.usage.output_tokens": len(event.output_ids) // _ID_BYTES,
            "gyre.cached_tokens": event.cached_tokens,
        }
        start = time - int(min(event.total_seconds * 1e9, time))  # not before 1970, whatever it says
        return [self._child(event.execution, "call", event.call, start, time, attributes)]

    def terminated(self, event: ExecutionTerminated, time: int, said: dict[str, Any]) -> list[Span]:
        """The root of an execution ends."""
        start = self.open.launched.pop(event.execution, time)
        self.open.terminated[event.execution] = time
        attributes = {**said, "gyre.execution": event.execution, "gyre.group": event.group}
        failed = "" if event.reason == "completed" else event.reason
        return [
            self._root(event.execution, "execution", start, time, {**attributes, "gyre.reason": event.reason}, failed)
        ]

    def settled(self, event: RewardAssigned | RewardUnresolved, time: int, said: dict[str, Any]) -> list[Span]:
        """Scoring lasts from the end of the execution to its reward."""
        start = self.open.terminated.pop(event.execution, time)
        attributes = {**said, "gyre.execution": event.execution, "gyre.group": event.group}
        if isinstance(event, RewardAssigned):
            return [
                self._child(event.execution, "scoring", "", start, time, {**attributes, "gyre.reward": event.reward})
            ]
        return [self._child(event.execution, "scoring", "", start, time, attributes, event.reason)]

    def opened(self, event: BatchOpened, time: int, _: Mapping[str, Any]) -> list[Span]:
        """The root of a step begins."""
        self.open.batches[str(event.step)] = time
        return []

    def claimed(self, event: MicroStepClaimed, time: int, _: Mapping[str, Any]) -> list[Span]:
        """A micro-step begins; a later claim counts."""
        self.open.claims[f"{event.step}.{event.micro_step}"] = time
        return []

    def completed(self, event: MicroStepCompleted, time: int, said: dict[str, Any]) -> list[Span]:
        """A micro-step ends."""
        start = self.open.claims.pop(f"{event.step}.{event.micro_step}", time)
        attributes = {**said, "gyre.step": event.step, "gyre.micro_step": event.micro_step, "gyre.cell": event.cell}
        name = f"{event.micro_step}.{event.claim}"
        return [self._child(_step(event.step), "micro-step", name, start, time, attributes)]

    def reducing(self, event: ReductionOpened, time: int, _: Mapping[str, Any]) -> list[Span]:
        """A reduction begins; a later epoch counts."""
        self.open.reductions[str(event.step)] = time
        return []

    def reduced(self, event: GradientReduced, time: int, said: dict[str, Any]) -> list[Span]:
        """A reduction ends."""
        start = self.open.reductions.pop(str(event.step), time)
        return [self._child(_step(event.step), "reduction", "", start, time, {**said, "gyre.step": event.step})]

    def stepped(self, event: OptimizerStepped, time: int, said: dict[str, Any]) -> list[Span]:
        """The root of a step ends; claims that nobody completed are forgotten."""
        start = self.open.batches.pop(str(event.step), time)
        for claim in [each for each in self.open.claims if each.startswith(f"{event.step}.")]:
            del self.open.claims[claim]
        attributes = {
            **said,
            "gyre.step": event.step,
            "gyre.loss": event.loss,
            "gyre.gradient_norm": event.gradient_norm,
        }
        return [self._root(_step(event.step), "step", start, time, attributes)]

    def _root(self, of: str, name: str, start: int, end: int, attributes: dict[str, Any], failed: str = "") -> Span:
        return Span(name, self._trace(of), self._id(of), 0, start, end, attributes, failed)

    def _child(
        self, of: str, name: str, which: str, start: int, end: int, attributes: dict[str, Any], failed: str = ""
    ) -> Span:
        return Span(name, self._trace(of), self._id(of, name, which), self._id(of), start, end, attributes, failed)

    def _trace(self, of: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.run}/{of}".encode()).digest()[:16])

    def _id(self, *of: str) -> int:
        return int.from_bytes(hashlib.sha256("/".join((self.run, *of)).encode()).digest()[16:24])


def _step(step: int) -> str:
    return f"step {step}"


_MADE: Mapping[type[Any], Callable[[Spans, Any, int, dict[str, Any]], list[Span]]] = {
    ExecutionLaunched: Spans.launched,
    ModelCallRecorded: Spans.called,
    ExecutionTerminated: Spans.terminated,
    RewardAssigned: Spans.settled,
    RewardUnresolved: Spans.settled,
    BatchOpened: Spans.opened,
    MicroStepClaimed: Spans.claimed,
    MicroStepCompleted: Spans.completed,
    ReductionOpened: Spans.reducing,
    GradientReduced: Spans.reduced,
    OptimizerStepped: Spans.stepped,
}
KINDS: tuple[type[Any], ...] = tuple(_MADE)
