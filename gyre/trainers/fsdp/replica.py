"""A model of Hugging Face sharded over ranks by FSDP2: a layer is whole only while it computes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from gyre.trainers.attention import Run
from gyre.trainers.batches import RowTensors, target_log_probs


class Replica(nn.Module):
    """What one rank holds of a model: nothing until `load`, then its part of every tensor.

    Args:
        model: without content (`empty_model`); it is cut here.
        temperature: the rollout's.
        device: where to compute.
        ranks: over how many; torch.distributed is initialised.
    """

    def __init__(self, model: Any, temperature: float, device: torch.device, ranks: int) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        super().__init__()
        self.model = model
        self._temperature = temperature
        self.device = device
        mesh = init_device_mesh(device.type, (ranks,))
        layers: list[nn.Module] = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
        for each in layers:
            fully_shard(each, mesh=mesh)
        fully_shard(self, mesh=mesh)
        for part in self._parts():
            part.set_gradient_divide_factor(1.0)  # a plain sum: every target's weight is in its segment
            part.set_force_sum_reduction_for_comms(enable=True)  # which gloo has too
        self._materialise()
        self._sharded = {name: cast(DTensor, each) for name, each in model.named_parameters()}
        """The parameters, in order: while it computes, the model has whole ones in their places."""
        self._held = {name: each.untyped_storage().nbytes() for name, each in self.local().items()}
        """Bytes that each part takes."""
        self.free()

    def forward(self, row: RowTensors) -> Tensor:
        """(U,) float64 on the CPU: see `target_log_probs`. Every rank must call it, each with a row of its own."""
        return target_log_probs(self.model, _on(row, self.device), self._temperature).cpu()

    def local(self) -> dict[str, Tensor]:
        """Name -> this rank's part of each parameter: the parameter itself."""
        return {name: each.to_local().detach() for name, each in self._sharded.items()}

    def gradient(self) -> dict[str, Tensor]:
        """Name -> this rank's part of what was accumulated, the sum over all ranks' rows."""
        return {name: _gradient(each) for name, each in self._sharded.items()}

    def load(self, part: Callable[[str], Tensor]) -> None:
        """Take the parts of these names; there is room for them again, if there was none."""
        for name, each in self.local().items():
            if each.untyped_storage().nbytes() < self._held[name]:
                each.untyped_storage().resize_(self._held[name])
            each.copy_(part(name))

    def zero(self) -> None:
        """Forget what was accumulated."""
        for each in self._sharded.values():
            each.grad = None

    def rest(self) -> None:
        """Nothing is whole any more: what was computed had no backward pass that would have seen to it."""
        for part in self._parts():
            part.reshard()

    def free(self) -> None:
        """Give up parameters and gradient."""
        self.rest()
        self.zero()
        for each in self.local().values():
            each.untyped_storage().resize_(0)

    def _materialise(self) -> None:
        """Room for its parts. What a model has besides was computed when it was made."""
        kept = {name: each.clone() for name, each in self.named_buffers()}
        self.to_empty(device=self.device)
        for name, each in self.named_buffers():
            each.copy_(kept[name])

    def _parts(self) -> Iterator[FSDPModule]:
        yield from (each for each in self.modules() if isinstance(each, FSDPModule))


def _gradient(parameter: DTensor) -> Tensor:
    found = parameter.grad
    return torch.zeros_like(parameter.to_local()) if found is None else cast(DTensor, found).to_local()


def _on(row: RowTensors, device: torch.device) -> RowTensors:
    """What the model reads of a row, there; the rest stays on the CPU."""
    if device.type == "cpu":
        return row
    names = ("ids", "positions", "sources", "tokens", "distinct")
    moved: dict[str, Any] = {name: getattr(row, name).to(device) for name in names}
    return replace(row, runs=tuple(_moved(each, device) for each in row.runs), **moved)


def _moved(run: Run, device: torch.device) -> Run:
    path = None if run.path is None else run.path.to(device)
    return replace(run, path=path, mask=None if run.mask is None else run.mask.to(device))
