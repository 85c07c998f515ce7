"""One rank's process: `python -m gyre.trainers.megatron.rank DESCRIPTOR`, where a trainer holds the other end.

It does what it is told, one thing at a time, and answers each: every rank is told the same things in the same order, so
that collective operations meet. Rows are the micro-batches of one pass of the pipeline (1F1B with several stages).
"""

import contextlib
import os
import sys
from datetime import timedelta

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch import distributed

from gyre.rl.objective import Decision
from gyre.trainers.batches import RowTensors, row_tensors
from gyre.trainers.executions import executions_of, spread_over_rows
from gyre.trainers.megatron.layout import Layout, Shard
from gyre.trainers.megatron.model import make_stage
from gyre.trainers.megatron.orders import Line, Orders, Outcome
from gyre.trainers.megatron.pipeline import Pipeline
from gyre.trainers.megatron.work import Work
from gyre.trainers.optimizer import Adam
from gyre.trainers.port import AccumulatorSpoilt, TrainerError
from gyre.trainers.stats import Tally
from schemas.training import MicroStepEnqueued


class Rank:
    """A stage of the model on one rank."""

    def __init__(self, orders: Orders) -> None:
        """Meets the others, and builds the stage."""
        self._orders = orders
        layout = self._layout = Layout.of(orders.config, orders.tensor, orders.pipeline)
        store = distributed.FileStore(  # type: ignore[attr-defined]
            orders.meeting, layout.tensor * layout.pipeline
        )
        distributed.init_process_group(
            orders.backend,
            store=store,
            rank=orders.rank,
            world_size=layout.tensor * layout.pipeline,
            timeout=timedelta(seconds=orders.timeout_seconds),
        )
        parallel_state.initialize_model_parallel(layout.tensor, layout.pipeline)
        model_parallel_cuda_manual_seed(1)
        self._last = parallel_state.is_pipeline_last_stage()
        self._model = make_stage(
            orders.config, layout, first=parallel_state.is_pipeline_first_stage(), last=self._last
        ).eval()
        self._pipeline = Pipeline(self._model, layout.vocabulary, orders.temperature)
        self._parameters = dict(self._model.named_parameters())
        self._adam: Adam | None = None

    def load(self, shard: Shard) -> None:
        """Take these weights and zero the accumulator."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.data = shard[name].to(parameter.device, parameter.dtype)
        self.zero()

    def zero(self) -> None:
        """Forget what was accumulated."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def weights(self) -> Shard:
        """The parameters of this rank."""
        return {name: each.detach().cpu() for name, each in self._parameters.items()}

    def gradient(self) -> Shard:
        """What was accumulated here."""
        return {
            name: (torch.zeros_like(each) if each.grad is None else each.grad).cpu()
            for name, each in self._parameters.items()
        }

    def apply(self, gradient: Shard) -> None:
        """Update once with the clipped gradient."""
        flat = torch.cat([gradient[name].reshape(-1) for name in self._parameters])
        self._optimizer().apply(flat)

    def optimizer(self) -> tuple[Shard, Shard, int]:
        """First and second moments, and how many updates there were."""
        state = self._optimizer().state()
        first, second = (
            {name: state[f"{which}.{name}"].cpu() for name in self._parameters} for which in ("first", "second")
        )
        return first, second, int(state["updates"])

    def restore(self, moments: tuple[Shard, Shard, int]) -> None:
        """Take what `optimizer` gave."""
        first, second, updates = moments
        state = {f"first.{name}": each for name, each in first.items()}
        state |= {f"second.{name}": each for name, each in second.items()}
        self._optimizer().restore(state | {"updates": torch.tensor(updates)})

    def release(self) -> None:
        """Free parameters, accumulator and moments."""
        self._adam = None
        for parameter in self._parameters.values():
            parameter.grad = None
            parameter.data = parameter.data.new_empty(0)

    def micro_step(self, enqueued: MicroStepEnqueued) -> Outcome | None:
        """Measure, or train into the accumulator; what was found, at the last stage's first rank."""
        owners, advantages = executions_of(enqueued)
        rows = [row_tensors(each, owners, self._layout.vocabulary, share_prefixes=False) for each in enqueued.rows]
        if enqueued.kind == "measure":
            tally = self._measure(rows, len(owners))
            return self._told(Outcome(owners, tally, {}))
        decisions = {
            owners[each.execution]: Decision(each.ratio, each.mask)
            for each in enqueued.masks
            if each.execution in owners
        }
        work = Work(decisions, advantages, self._orders.settings, Tally(len(owners)), len(rows))
        spread = spread_over_rows(rows, len(advantages)) - decisions.keys()
        if spread:
            work.decide(spread, self._measure(rows, len(advantages)))
        self._pipeline.run(rows, work)
        if not all(each.grad is None or each.grad.isfinite().all() for each in self._parameters.values()):
            raise AccumulatorSpoilt("the gradient is not finite under these weights: go back to the last good version")
        return self._told(Outcome(owners, work.tally, decisions))

    def _measure(self, rows: list[RowTensors], executions: int) -> Tally:
        work = Work({}, [0.0] * executions, self._orders.settings, Tally(executions), len(rows))
        self._pipeline.run(rows, work, forward_only=True)
        return work.tally

    def _told(self, outcome: Outcome) -> Outcome | None:
        return outcome if self._last and parallel_state.get_tensor_model_parallel_rank() == 0 else None

    def _optimizer(self) -> Adam:
        if self._adam is None:
            data = {name: each.data for name, each in self._parameters.items()}
            self._adam = Adam(data, self._orders.adam)
        return self._adam


def main(descriptor: int) -> int:
    """Serve until the trainer hangs up."""
    told = Line(descriptor)
    orders: Orders = told.receive()
    torch.set_num_threads(orders.threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank = Rank(orders)
    told.send((True, None))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the trainer is gone
        while True:
            name, arguments = told.receive()
            try:
                told.send((True, getattr(rank, name)(*arguments)))
            except TrainerError as error:
                told.send((False, error))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
