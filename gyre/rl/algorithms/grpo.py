"""GRPO without its KL term (Shao et al. 2024): each target is clipped by its own ratio."""

import torch
from torch import Tensor

from gyre.rl.algorithms.port import Settings, Targets


def losses(targets: Targets, settings: Settings) -> Tensor:
    """`l_u = -min(rho_u A_i, clip(rho_u, low, high) A_i)` (eq. 3)."""
    ratio = targets.log_ratio.exp()
    clipped = ratio.clamp(settings.low, settings.high)
    return -torch.minimum(ratio * targets.advantage, clipped * targets.advantage)
