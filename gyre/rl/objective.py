"""The chosen objective, and the execution-level decision behind it (design §7; the paper's eq. 26-28).

Weighting by 1 / (B N L_i) and summing is the caller's: gradients of micro-steps are a plain sum.
What is left out: KL and entropy terms, a reference policy, a critic.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gyre.rl.algorithms import decoupled, grpo, gspo, gyre, ppo
from gyre.rl.algorithms.clip import CLIPS, Name
from gyre.rl.algorithms.port import Algorithm, Settings, Targets

ALGORITHMS: Mapping[Name, Algorithm] = {
    "gyre": gyre.losses,
    "gspo": gspo.losses,
    "grpo": grpo.losses,
    "ppo": ppo.losses,
    "decoupled": decoupled.losses,
}

_LARGEST_EXPONENT = 700.0  # exp() of more overflows float64; a ratio has to stay finite and above zero


@dataclass(frozen=True, slots=True)
class Decision:
    """What holds for all targets of one execution, in whichever row or micro-step they lie."""

    ratio: float
    """s_i"""
    mask: Literal[0, 1]
    """m_i"""


def decide(log_ratio_sum: float, count: int, advantage: float, settings: Settings) -> Decision:
    """s_i and m_i of an execution from all of its targets at once (eq. 26, 27).

    `s_i = exp(log_ratio_sum / count)`; `m_i = 0` if (A_i > 0 and s_i > ratio_high) or (A_i < 0 and s_i < ratio_low).
    Algorithms that clip each target by itself have m_i = 1 always.

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
    clipped = (advantage > 0 and ratio > settings.high) or (advantage < 0 and ratio < settings.low)
    return Decision(ratio, 0 if clipped and CLIPS[settings.algorithm].whole else 1)


def target_losses(targets: Targets, settings: Settings) -> Tensor:
    """(U,) float64: l_u of the chosen algorithm, to be weighted by 1 / (B N L_i) and summed."""
    return ALGORITHMS[settings.algorithm](targets, settings)
