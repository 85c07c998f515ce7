"""The paper's adaptation of GSPO, the default: the whole execution's ratio decides, each target has its own weight."""

from torch import Tensor

from gyre.rl.algorithms.port import Settings, Targets


def losses(targets: Targets, settings: Settings) -> Tensor:
    """`l_u = min(loss_cap, -m_i sg[min(rho_u, weight_cap)] A_i log pi_u)` (eq. 28; design §7, Objective)."""
    weight = targets.log_ratio.detach().exp().clamp(max=settings.weight_cap)
    loss = -targets.mask * weight * targets.advantage * targets.log_pi
    return loss.clamp(max=settings.loss_cap)
