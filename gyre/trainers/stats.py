"""Sums over one micro-step's targets, an execution at a time, in float64."""

import torch
from torch import Tensor

from gyre.rl.objective import Decision
from schemas.training import ExecutionStats

_LARGEST_EXPONENT = 600.0  # a sum of exp() over a micro-step stays finite in float64


class Tally:
    """Adds up rows; E executions, whose targets may lie in several rows."""

    def __init__(self, executions: int) -> None:
        self._sums = torch.zeros(4, executions, dtype=torch.float64)  # targets, log rho, l_u, k3
        self._largest = torch.zeros(executions, dtype=torch.float64)

    def add(self, owner: Tensor, log_ratio: Tensor, loss: Tensor) -> None:
        """Add one row's U targets: owner (U,) int64; log_ratio, nats, and loss, both (U,) float64 without gradient."""
        ratio = log_ratio.clamp(max=_LARGEST_EXPONENT).exp()
        columns = torch.stack([torch.ones_like(ratio), log_ratio, loss, ratio - 1.0 - log_ratio])
        self._sums.index_add_(1, owner, columns)
        self._largest.scatter_reduce_(0, owner, log_ratio.abs(), "amax")

    def measured(self, index: int) -> tuple[float, int]:
        """Sum of log rho, nats, and number of targets of execution `index`."""
        return float(self._sums[1, index]), int(self._sums[0, index])

    def stats(self, index: int, execution: str, decision: Decision) -> ExecutionStats:
        """What the completion of the micro-step says about execution `index`."""
        return ExecutionStats(
            execution=execution,
            targets=int(self._sums[0, index]),
            ratio=decision.ratio,
            mask=decision.mask,
            loss=float(self._sums[2, index]),
            max_delta_log_p=float(self._largest[index]),
            k3=max(0.0, float(self._sums[3, index])),
        )
