"""What many processes say, held against the rules that it must have kept to (design §6 to §8).

A singleton's words can be decided a second time; a runner's, an evaluator's or a cell's are outcomes of the world. What
the log must not hold all the same: an execution that is launched or ended twice, a reward that no assessment gave, an
update of anything but the batch's micro-steps, each once.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gyre.core import ledger
from gyre.core.cell import batch_loss
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.rewards import AssessmentRecorded, RewardAssigned, RewardUnresolved
from schemas.training import (
    Contribution,
    GradientReduced,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    ReductionOpened,
)

_ROUNDING = 1e-6
"""Relative; sums may be taken in another order."""


@dataclass(slots=True)
class _Step:
    """What was said of the step that is collecting."""

    micro_steps: set[int] = field(default_factory=set)
    """To be trained."""
    completed: dict[Contribution, MicroStepCompleted] = field(default_factory=dict)
    opened: dict[int, ReductionOpened] = field(default_factory=dict)
    """By epoch."""
    reduced: GradientReduced | None = None


class Audit:
    """A fold over the whole of EV, in order."""

    def __init__(self, groups: int, executions: int) -> None:
        """Nothing happened yet; B groups a batch, N executions a group."""
        self._groups, self._executions = groups, executions
        self._dispatched, self._launched, self._ended, self._settled = (set[str]() for _ in range(4))
        self._scores: dict[str, float] = {}
        """Of executions with a valid designated assessment: the last one's."""
        self._step = 0
        """Updates so far; also the version of the weights."""
        self._open = _Step()
        self._handlers: Mapping[type[Any], Callable[[Any], Iterator[str]]] = {
            ExecutionDispatched: self._on_dispatched,
            ExecutionLaunched: self._on_launched,
            ExecutionTerminated: self._on_terminated,
            AssessmentRecorded: self._on_assessment,
            RewardAssigned: self._on_reward,
            RewardUnresolved: self._on_unresolved,
            MicroStepEnqueued: self._on_enqueued,
            MicroStepCompleted: self._on_completed,
            ReductionOpened: self._on_opened,
            GradientReduced: self._on_reduced,
            OptimizerStepped: self._on_stepped,
        }

    def add(self, event: Event) -> tuple[str, ...]:
        """Fold one event; what is wrong with it, one line each."""
        handler = self._handlers.get(type(event))
        return () if handler is None else tuple(handler(event))

    def _on_dispatched(self, event: ExecutionDispatched) -> Iterator[str]:
        yield from _once(event.execution, self._dispatched, "dispatched")

    def _on_launched(self, event: ExecutionLaunched) -> Iterator[str]:
        yield from _after(event.execution, self._dispatched, "launched", "dispatched")
        yield from _once(event.execution, self._launched, "launched")

    def _on_terminated(self, event: ExecutionTerminated) -> Iterator[str]:
        yield from _after(event.execution, self._launched, "ended", "launched")
        yield from _once(event.execution, self._ended, "ended")

    def _on_assessment(self, event: AssessmentRecorded) -> Iterator[str]:
        if event.valid != (event.score is not None):
            yield f"{event.execution}: assessment {event.assessment} is valid exactly when it has a score"
        if event.score is not None and not 0 <= event.score <= 1:
            yield f"{event.execution}: assessment {event.assessment} scores {event.score:g}, outside [0, 1]"
        if event.designated and event.score is not None:
            self._scores[event.execution] = event.score

    def _on_reward(self, event: RewardAssigned) -> Iterator[str]:
        yield from _once(event.execution, self._settled, "rewarded")
        expected = 0.0 if event.placeholder else self._scores.get(event.execution)
        if event.reward != expected:
            source = "a placeholder's is 0" if event.placeholder else f"its designated assessment gave {expected}"
            yield f"{event.execution}: reward {event.reward:g}, but {source}"

    def _on_unresolved(self, event: RewardUnresolved) -> Iterator[str]:
        yield from _once(event.execution, self._settled, "rewarded")

    def _on_enqueued(self, event: MicroStepEnqueued) -> Iterator[str]:
        if event.kind == "train" and event.step == self._step + 1:
            self._open.micro_steps.add(event.micro_step)
        yield from ()

    def _on_completed(self, event: MicroStepCompleted) -> Iterator[str]:
        if event.step == self._step + 1:
            key = Contribution(micro_step=event.micro_step, cell=event.cell, claim=event.claim)
            self._open.completed[key] = event
        yield from ()

    def _on_opened(self, event: ReductionOpened) -> Iterator[str]:
        if event.step == self._step + 1:
            self._open.opened[event.epoch] = event
        yield from ()

    def _on_reduced(self, event: GradientReduced) -> Iterator[str]:
        if event.step == self._step + 1:
            self._open.reduced = event
        yield from ()

    def _on_stepped(self, event: OptimizerStepped) -> Iterator[str]:
        where = f"step {event.step}"
        if event.step != self._step + 1 or event.version != event.step:
            yield f"{where}: makes version {event.version} after {self._step} updates"
        if event.step == self._step + 1:
            yield from (f"{where}: {problem}" for problem in self._sum_of(event))
        self._step, self._open = event.step, _Step()

    def _sum_of(self, event: OptimizerStepped) -> Iterator[str]:
        """What is wrong with the sum that an update was made of."""
        step, reduced = self._open, self._open.reduced
        opened = None if reduced is None else step.opened.get(reduced.epoch)
        if reduced is None or opened is None:
            yield "an update without a reduction"
            return
        yield from ledger.check(opened.contributions, step.micro_steps)
        if (reduced.members, reduced.micro_steps) != (opened.members, len(opened.contributions)):
            yield f"the sum of epoch {reduced.epoch} is not of the members and claims that were frozen for it"
        if missing := [each.micro_step for each in opened.contributions if each not in step.completed]:
            yield f"micro-step {missing[0]} is in the sum under a claim that was never completed"
            return
        stats = (step.completed[each].stats for each in opened.contributions)
        loss = batch_loss(stats, self._groups, self._executions)
        if not math.isclose(loss, event.loss, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            yield f"its loss is {event.loss:g}, that of its micro-steps {loss:g}"
        if not math.isclose(reduced.gradient_norm, event.gradient_norm, rel_tol=_ROUNDING):
            yield f"its gradient norm is {event.gradient_norm:g}, that of the sum {reduced.gradient_norm:g}"


def _once(execution: str, known: set[str], what: str) -> Iterator[str]:
    if execution in known:
        yield f"{execution}: {what} a second time"
    known.add(execution)


def _after(execution: str, known: set[str], what: str, before: str) -> Iterator[str]:
    if execution not in known:
        yield f"{execution}: {what}, and never {before}"
