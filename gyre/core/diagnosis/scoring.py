"""Scores that cannot be had: an evaluator that fails, a task whose tests fail."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gyre.core.diagnosis.finding import At, Finding, Hear, Kind, Outlook, ids, listed
from gyre.core.diagnosis.limits import HALF, Limits
from gyre.core.diagnosis.windows import Window
from schemas.dispatch import ExecutionTerminated
from schemas.rewards import AssessmentRecorded, RewardAssigned, RewardUnresolved

OUTAGE = Kind("evaluator-outage", "assessments that found no score, one execution after the other or most of a batch's")
UNSCORABLE = Kind("task-unscorable", "a task of which no execution was ever scored, while others are")


@dataclass(slots=True, eq=False)
class Failing:
    """Assessments without a score, one after the other."""

    first: At
    last: At
    count: int = 0
    executions: set[str] = field(default_factory=set)
    """At most as many as make an outage; beyond that only `count` grows."""
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[At] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Tried:
    """What became of a task's executions."""

    scored: int = 0
    unresolved: list[At] = field(default_factory=list)
    """The first few."""
    count: int = 0


class Scoring:
    """Designated assessments in the order in which they were said, and what each task came to."""

    kinds = (OUTAGE, UNSCORABLE)

    def __init__(self, limits: Limits) -> None:
        """Nothing was assessed."""
        self._needed = max(limits.executions, limits.attempts)
        self._row: Failing | None = None
        self._worst: Failing | None = None
        self._unresolved = Window(limits.batch)
        self._task_of: dict[str, str] = {}
        """Of executions that ended and are not settled."""
        self._tasks: dict[str, Tried] = {}
        self._scored = 0

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {
            ExecutionTerminated: self._terminated,
            AssessmentRecorded: self._assessed,
            RewardAssigned: self._assigned,
            RewardUnresolved: self._gave_up,
        }

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        worst, share = self._worst, self._unresolved.worst
        if worst is not None and len(worst.executions) >= self._needed:
            seconds = (worst.last.time - worst.first.time) / 1e9
            reason, times = worst.reasons.most_common(1)[0]
            says = (
                f"{worst.count} assessments in a row found no score for {seconds:.1f} s, of {len(worst.executions)} "
                f"executions or more ({times} times: {reason}): what is missing there is no failure of the policy"
            )
            yield Finding(OUTAGE.name, "critical", says, ids(worst.examples), "gyre query verifier-failures {run}")
        elif share is not None and share.value > HALF:
            says = (
                f"of {share.size} executions in a row {share.bad} were left without a score: the rewards that are left "
                "are those of the ones that could be judged"
            )
            yield Finding(OUTAGE.name, "critical", says, ids(share.examples), "gyre query verifier-failures {run}")
        else:  # what an outage left without a score is no task's fault
            yield from self._unscorable()

    def _unscorable(self) -> Iterator[Finding]:
        """Whole groups of a task without a score."""
        found = {name: each for name, each in self._tasks.items() if not each.scored and each.count >= self._needed}
        if found and self._scored:
            count = sum(each.count for each in found.values())
            evidence = ids([at for each in found.values() for at in each.unresolved])
            says = (
                f"{listed(list(found))}: none of {count} executions could be scored, {self._scored} of other tasks were"
            )
            yield Finding(UNSCORABLE.name, "warning", says, evidence, "gyre query verifier-failures {run}")

    def _terminated(self, at: At, event: ExecutionTerminated) -> None:
        self._task_of[event.execution] = event.task

    def _assessed(self, at: At, event: AssessmentRecorded) -> None:
        if not event.designated:
            return
        if event.valid:
            self._row = None
            return
        row = self._row = self._row or Failing(at, at)
        row.last, row.count = at, row.count + 1
        if len(row.executions) < self._needed:
            row.executions.add(event.execution)
            row.reasons[event.detail or "no reason given"] += 1
            row.examples.append(at)
        if self._worst is None or row.count > self._worst.count:
            self._worst = row

    def _assigned(self, at: At, event: RewardAssigned) -> None:
        task = self._task_of.pop(event.execution, None)
        if event.placeholder:
            return
        self._scored += 1
        self._unresolved.add(at, False)
        if task is not None:
            self._tasks.setdefault(task, Tried()).scored += 1

    def _gave_up(self, at: At, event: RewardUnresolved) -> None:
        """One that was cancelled, or left nothing, was never tried."""
        task = self._task_of.pop(event.execution, None)
        if event.attempts == 0:
            return
        self._unresolved.add(at, True)
        if task is not None:
            tried = self._tasks.setdefault(task, Tried())
            tried.count += 1
            if tried.count <= self._needed:
                tried.unresolved.append(at)
