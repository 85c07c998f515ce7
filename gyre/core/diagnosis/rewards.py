"""Rewards that say nothing: all of a batch alike, or the same for every task from one moment on."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from gyre.core.diagnosis.finding import MOST_EVIDENCE, At, Finding, Hear, Kind, Outlook, Severity, ids, why
from gyre.core.diagnosis.limits import HALF, RARE, Limits
from schemas.rewards import AssessmentRecorded, GroupReady, RewardUnresolved, alike
from schemas.training import GroupAssigned, OptimizerStepped

MOST_JUDGED = 1 << 16
"""Scored executions of groups that are not ready, at most."""
FLAT = Kind("zero-variance", "batches in which every group has equal rewards, so that the step moves no weight")
CLIFF = Kind(
    "reward-cliff",
    "every group scores the same from one moment on, as when tests break: an evaluator's outage that looks like reward",
)


@dataclass(frozen=True, slots=True)
class Scored:
    """A ready group's rewards, and the assessment that was said last of them."""

    group: str
    version: int
    at: At
    mean: float | None
    flat: bool
    """No two rewards of it differ by more than rounding."""
    judged: At | None = None
    seconds: float = 0.0
    """Mean time of its assessments."""
    detail: str = ""
    """What the last of them said."""


@dataclass(frozen=True, slots=True)
class Row:
    """Groups in a row whose every execution has the same reward, and what came before."""

    before: tuple[Scored, ...]
    groups: int
    first: Scored
    versions: frozenset[int]
    details: frozenset[str]
    """What the tests said, at most two of them."""
    seconds: float = 0.0
    """Sum of the groups' means."""
    open: bool = True
    """Whether no other group has come since."""

    def grown(self, scored: Scored) -> "Row":
        """With one group more."""
        return replace(
            self,
            groups=self.groups + 1,
            versions=self.versions | {scored.version},
            details=self.details if len(self.details) > 1 else self.details | {scored.detail},
            seconds=self.seconds + scored.seconds,
        )

    @property
    def shared(self) -> frozenset[int]:
        """Policy versions that scored otherwise before: what changed is not the policy."""
        return self.versions & {each.version for each in self.before if not _like(each, self.first)}

    @property
    def said(self) -> str:
        """What the tests say of all of them and of less than half before; empty if there is no such thing."""
        usual = sum(each.detail == self.first.detail for each in self.before) > HALF * len(self.before)
        return "" if usual or len(self.details) > 1 else self.first.detail

    @property
    def chance(self) -> float:
        """That so many groups come out so, if they were like those before."""
        others = sum(not _like(each, self.first) for each in self.before)
        usual = (len(self.before) - others + 0.5) / (len(self.before) + 1)
        return float(usual**self.groups)


@dataclass(slots=True, eq=False)
class _Judged:
    """The assessments of an execution, until its group is ready."""

    at: At
    seconds: float
    detail: str


