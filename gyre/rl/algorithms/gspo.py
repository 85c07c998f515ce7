"""GSPO over the execution (Zheng et al. 2025): one ratio for all of its targets, which is clipped as a whole."""

from torch import Tensor

from gyre.rl.algorithms.port import Settings, Targets


def losses(targets: Targets, settings: Settings) -> Tensor:
    """`l_u = -min(s_i A_i, clip(s_i, low, high) A_i)` (eq. 5, 13).

    `s_i = sg[s_i] pi_u / sg[pi_u]`, so that the mean over T_i has the gradient of s_i A_i, however T_i is packed.
    """
    ratio = targets.ratio * (targets.log_pi - targets.log_pi.detach()).exp()
    clipped = targets.ratio.clamp(settings.low, settings.high)
    kept = targets.mask * ratio + (1.0 - targets.mask) * clipped
    return -kept * targets.advantage
