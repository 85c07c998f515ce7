"""The experts of a rank as one grouped product instead of one after the other. Imports megatron.

Megatron's `TEGroupedMLP` lays them out: one linear for all gate and up projections, one activation for all tokens, one
linear for all down projections. Its linears are transformer-engine's; here they are torch's `grouped_mm`, which runs
everywhere, in float32 too, and they hold the same parameters under the same names. `GroupedMLP`, Megatron's older one,
takes the package grouped_gemm and bfloat16 only.
"""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor, nn
from torch.nn.functional import grouped_mm


class GroupedLinear(MegatronModule):  # type: ignore[misc]
    """Made and called as Megatron does those of transformer-engine, without biases.

    Parameters are `weight0`, `weight1` and so on, one for each local expert, (output, input).
    """

    def __init__(
        self, experts: int, inputs: int, outputs: int, *, config: Any, pg_collection: Any, **more: Any
    ) -> None:
        super().__init__(config=config)
        self._experts, self._groups = experts, pg_collection
        for expert in range(experts):
            weight = nn.Parameter(torch.empty(outputs, inputs, dtype=config.params_dtype))
            self.register_parameter(f"weight{expert}", weight)

    @property
    def _weights(self) -> list[Tensor]:
        return [self.get_parameter(f"weight{each}") for each in range(self._experts)]

    def forward(self, tokens: Tensor, counts: Sequence[int]) -> tuple[Tensor, None]:
        """(t, output), and no bias.

        Args:
            tokens: (t, input), those of one expert after those of another.
            counts: how many each expert has.
        """
        ends = torch.tensor(counts, device=tokens.device).cumsum(0).to(torch.int32)
        return _Product.apply(tokens, ends, *self._weights), None  # type: ignore[no-untyped-call]

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None
    ) -> dict[str, ShardedTensor]:
        """As transformer-engine's has it: each expert a part of one tensor of all, like those that stand alone."""
        ranks, rank, copy = self._groups.ep.size(), self._groups.ep.rank(), self._groups.expt_dp.rank()
        return {
            f"{prefix}weight{local}": ShardedTensor.from_rank_offsets(
                f"{prefix}weight",
                weight,
                *sharded_offsets,
                (len(sharded_offsets), rank * self._experts + local, ranks * self._experts),
                replica_id=(0, 0, copy),
                prepend_axis_num=len(sharded_offsets) + 1,
            )
            for local, weight in enumerate(self._weights)
        }


class _Product(torch.autograd.Function):
    """Tokens with the weights of their experts. Keeps none of the copies in which these lie side by side."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, ends: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, ends, *weights)
        return grouped_mm(tokens, torch.stack(weights).transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        tokens, ends, *weights = ctx.saved_tensors
        gradient = given[0].contiguous()
        back = grouped_mm(gradient, torch.stack(weights), offs=ends)
        return back, None, *grouped_mm(gradient.transpose(0, 1), tokens, offs=ends).unbind()


def grouped_experts() -> ModuleSpec:
    """Takes the place of a layer's experts."""
    return ModuleSpec(TEGroupedMLP, submodules=MLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=GroupedLinear))
