"""A row's targets under the objective: what each adds to the loss, and how the loss changes with its log pi."""

import torch
from torch import Tensor

from gyre.rl import objective
from gyre.rl.algorithms.port import Settings
from gyre.rl.objective import Decision
from gyre.trainers.batches import RowTensors
from gyre.trainers.executions import targets_of
from gyre.trainers.stats import Tally


def slope_of(
    row: RowTensors,
    log_pi: Tensor,
    decisions: dict[int, Decision],
    advantages: list[float],
    settings: Settings,
    tally: Tally,
) -> Tensor:
    """(U,) float64: derivative of the row's weighted loss by log pi of each target.

    Args:
        row: U targets on the CPU.
        log_pi: (U,) float64, finite, nats, without gradient.
        decisions: by execution; those of executions that lie in this row alone are added.
        advantages: by execution.
        settings: the objective.
        tally: takes the row in.
    """
    log_ratio = log_pi - row.log_roll
    for index in set(row.owner.tolist()) - decisions.keys():
        mine = log_ratio[row.owner == index]
        decisions[index] = objective.decide(float(mine.sum()), len(mine), advantages[index], settings)
    leaf = log_pi.clone().requires_grad_()
    losses = objective.target_losses(targets_of(row, leaf, decisions, advantages), settings)
    tally.add(row.owner, log_pi, row.log_roll, losses.detach())
    (slope,) = torch.autograd.grad((losses * row.weight).sum(), leaf)
    return slope
