"""A trainer that waits instead of computing; what it adds up, updates and writes is real, and tiny.

Its policy is one number a bucket of token ids. A micro-step adds `-A_i w_u` to the bucket of each target u: what gets
lost or counted twice on its way to the sum shows there. Everything counts as trained at the very weights that sampled
it: every ratio is 1, nothing is masked.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from gyre.trainers.buckets import BUCKETS, NAME
from gyre.trainers.checkpoint import load_tensors, save_tensors
from gyre.trainers.optimizer import Adam, AdamSettings, refuse_misfit
from gyre.trainers.port import Applied, Finished, MicroStepRefused, Saved
from schemas.training import ExecutionStats, MicroStepEnqueued, Moments, RatioMeasured, Segment

if TYPE_CHECKING:
    from torch import Tensor

Wait = Callable[[float], None]


class ModelledTrainer:
    """Implements `gyre.trainers.port.Trainer`.

    Args:
        adam: the optimizer; it updates the buckets.
        batch_seconds: all micro-steps of a batch at one cell, wall seconds.
        update_seconds: one update, wall seconds.
        wait: how to wait so many seconds; blocks, so call the trainer from a thread.
    """

    def __init__(
        self, adam: AdamSettings, *, batch_seconds: float, update_seconds: float, wait: Wait = time.sleep
    ) -> None:
        self._parameters = {NAME: torch.zeros(BUCKETS)}
        self._settings = adam
        self._adam: Adam | None = None
        self._batch_seconds, self._update_seconds, self._wait = batch_seconds, update_seconds, wait
        self._gradient = torch.zeros(BUCKETS)

    @property
    def gradient(self) -> "Tensor":
        """See the port."""
        return self._gradient

    def load(self, weights: Path) -> None:
        """See the port."""
        found = load_tensors(weights)
        refuse_misfit(self._parameters, found, str(weights))
        for name, each in self._parameters.items():
            each.copy_(found[name])
        self.zero()

    def zero(self) -> None:
        """See the port."""
        self._gradient.zero_()

    def release(self) -> None:
        """See the port; there is too little to be worth giving back."""
        self.zero()

    def micro_step(self, enqueued: MicroStepEnqueued) -> Finished:
        """See the port. It lasts its share of the batch: the sum of its targets' weights, which is 1 over a batch."""
        parts = [(each, _targets(each)) for row in enqueued.rows for each in row.segments]
        self._wait(self._batch_seconds * sum(each.weight * len(ids) for each, (ids, _) in parts))
        executions: dict[str, list[_Part]] = {}
        for part in parts:
            executions.setdefault(part[0].execution, []).append(part)
        if enqueued.kind == "measure":
            return Finished(measured=tuple(_measured(enqueued, *each) for each in executions.items()))
        for each, (ids, _) in parts:
            said = np.bincount(ids % BUCKETS, minlength=BUCKETS).astype(np.float32)
            self._gradient += torch.from_numpy(said) * (-each.advantage * each.weight)
        return Finished(stats=tuple(_stats(*each) for each in executions.items()))

    def apply(self, reduced: "Tensor") -> Applied:
        """See the port."""
        self._wait(self._update_seconds)
        return self._optimizer().apply(reduced)

    def save(self, folder: Path, sequence: int = 0) -> Saved:
        """See the port. Files are `weights/<digest>.safetensors` and `optimizer/<digest>.safetensors`."""
        weights = save_tensors(self._parameters, folder, "weights")
        return Saved(weights, save_tensors(self._optimizer().state(), folder, "optimizer"))

    def restore(self, weights: Path, optimizer: Path) -> None:
        """See the port."""
        state = load_tensors(optimizer)
        refuse_misfit(self._optimizer().state(), state, str(optimizer))
        self.load(weights)
        self._optimizer().restore(state)

    def _optimizer(self) -> Adam:
        if self._adam is None:
            self._adam = Adam(self._parameters, self._settings)
        return self._adam


_Targets = tuple[NDArray[np.int32], NDArray[np.float32]]
_Part = tuple[Segment, _Targets]


def _targets(segment: Segment) -> _Targets:
    """Token ids and behaviour log-probabilities, nats, of a segment's targets."""
    ids, logprobs = np.frombuffer(segment.ids, "<i4"), np.frombuffer(segment.logprobs, "<f4")
    target = np.frombuffer(segment.target, np.uint8).astype(bool)
    if not len(ids) == len(target) == len(logprobs) or not target.any():
        found = f"ids {len(ids)}, target {len(target)}, logprobs {len(logprobs)} entries"
        raise MicroStepRefused(
            f"execution {segment.execution}, leaf {segment.leaf}: {found}: need equally many, with a target among them"
        )
    return ids[target], logprobs[target]


def _measured(enqueued: MicroStepEnqueued, execution: str, parts: Sequence[_Part]) -> RatioMeasured:
    return RatioMeasured(
        step=enqueued.step,
        micro_step=enqueued.micro_step,
        execution=execution,
        log_ratio_sum=0.0,
        count=sum(len(ids) for _, (ids, _) in parts),
    )


def _stats(execution: str, parts: Sequence[_Part]) -> ExecutionStats:
    """As at equal weights: `l_u = -A_i log p_roll_u`."""
    rolled = np.concatenate([logprobs for _, (_, logprobs) in parts]).astype(np.float64)
    total, squares = float(rolled.sum()), float((rolled**2).sum())
    return ExecutionStats(
        execution=execution,
        targets=sum(len(ids) for _, (ids, _) in parts),
        ratio=1.0,
        mask=1,
        loss=sum(-each.advantage * float(logprobs.sum(dtype=np.float64)) for each, (_, logprobs) in parts),
        max_delta_log_p=0.0,
        k3=0.0,
        moments=Moments(
            sum_rollout=total,
            sum_train=total,
            sum_rollout_squared=squares,
            sum_train_squared=squares,
            sum_product=squares,
        ),
    )
