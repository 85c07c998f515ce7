"""The loss of admitted targets and the execution-level decision behind it (design §7; the paper's eq. 26-28).

Four objectives share one interface: a function from `Targets` to one loss a target, whose gradient flows through
`log_pi` alone. Weighting by 1 / (B N L_i) and summing is the caller's: gradients of micro-steps are a plain sum.

What is left out: KL and entropy terms, a reference policy, a critic.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Variant = Literal["gyre", "grpo", "ppo", "gspo"]

_LARGEST_EXPONENT = 700.0  # exp() of more overflows float64; a ratio has to stay finite and above zero


@dataclass(frozen=True, slots=True)
class Settings:
    """Which objective, and its bounds; all dimensionless.

    Raises:
        ValueError: a bound out of range; names field, value and rule.
    """

    variant: Variant = "gyre"
    ratio_low: float = 0.995
    """Below it, a target of negative advantage is clipped: s_i for gyre and gspo, rho_u for grpo and ppo."""
    ratio_high: float = 1.005
    """Above it, a target of positive advantage is clipped."""
    weight_cap: float = 5.0
    """gyre: largest importance weight of a target. ppo: bound of the dual clip. The others take no cap."""
    loss_cap: float = 100.0
    """gyre: largest loss of a target; beyond it a target has no gradient."""

    def __post_init__(self) -> None:
        if self.variant not in LOSSES:
            raise ValueError(f"variant = {self.variant!r}: give one of {', '.join(LOSSES)}")
        if not 0.0 < self.ratio_low <= 1.0 <= self.ratio_high:
            found = f"ratio_low = {self.ratio_low}, ratio_high = {self.ratio_high}"
            raise ValueError(f"{found}: need 0 < ratio_low <= 1 <= ratio_high")
        if self.weight_cap < 1.0:
            raise ValueError(f"weight_cap = {self.weight_cap}: give at least 1")
        if self.loss_cap <= 0.0:
            raise ValueError(f"loss_cap = {self.loss_cap}: give more than 0")


@dataclass(frozen=True, slots=True)
class Decision:
    """What holds for all targets of one execution, in whichever row or micro-step they lie."""

    ratio: float
    """s_i"""
    mask: Literal[0, 1]
    """m_i"""


@dataclass(frozen=True, slots=True)
class Targets:
    """U targets of any executions; each tensor is (U,) float64, and only `log_pi` carries a gradient."""

    log_pi: Tensor
    """log pi_theta(y_u | c_u) at the rollout's temperature, nats."""
    log_roll: Tensor
    """Recorded behaviour log-probability, nats."""
    advantage: Tensor
    """A_i of the target's execution."""
    ratio: Tensor
    """s_i of the target's execution."""
    mask: Tensor
    """m_i of the target's execution: 0 or 1."""


Loss = Callable[[Targets, Settings], Tensor]


def decide(log_ratio_sum: float, count: int, advantage: float, settings: Settings) -> Decision:
    """s_i and m_i of an execution from all of its targets at once (eq. 26, 27).

    `s_i = exp(log_ratio_sum / count)`; `m_i = 0` if (A_i > 0 and s_i > ratio_high) or (A_i < 0 and s_i < ratio_low).
    grpo and ppo clip each target by itself: there m_i is always 1.

    Args:
        log_ratio_sum: nats. Sum of log rho_u over **every** target of the execution; a part gives another ratio.
        count: L_i, the number of those targets.
        advantage: A_i, dimensionless.
        settings: the bounds.
    Raises:
        ValueError: no targets, or a sum that is not finite.
    """
    if count < 1:
        raise ValueError(f"count = {count}: an execution without targets has no ratio")
    if not math.isfinite(log_ratio_sum):
        raise ValueError(f"log_ratio_sum = {log_ratio_sum}: every target needs a finite log-probability")
    mean = log_ratio_sum / count
    ratio = math.exp(min(max(mean, -_LARGEST_EXPONENT), _LARGEST_EXPONENT))
    clipped = (advantage > 0 and ratio > settings.ratio_high) or (advantage < 0 and ratio < settings.ratio_low)
    return Decision(ratio, 0 if clipped and settings.variant in ("gyre", "gspo") else 1)


def target_losses(targets: Targets, settings: Settings) -> Tensor:
    """(U,) float64: l_u of the chosen objective, to be weighted by 1 / (B N L_i) and summed."""
    return LOSSES[settings.variant](targets, settings)


def execution_clip(targets: Targets, settings: Settings) -> Tensor:
    """gyre: `l_u = min(loss_cap, -m_i sg[min(rho_u, weight_cap)] A_i log pi_u)` (eq. 28).

    The ratio of the whole execution decides whether it trains; each target is weighed by its own capped ratio.
    """
    weight = _log_ratio(targets).detach().exp().clamp(max=settings.weight_cap)
    loss = -targets.mask * weight * targets.advantage * targets.log_pi
    return loss.clamp(max=settings.loss_cap)


def token_clip(targets: Targets, settings: Settings) -> Tensor:
    """GRPO without KL: `l_u = -min(rho_u A_i, clip(rho_u, low, high) A_i)` (Shao et al. 2024, eq. 3)."""
    ratio = _log_ratio(targets).exp()
    clipped = ratio.clamp(settings.ratio_low, settings.ratio_high)
    return -torch.minimum(ratio * targets.advantage, clipped * targets.advantage)


def dual_clip(targets: Targets, settings: Settings) -> Tensor:
    """PPO-clip (Schulman et al. 2017, eq. 7), in the dual form of Ye et al. 2020 (eq. 5) for negative advantages.

    `l_u = -max(min(rho_u A_i, clip(rho_u) A_i), weight_cap A_i)` where A_i < 0: a target that the policy now finds far
    likelier than the rollout did cannot dominate the batch. Without a critic, A_i is the group's, as everywhere here.
    """
    floor = settings.weight_cap * targets.advantage
    surrogate = -token_clip(targets, settings)
    return -torch.where(targets.advantage < 0, torch.maximum(surrogate, floor), surrogate)


def sequence_clip(targets: Targets, settings: Settings) -> Tensor:
    """GSPO over the execution: `l_u = -min(s_i A_i, clip(s_i, low, high) A_i)` (Zheng et al. 2025, eq. 5, 13).

    `s_i = sg[s_i] pi_u / sg[pi_u]`, so that the mean over T_i has the gradient of s_i A_i, however T_i is packed.
    """
    ratio = targets.ratio * (targets.log_pi - targets.log_pi.detach()).exp()
    clipped = targets.ratio.clamp(settings.ratio_low, settings.ratio_high)
    kept = targets.mask * ratio + (1.0 - targets.mask) * clipped
    return -kept * targets.advantage


LOSSES: Mapping[Variant, Loss] = {
    "gyre": execution_clip,
    "grpo": token_clip,
    "ppo": dual_clip,
    "gspo": sequence_clip,
}


def _log_ratio(targets: Targets) -> Tensor:
    return targets.log_pi - targets.log_roll
