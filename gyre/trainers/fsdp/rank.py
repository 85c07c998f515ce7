"""One rank's process: `python -m gyre.trainers.fsdp.rank DESCRIPTOR`, where a trainer holds the other end.

Ranks compute at the same time, each a row of its own, since a layer becomes whole by all of them giving their parts. A
rank that has no row left computes one that counts for nothing.
"""

import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from gyre.process import give_back
from gyre.rl import objective
from gyre.rl.objective import Decision
from gyre.trainers.attention import attach
from gyre.trainers.batches import RowTensors, row_tensors
from gyre.trainers.executions import executions_of, spread_over_rows
from gyre.trainers.fsdp.empty import empty_model, lent
from gyre.trainers.fsdp.files import parts_of
from gyre.trainers.fsdp.orders import Orders
from gyre.trainers.fsdp.replica import Replica
from gyre.trainers.fsdp.sharing import Chunks, rounds
from gyre.trainers.losses import slope_of
from gyre.trainers.meeting import meet
from gyre.trainers.optimizer import Adam
from gyre.trainers.port import AccumulatorSpoilt, MicroStepRefused
from gyre.trainers.ranked import Outcome, Shard
from gyre.trainers.ranks import serve
from gyre.trainers.recompute import Recompute
from gyre.trainers.stats import Tally
from gyre.trainers.torch import refuse_untrainable
from schemas.training import MicroStepEnqueued


