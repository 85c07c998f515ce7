"""What becomes of a micro-step's rows at the last stage: ratios, masks, losses. Imports no megatron."""

import torch
from torch import Tensor

from gyre.rl import objective
from gyre.rl.algorithms.port import Settings
from gyre.rl.objective import Decision
from gyre.trainers.batches import RowTensors
from gyre.trainers.losses import slope_of
from gyre.trainers.stats import Tally


class Work:
    """One micro-step on its way through a stage.

    Args:
        ticket: by which trainer and ranks know it.
        owners: execution -> its index.
        advantages: by execution.
        decisions: by execution; what is decided on the way is added.
        settings: the objective.
        rows: how many of them this rank takes.
    """

    def __init__(
        self,
        ticket: int,
        owners: dict[str, int],
        advantages: list[float],
        decisions: dict[int, Decision],
        settings: Settings,
        rows: int,
    ) -> None:
        self.ticket, self.owners, self.advantages, self.decisions = ticket, owners, advantages, decisions
        self.tally = Tally(len(advantages))
        self.agreement = torch.zeros(3, len(advantages), dtype=torch.float64)
        """Of experts taken again at this rank, by execution: choices, overlap, equal likeliest ones; see `routing`."""
        self.spoilt = False
        """Whether log pi was not finite somewhere."""
        self._settings = settings
        self._left = rows

    def decide(self, executions: set[int], measured: Tally) -> None:
        """From all of their targets, where these were seen: only at the last stage."""
        for index in executions:
            total, count = measured.measured(index)
            if count:
                self.decisions[index] = objective.decide(total, count, self.advantages[index], self._settings)

    def measure(self, log_pi: Tensor, row: RowTensors) -> None:
        """Count a row, (U,) float64, nats, without training on it."""
        if not log_pi.isfinite().all():
            self.spoilt = True
        else:
            self.tally.add(row.owner, log_pi, row.log_roll, torch.zeros_like(log_pi))

    def loss(self, log_pi: Tensor, row: RowTensors) -> Tensor:
        """What has the gradient of a row's loss; of a row that came to nothing too, so that the others go on."""
        found = log_pi.detach()
        if not found.isfinite().all():
            self.spoilt = True
            return log_pi.nan_to_num().sum() * 0.0
        slope = slope_of(row, found, self.decisions, self.advantages, self._settings, self.tally)
        return (log_pi * slope).sum()

    def came_back(self) -> bool:
        """Note that a row has gone backward here; whether it was the last one."""
        self._left -= 1
        return not self._left
