"""One rank's process: `python -m gyre.trainers.megatron.rank DESCRIPTOR`, where a trainer holds the other end.

It does what it is told, one thing at a time, and answers each: every rank is told the same things in the same order, so
that collective operations meet. Rows are the micro-batches of its pipeline, which stays filled between micro-steps.
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from gyre.process import give_back
from gyre.trainers.manifest import Manifest, Written
from gyre.trainers.meeting import meet
from gyre.trainers.megatron import checkpoint
from gyre.trainers.megatron.feeding import Experts, Feeding
from gyre.trainers.megatron.layout import Shard
from gyre.trainers.megatron.model import make_stage
from gyre.trainers.megatron.moments import SharedAdam
from gyre.trainers.megatron.orders import Orders, Through
from gyre.trainers.megatron.pipeline import Pipeline
from gyre.trainers.megatron.routing import Routing
from gyre.trainers.megatron.sums import summed_gradient
from gyre.trainers.ranked import Outcome
from gyre.trainers.ranks import serve
from schemas.training import MicroStepEnqueued


class Rank:
    """A stage of the model on one rank."""

    def __init__(self, orders: Orders, trainer: str) -> None:
        """Meets the others, at the trainer's address, and builds the stage."""
        torch.set_num_threads(orders.threads)
        self._orders = orders
        grid = orders.grid
        layout = orders.layout
        self._place = grid.place(orders.rank)
        device, backend = _where(orders)
        timeout = timedelta(seconds=orders.timeout_seconds)
        meet(trainer, orders.meeting, backend, orders.rank, grid.ranks, timeout)
        parallel_state.initialize_model_parallel(
            grid.tensor,
            grid.pipeline,
            context_parallel_size=grid.context,
            expert_model_parallel_size=grid.expert,
            expert_tensor_parallel_size=1,
        )
        model_parallel_cuda_manual_seed(1)
        self._last = parallel_state.is_pipeline_last_stage()
        self._model = make_stage(
            orders.config,
            layout,
            first=parallel_state.is_pipeline_first_stage(),
            last=self._last,
            sequence=orders.sequence,
        )
        self._model.to(device).eval()
        routing = Routing(self._model, sequence=orders.sequence)
        self._pipeline = Pipeline(self._model, layout.vocabulary, orders.temperature, routing)
        self._pipeline.limit(orders.activation_bytes, grid, self._place, sequence=orders.sequence)
        self._parameters = dict(self._model.named_parameters())
        self._feeding = Feeding(self._pipeline, layout.vocabulary, self._parameters, orders, self._place)
        self._adam: SharedAdam | None = None

    def load(self, shard: Shard) -> None:
        """Take these weights and zero the accumulator."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if not parameter.numel():  # released
                    parameter.data = parameter.data.new_empty(shard[name].shape)
                parameter.copy_(shard[name])  # in place: the optimizer holds on to it
        self.zero()

    def zero(self) -> None:
        """Forget what was accumulated, and what is in the pipeline."""
        self._pipeline.drop()
        for parameter in self._parameters.values():
            parameter.grad = None

    def weights(self) -> Shard:
        """The parameters of this rank."""
        return {name: each.detach().cpu() for name, each in self._parameters.items()}

    def gradient(self) -> Shard:
        """What was accumulated here, and elsewhere of what is held here; of all ranks together."""
        return summed_gradient(self._parameters, self._orders.grid, sequence=self._orders.sequence)

    def apply(self, gradient: Shard) -> None:
        """Update once with the clipped gradient."""
        self._optimizer().apply(gradient)

    def optimizer(self) -> tuple[Shard, Shard, int]:
        """First and second moments, and how many updates there were."""
        return self._optimizer().whole()

    def restore(self, moments: tuple[Shard, Shard, int]) -> None:
        """Take what `optimizer` gave."""
        first, second, updates = moments
        state = {f"first.{name}": each for name, each in first.items()}
        state |= {f"second.{name}": each for name, each in second.items()}
        self._optimizer().restore(state | {"updates": torch.tensor(updates)})

    def save_optimizer(self, folder: Path, sequence: int) -> tuple[dict[str, Written], int]:
        """Write this rank's part of the moments: the files, and how many updates there were; of all ranks together."""
        state = self._optimizer().state()
        return checkpoint.write(self._model, state, folder, sequence), int(state["updates"])

    def load_optimizer(self, folder: Path) -> None:
        """Take this rank's part of what ranks of any layout wrote; of all ranks together."""
        optimizer = self._optimizer()
        optimizer.restore(checkpoint.read(self._model, optimizer.state(), folder))

    def check_files(self, manifest: Manifest, folder: Path, names: list[str]) -> None:
        """Hold these of a checkpoint's files against their digests."""
        manifest.check(folder, names)

    def release(self) -> None:
        """Free parameters, accumulator, moments and what is in the pipeline."""
        self._pipeline.drop()
        self._adam = None
        for parameter in self._parameters.values():
            parameter.grad = None
            parameter.data = parameter.data.new_empty(0)
        give_back()

    def feed(self, ticket: int, enqueued: MicroStepEnqueued, experts: Experts) -> tuple[Through, ...]:
        """See `Feeding`."""
        return self._feeding.feed(ticket, enqueued, experts)

    def drain(self) -> tuple[Through, ...]:
        """See `Feeding`."""
        return self._feeding.drain()

    def measure(self, enqueued: MicroStepEnqueued, experts: Experts) -> Outcome | None:
        """See `Feeding`."""
        return self._feeding.measure(enqueued, experts)

    def _optimizer(self) -> SharedAdam:
        if self._adam is None:
            self._adam = SharedAdam(self._parameters, self._orders.grid, self._orders.adam)
        return self._adam


def _where(orders: Orders) -> tuple[torch.device, str]:
    """Where this rank computes, and the backends of its groups: what is only told lies on the CPU."""
    if orders.backend != "nccl":
        return torch.device("cpu"), orders.backend
    device = torch.device("cuda", orders.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device, "cpu:gloo,cuda:nccl"


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), Rank))
