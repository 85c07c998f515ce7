"""What becomes of a micro-step's rows at the last stage: ratios, masks, losses. Imports no megatron."""

import torch
from torch import Tensor, distributed

from gyre.rl import objective
from gyre.rl.algorithms.port import Settings
from gyre.rl.objective import Decision
from gyre.trainers.batches import RowTensors
from gyre.trainers.executions import targets_of
from gyre.trainers.port import TrainerError
from gyre.trainers.stats import Tally


class Work:
    """One micro-step's rows, or their measurement."""

    def __init__(
        self, decisions: dict[int, Decision], advantages: list[float], settings: Settings, tally: Tally, rows: int
    ) -> None:
        """Of executions by index: what is decided already (the rest is added), and their advantages; of all, rows."""
        self._decisions, self._advantages, self._settings, self.tally = decisions, advantages, settings, tally
        self._rows = rows
        self._trouble = False

    def decide(self, spread: set[int], measured: Tally) -> None:
        """What lies in several rows, from all of its targets."""
        for index in spread:
            total, count = measured.measured(index)
            if count:
                self._decisions[index] = objective.decide(total, count, self._advantages[index], self._settings)

    def loss(self, log_pi: Tensor, row: RowTensors, *, train: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """A row's loss, for the pipeline, which divides it by the number of rows."""
        found = log_pi.detach()
        if not found.isfinite().all():
            self._trouble = True
            return log_pi.nan_to_num().sum() * 0.0, {}
        if not train:
            self.tally.add(row.owner, found, row.log_roll, torch.zeros_like(found))
            return log_pi.sum() * 0.0, {}
        for index in set(row.owner.tolist()) - self._decisions.keys():
            ratios = (found - row.log_roll)[row.owner == index]
            self._decisions[index] = objective.decide(
                float(ratios.sum()), len(ratios), self._advantages[index], self._settings
            )
        leaf = found.requires_grad_()
        losses = objective.target_losses(targets_of(row, leaf, self._decisions, self._advantages), self._settings)
        self.tally.add(row.owner, found.detach(), row.log_roll, losses.detach())
        (slope,) = torch.autograd.grad((losses * row.weight).sum(), leaf)
        return (log_pi * slope).sum() * self._rows, {}

    def agree(self, kind: type[TrainerError]) -> None:
        """Raise at every rank what one of them found."""
        flag = torch.tensor([float(bool(self._trouble))])
        distributed.all_reduce(flag)
        if flag.item():
            raise kind("log pi is not finite under these weights: go back to the last good version")
