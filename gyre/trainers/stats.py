"""Sums over one micro-step's targets, an execution at a time, in float64."""

from collections.abc import Mapping

import torch
from torch import Tensor, distributed

from gyre.rl.objective import Decision
from schemas.training import ExecutionStats, MicroStepEnqueued, Moments, RatioMeasured

_LARGEST_EXPONENT = 600.0  # a sum of exp() over a micro-step stays finite in float64


class Tally:
    """Adds up rows; E executions, whose targets may lie in several rows."""

    def __init__(self, executions: int) -> None:
        # targets, log rho, l_u, k3; x, y, x², y², xy of x = log p_roll, y = log pi
        self._sums = torch.zeros(9, executions, dtype=torch.float64)
        self._largest = torch.zeros(executions, dtype=torch.float64)

    def add(self, owner: Tensor, log_pi: Tensor, log_roll: Tensor, loss: Tensor) -> None:
        """Add one row's U targets: owner int64; log_pi, log_roll, nats, and loss float64, no gradients."""
        log_ratio = log_pi - log_roll
        ratio = log_ratio.clamp(max=_LARGEST_EXPONENT).exp()
        found = [torch.ones_like(ratio), log_ratio, loss, ratio - 1.0 - log_ratio]
        columns = torch.stack([*found, log_roll, log_pi, log_roll**2, log_pi**2, log_roll * log_pi])
        self._sums.index_add_(1, owner, columns)
        self._largest.scatter_reduce_(0, owner, log_ratio.abs(), "amax")

    def add_up(self, group: "distributed.ProcessGroup | None" = None) -> None:
        """Add what the other ranks of a group (None: all) found of the same executions; all of them must call this."""
        distributed.all_reduce(self._sums, group=group)
        distributed.all_reduce(self._largest, distributed.ReduceOp.MAX, group=group)

    def ratios(self, enqueued: MicroStepEnqueued, owners: Mapping[str, int]) -> tuple[RatioMeasured, ...]:
        """What a micro-step that only measures found of each of its executions, by their indexes."""
        sums = {execution: self.measured(index) for execution, index in owners.items()}
        return tuple(
            RatioMeasured(
                step=enqueued.step,
                micro_step=enqueued.micro_step,
                execution=execution,
                log_ratio_sum=log_ratio,
                count=count,
            )
            for execution, (log_ratio, count) in sums.items()
        )

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
            moments=Moments(**dict(zip(Moments.model_fields, self._sums[4:, index].tolist(), strict=True))),
        )