class Rank:
    """A part of the replica, and this rank's rows."""

    def __init__(self, orders: Orders, trainer: str) -> None:
        """Meets the others, at the trainer's address, and makes the model. Weights come with `load`."""
        torch.set_num_threads(orders.threads)
        self._orders = orders
        device = _met(orders, trainer)
        model, config = empty_model(orders.model)
        refuse_untrainable(config, orders.temperature)
        with lent(model):
            attach(model)
            self._recompute = Recompute(model, orders.activation_bytes)
        self._chunks = Chunks(orders.ranks)
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        self._replica = Replica(model, orders.temperature, device, orders.ranks)
        self._adam: Adam | None = None

    def load(self, weights: Path) -> None:
        """Take this rank's part of a file of weights and zero the accumulator."""
        with parts_of(weights, self._chunks, self._orders.rank) as part:
            self._replica.load(part)
        self._replica.zero()

    def zero(self) -> None:
        """Forget what was accumulated."""
        self._replica.zero()

    def weights(self) -> Shard:
        """This rank's parts of the parameters."""
        return {name: each.cpu() for name, each in self._replica.local().items()}

    def gradient(self) -> Shard:
        """This rank's parts of what all ranks accumulated."""
        return {name: each.cpu() for name, each in self._replica.gradient().items()}

    def apply(self, gradient: Shard) -> None:
        """Update once with the clipped gradient."""
        device = self._replica.device
        self._optimizer().apply(torch.cat([each.reshape(-1) for each in gradient.values()]).to(device))

    def optimizer(self) -> tuple[Shard, Shard, int]:
        """First and second moments, and how many updates there were."""
        state = self._optimizer().state()
        first, second = (
            {name: state[f"{which}.{name}"].cpu() for name in self._replica.local()} for which in ("first", "second")
        )
        return first, second, int(state["updates"])

    def restore(self, optimizer: Path) -> None:
        """Take this rank's part of a file of moments, and how many updates there were."""
        names = self._optimizer().state()
        with parts_of(optimizer, self._chunks, self._orders.rank) as part:
            self._optimizer().restore({name: part(name) for name in names})

    def release(self) -> None:
        """Free parameters, accumulator and moments."""
        self._adam = None
        self._replica.free()
        give_back()

    def micro_step(self, enqueued: MicroStepEnqueued) -> Outcome:
        """Measure, or train into the accumulator. Every rank reads all rows, so that all refuse what is wrong."""
        owners, advantages = executions_of(enqueued)
        share = self._orders.share_prefixes
        rows = [row_tensors(each, owners, self._vocabulary, share_prefixes=share) for each in enqueued.rows]
        if enqueued.kind == "measure":
            return Outcome(owners, self._measured(rows, len(owners)), {})
        decisions = {
            owners[each.execution]: Decision(each.ratio, each.mask)
            for each in enqueued.masks
            if each.execution in owners
        }
        self._decide_spread(rows, decisions, advantages)
        tally = Tally(len(owners))
        troubles = [self._train(*each, decisions, advantages, tally) for each in self._mine(rows)]
        finite = all(each.isfinite().all() for each in self._replica.gradient().values())
        if self._any(any(troubles) or not finite):
            raise AccumulatorSpoilt("the gradient is not finite under these weights: go back to the last good version")
        tally.add_up()
        return Outcome(owners, tally, decisions)

    def _decide_spread(self, rows: list[RowTensors], decisions: dict[int, Decision], advantages: list[float]) -> None:
        """What lies in several rows, of whichever ranks: from all of its targets, before any of them trains."""
        spread = spread_over_rows(rows, len(advantages)) - decisions.keys()
        touched = [row for row in rows if spread & set(row.owner.tolist())]
        if touched:
            tally = self._measured(touched, len(advantages))
            for index in spread:
                decisions[index] = objective.decide(*tally.measured(index), advantages[index], self._orders.settings)

    @torch.no_grad()
    def _measured(self, rows: Sequence[RowTensors], executions: int) -> Tally:
        tally, trouble = Tally(executions), False
        for row, counts in self._mine(rows):
            log_pi = self._replica(row)
            trouble |= not log_pi.isfinite().all()
            if counts:
                tally.add(row.owner, log_pi, row.log_roll, torch.zeros_like(log_pi))
        self._replica.rest()
        if self._any(trouble):
            raise MicroStepRefused("log pi is not finite under these weights: go back to the last good version")
        tally.add_up()
        return tally

    def _train(
        self,
        row: RowTensors,
        counts: bool,
        decisions: dict[int, Decision],
        advantages: list[float],
        tally: Tally,
    ) -> bool:
        """Whether the row is in trouble: all ranks hear of it at the end."""
        self._recompute.prepare(row.ids.numel())
        log_pi: Tensor = self._replica(row)
        finite = bool(log_pi.isfinite().all())
        slope = torch.zeros_like(log_pi)
        if counts and finite:
            slope = slope_of(row, log_pi.detach(), decisions, advantages, self._orders.settings, tally)
        if self._any(bool(slope.any())):  # rows that are masked throughout cost no backward pass
            log_pi.backward(slope)  # type: ignore[no-untyped-call]
        else:
            self._replica.rest()
        return not finite

    def _mine(self, rows: Sequence[RowTensors]) -> Iterator[tuple[RowTensors, bool]]:
        """This rank's rows, one a round, and whether they count: the shortest row is company."""
        tokens = [row.ids.numel() for row in rows]
        shortest = tokens.index(min(tokens))
        for each in rounds(tokens, self._orders.ranks):
            mine = each[self._orders.rank]
            yield rows[shortest if mine is None else mine], mine is not None

    def _any(self, found: bool) -> bool:
        """Whether any rank has found it."""
        flag = torch.tensor([float(found)])
        distributed.all_reduce(flag)
        return bool(flag.item())

    def _optimizer(self) -> Adam:
        if self._adam is None:
            self._adam = Adam(self._replica.local(), self._orders.adam)
        return self._adam


def _met(orders: Orders, trainer: str) -> torch.device:
    """Where this rank computes, once it has met the others."""
    device, backend = torch.device("cpu"), orders.backend
    if orders.backend == "nccl":
        device = torch.device("cuda", orders.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"  # flags and tallies lie on the CPU
    timeout = timedelta(seconds=orders.timeout_seconds)
    meet(trainer, orders.meeting, backend, orders.rank, orders.ranks, timeout)
    return device


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), Rank))
