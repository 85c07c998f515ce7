"""PPO-clip (Schulman et al. 2017), in the dual form of Ye et al. 2020. Without a critic, A_i is the group's."""

import torch
from torch import Tensor

from gyre.rl.algorithms import grpo
from gyre.rl.algorithms.port import Settings, Targets


def losses(targets: Targets, settings: Settings) -> Tensor:
    """`l_u = -max(min(rho_u A_i, clip(rho_u) A_i), weight_cap A_i)` where A_i < 0, else without the max (eq. 5 there).

    A target that the policy now finds far likelier than the rollout did cannot dominate the batch.
    """
    surrogate = -grpo.losses(targets, settings)
    floor = settings.weight_cap * targets.advantage
    return -torch.where(targets.advantage < 0, torch.maximum(surrogate, floor), surrogate)
