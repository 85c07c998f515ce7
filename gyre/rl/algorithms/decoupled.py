"""PPO-clip with the behaviour policy and the proximal policy apart (Hilton et al. 2022).

Old rollouts are weighed by how the proximal policy differs from the one that sampled them; the clip holds the new
policy near the proximal one only. With one update a batch the proximal policy is the batch's own weights: then the
clip never acts, and what is left is the policy gradient with capped importance weights.
"""

import torch
from torch import Tensor

from gyre.rl.algorithms.port import Settings, Targets


def losses(targets: Targets, settings: Settings) -> Tensor:
    """`l_u = -w_u min(r_u A_i, clip(r_u, low, high) A_i)` (eq. 3).

    `r_u = pi_u / pi_prox`, `w_u = sg[min(pi_prox / p_roll, weight_cap)]`.
    """
    log_prox = targets.log_pi.detach() if targets.log_prox is None else targets.log_prox
    weight = (log_prox - targets.log_roll).exp().clamp(max=settings.weight_cap)
    ratio = (targets.log_pi - log_prox).exp()
    clipped = ratio.clamp(settings.low, settings.high)
    return -weight * torch.minimum(ratio * targets.advantage, clipped * targets.advantage)