class Rewards:
    """Groups in the order in which they became ready, and the batches that took them."""

    kinds = (FLAT, CLIFF)

    def __init__(self, limits: Limits) -> None:
        """No group is ready."""
        self._limits = limits
        self._judged: dict[str, _Judged] = {}
        self._ready: dict[str, Scored] = {}
        """Ready and in no batch."""
        self._batch: list[Scored] = []
        self._flat = 0
        """Flat batches in a row, up to the last step."""
        self._flattest: tuple[int, int, tuple[Scored, ...], At] | None = None
        """(steps in a row, the last of them, its groups, its update)."""
        self._steps = 0
        self._past: deque[Scored] = deque(maxlen=max(4 * limits.mu * limits.groups, limits.executions))
        self._row: Row | None = None
        self._cliff: Row | None = None

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {
            AssessmentRecorded: self._assessed,
            RewardUnresolved: self._unresolved,
            GroupReady: self._became_ready,
            GroupAssigned: self._assigned,
            OptimizerStepped: self._stepped,
        }

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        if self._flattest is not None:
            yield self._say_flat(*self._flattest)
        if self._cliff is not None:
            yield _say_cliff(self._cliff)

    def _say_flat(self, row: int, step: int, groups: tuple[Scored, ...], at: At) -> Finding:
        means = ", ".join("none" if each.mean is None else f"{each.mean:.2f}" for each in groups[:MOST_EVIDENCE])
        which = f"step {step}" if row == 1 else f"steps {step - row + 1} to {step}"
        says = (
            f"in {which} of {self._steps} no group of the batch had two different rewards (last means: {means}): "
            "every advantage is 0, and no weight moves"
        )
        severity: Severity = "critical" if row >= self._limits.mu else "warning"
        evidence = (at.id, *ids([each.at for each in groups]))
        return Finding(FLAT.name, severity, says, evidence[:MOST_EVIDENCE], "gyre query group-spread {run}")

    def _assessed(self, at: At, event: AssessmentRecorded) -> None:
        if event.designated and event.valid:
            self._judged[event.execution] = _Judged(at, event.seconds, event.detail)
            if len(self._judged) > MOST_JUDGED:  # the oldest is of a surplus, whose group was ready without it
                del self._judged[next(iter(self._judged))]

    def _unresolved(self, at: At, event: RewardUnresolved) -> None:
        self._judged.pop(event.execution, None)

    def _became_ready(self, at: At, event: GroupReady) -> None:
        rewards = [each.reward for each in event.outcomes if each.reward is not None]
        judged = [found for each in event.outcomes if (found := self._judged.pop(each.execution, None)) is not None]
        last = max(judged, key=lambda each: each.at) if judged else None
        scored = Scored(
            group=event.group,
            version=event.version,
            at=at,
            mean=fmean(rewards) if rewards else None,
            flat=not rewards or alike(min(rewards), max(rewards)),
            judged=min(each.at for each in judged) if judged else None,
            seconds=fmean(each.seconds for each in judged) if judged else 0.0,
            detail=last.detail if last is not None else "",
        )
        self._ready[event.group] = scored
        if judged and rewards:
            self._follow(scored)

    def _follow(self, scored: Scored) -> None:
        """Whether a row of equal groups goes on, ends or begins."""
        row = self._row
        if row is not None and _like(scored, row.first):
            row = row.grown(scored)
        else:
            if row is not None and self._cliff is not None and self._cliff.first is row.first:
                self._cliff = replace(self._cliff, open=False)
            row = Row(tuple(self._past), 0, scored, frozenset(), frozenset()).grown(scored) if scored.flat else None
        self._row = row
        self._past.append(scored)
        enough = row is not None and len(row.before) >= self._limits.groups
        if row is not None and enough and row.chance < RARE and not self._worse(row):
            self._cliff = row

    def _worse(self, row: Row) -> bool:
        """Whether another row that was found is longer."""
        found = self._cliff
        return found is not None and found.first is not row.first and found.groups >= row.groups

    def _assigned(self, at: At, event: GroupAssigned) -> None:
        scored = self._ready.pop(event.group, None)
        if scored is not None:
            self._batch.append(scored)

    def _stepped(self, at: At, event: OptimizerStepped) -> None:
        batch, self._batch = self._batch, []
        self._steps += 1
        flat = len(batch) >= self._limits.groups and all(each.flat for each in batch)
        self._flat = self._flat + 1 if flat else 0
        if flat and (self._flattest is None or self._flat > self._flattest[0]):
            self._flattest = (self._flat, event.step, tuple(batch), at)


def _like(scored: Scored, first: Scored) -> bool:
    """Whether all rewards of a group are the one that the first has."""
    if scored.mean is None or first.mean is None:
        return scored.flat and scored.mean is first.mean
    return scored.flat and alike(*sorted((scored.mean, first.mean)))


def _say_cliff(row: Row) -> Finding:
    before = [each.mean for each in row.before if each.mean is not None]
    others = sum(not _like(each, row.first) for each in row.before)
    here = "goes on to the end" if row.open else "ended later"
    policy = (
        f"version {max(row.shared)} of the policy is on both sides, so it did not change there"
        if row.shared
        else f"it begins with version {row.first.version} of the policy"
    )
    said = f"; the tests of all of them say {row.said!r}, as hardly any did before" if row.said else ""
    usual = fmean(each.seconds for each in row.before)
    says = (
        f"{row.groups} groups in a row scored {row.first.mean:.2f} to the last execution ({here}) after {others} of "
        f"{len(row.before)} before scored otherwise (mean {fmean(before):.2f}); {policy}{said}; an assessment took "
        f"{row.seconds / row.groups:.2g} s instead of {usual:.2g} s"
    )
    marks = [row.first.judged, row.first.at, row.before[-1].at]
    evidence = [at for at in marks if at is not None]
    severity: Severity = "critical" if row.shared or row.said else "warning"
    return Finding(CLIFF.name, severity, says, ids(evidence), why(evidence[0]))
