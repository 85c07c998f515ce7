"""Steps that went wrong: gradients, masks, ratios, micro-steps that nobody survives, sums that fail."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log
from statistics import median
from typing import Any

from gyre.core.diagnosis.finding import MOST_EVIDENCE, At, Finding, Hear, Kind, Outlook, ids, why
from gyre.core.diagnosis.limits import FAR, IN_A_ROW, Limits
from schemas.rewards import GroupReady
from schemas.training import (
    ExecutionStats,
    GroupAssigned,
    MicroStepCompleted,
    MicroStepReissued,
    OptimizerStepped,
    ReductionOpened,
    StepAborted,
)

SPIKE = Kind("gradient-spike", "a gradient norm ten times the median of the steps before it")
MASKED = Kind(
    "ratio-clipped", "steps in which nine tenths of the executions lay beyond the ratio bound and trained nothing"
)
MISMATCH = Kind("logprob-mismatch", "tokens that trainer and engine judge differently at equal weights")
ROUTED = Kind(
    "experts-misplaced", "tokens that were to take the experts of the engine again, and took those of other positions"
)
POISON = Kind("poison-micro-step", "a micro-step that lost as many claimants as it may, or ended the run")
REDUCING = Kind("reduction-failing", "a step whose gradients were summed anew again and again")

ALIKE = 0.8
"""Coarser arithmetic, and weights that a few updates lie between, leave more than nine tenths of the choices of experts
alike; those of the position beside share a half and less, where there are many experts."""
NORMS = 32
"""Steps that a norm is compared with: long enough for a median, short enough to follow a schedule of rates."""


@dataclass(frozen=True, slots=True)
class Spike:
    """A norm far above the usual."""

    step: int
    at: At
    norm: float
    usual: float


class Training:
    """One step after the other."""

    kinds = (SPIKE, MASKED, MISMATCH, ROUTED, POISON, REDUCING)

    def __init__(self, limits: Limits) -> None:
        """No step was taken."""
        self._limits = limits
        self._norms: deque[float] = deque(maxlen=NORMS)
        self._spikes: list[Spike] = []
        self._ready: dict[str, tuple[str, ...]] = {}
        """Ready group in no batch -> its executions."""
        self._equal: set[str] = set()
        """Executions of the open batch that were sampled from the very weights that are trained."""
        self._masks: dict[str, int] = {}
        """Execution of the open batch -> m_i."""
        self._masked: list[tuple[int, int, At]] = []
        """(step, executions, its update) of the first few steps."""
        self._masked_count, self._steps = 0, 0
        self._mismatches: list[At] = []
        self._mismatch: tuple[float, float, str] | None = None
        """(largest |delta log p|, ratio, execution)."""
        self._misplaced: list[At] = []
        self._worst: tuple[float, float, str] | None = None
        """(overlap, top-1 agreement, execution)."""
        self._lost: list[tuple[MicroStepReissued, At]] = []
        self._aborted: tuple[StepAborted, At] | None = None
        self._reductions: list[tuple[ReductionOpened, At]] = []

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {
            GroupReady: self._became_ready,
            GroupAssigned: self._assigned,
            MicroStepCompleted: self._completed,
            MicroStepReissued: self._reissued,
            StepAborted: self._abort,
            ReductionOpened: self._reduced,
            OptimizerStepped: self._stepped,
        }

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        yield from self._gradients()
        yield from self._ratios()
        yield from self._poison()
        for event, at in self._reductions:
            reason = event.reason or "a member was lost"
            says = f"step {event.step} opened its reduction {event.epoch} times, the last because: {reason}"
            yield Finding(REDUCING.name, "warning", says, (at.id,), why(at))

    def _gradients(self) -> Iterator[Finding]:
        if self._spikes:
            worst = max(self._spikes, key=lambda each: each.norm / each.usual)
            says = (
                f"the gradient of step {worst.step} has norm {worst.norm:.3g}, {worst.norm / worst.usual:.0f} times "
                f"the median of the steps before ({worst.usual:.3g}); {len(self._spikes)} such steps of {self._steps}"
            )
            evidence = ids([worst.at, *(each.at for each in self._spikes if each is not worst)])
            yield Finding(SPIKE.name, "warning", says, evidence, f"gyre restep {{run}} {worst.step}")

    def _ratios(self) -> Iterator[Finding]:
        if self._masked:
            step, executions, _ = self._masked[0]
            says = (
                f"in {self._masked_count} of {self._steps} steps nine tenths of the executions or more lay beyond the "
                f"ratio bound [{self._limits.ratio_low:g}, {self._limits.ratio_high:g}], first in step {step} "
                f"({executions} executions): they train nothing"
            )
            evidence = ids([each for _, _, each in self._masked])
            yield Finding(MASKED.name, "warning", says, evidence, "gyre query consistency {run}")
        if self._mismatch is not None:
            delta, ratio, execution = self._mismatch
            says = (
                f"{execution} was sampled from the weights that it trains, yet trainer and engine differ by up to "
                f"{delta:.3g} nats on a token and its ratio is {ratio:.4f} (1 is expected): their arithmetic differs"
            )
            yield Finding(MISMATCH.name, "critical", says, ids(self._mismatches), f"gyre samples {{run}} {execution}")
        if self._worst is not None:
            overlap, top, execution = self._worst
            says = (
                f"of the experts that {execution} took in the engine and takes again in training, its routers "
                f"would choose {overlap:.0%} (likeliest ones: {top:.0%}): they are other positions' or another model's"
            )
            yield Finding(ROUTED.name, "critical", says, ids(self._misplaced), f"gyre samples {{run}} {execution}")

    def _poison(self) -> Iterator[Finding]:
        if self._aborted is not None:
            event, at = self._aborted
            says = f"step {event.step} was given up at micro-step {event.micro_step}: {event.reason}"
            yield Finding(POISON.name, "critical", says, (at.id,), why(at))
        elif self._lost:
            lost, at = max(self._lost, key=lambda each: each[0].reissue)
            says = (
                f"micro-step {lost.micro_step} of step {lost.step} was queued again {lost.reissue} times, the last "
                f"because: {lost.reason}"
            )
            yield Finding(POISON.name, "warning", says, ids([each for _, each in self._lost]), why(at))

    def _became_ready(self, at: At, event: GroupReady) -> None:
        self._ready[event.group] = tuple(each.execution for each in event.outcomes)

    def _assigned(self, at: At, event: GroupAssigned) -> None:
        executions = self._ready.pop(event.group, ())
        if event.staleness == 0:
            self._equal.update(executions)

    def _completed(self, at: At, event: MicroStepCompleted) -> None:
        for each in event.stats:
            self._masks[each.execution] = each.mask
            self._look_at_experts(at, each)
            bounds = self._limits.ratio_low <= each.ratio <= self._limits.ratio_high
            apart = each.max_delta_log_p > log(self._limits.weight_cap)
            if each.execution in self._equal and (apart or not bounds):
                if len(self._mismatches) < MOST_EVIDENCE:
                    self._mismatches.append(at)
                found = (each.max_delta_log_p, each.ratio, each.execution)
                self._mismatch = max(self._mismatch or found, found)

    def _look_at_experts(self, at: At, stats: ExecutionStats) -> None:
        if stats.experts is not None and stats.experts.overlap < ALIKE:
            if len(self._misplaced) < MOST_EVIDENCE:
                self._misplaced.append(at)
            found = (stats.experts.overlap, stats.experts.top, stats.execution)
            self._worst = min(self._worst or found, found)

    def _reissued(self, at: At, event: MicroStepReissued) -> None:
        if event.reissue >= self._limits.redeliveries and len(self._lost) < MOST_EVIDENCE:
            self._lost.append((event, at))

    def _abort(self, at: At, event: StepAborted) -> None:
        self._aborted = (event, at)

    def _reduced(self, at: At, event: ReductionOpened) -> None:
        if event.epoch == IN_A_ROW and len(self._reductions) < MOST_EVIDENCE:
            self._reductions.append((event, at))

    def _stepped(self, at: At, event: OptimizerStepped) -> None:
        self._steps += 1
        usual = median(self._norms) if len(self._norms) > IN_A_ROW else 0.0
        if usual and event.gradient_norm > FAR * usual and len(self._spikes) < NORMS:
            self._spikes.append(Spike(event.step, at, event.gradient_norm, usual))
        if event.gradient_norm:  # a batch without variance has none
            self._norms.append(event.gradient_norm)
        self._count_masks(at, event)
        self._masks.clear()
        self._equal.clear()

    def _count_masks(self, at: At, event: OptimizerStepped) -> None:
        masked = len(self._masks) - sum(self._masks.values())
        if self._masks and masked >= (1 - 1 / FAR) * len(self._masks):
            self._masked_count += 1
            if len(self._masked) < MOST_EVIDENCE:
                self._masked.append((event.step, len(self._masks), at))
