"""Where the experts of a layer lie among the ranks of megatron-core, there and back. Imports no megatron.

Expert parallelism spreads whole experts: rank e of E holds n / E that follow on each other. The router lies at every
rank. Hugging Face keeps a layer's experts in two tensors while it computes, and in three a piece in files: here they
are called as in files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_KINDS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of each layer, over E ranks."""

    count: int
    """n"""
    ways: int = 1
    """E"""
    grouped: bool = False
    """Whether those of a rank lie in one module (`gyre.trainers.megatron.grouped`)."""

    def router(self, layer: str) -> str:
        """The router's name in Hugging Face, in the layer of this prefix."""
        return f"{layer}mlp.gate.weight"

    def shard(self, whole: Mapping[str, Tensor], own: str, layer: str, rank: int) -> dict[str, Tensor]:
        """What rank e holds of a layer's experts and its router, under its own names; copies.

        Args:
            whole: Hugging Face name -> tensor.
            own: the layer's prefix at the rank.
            layer: its prefix in Hugging Face.
            rank: e.
        """
        found = {f"{own}mlp.router.weight": whole[self.router(layer)].clone()}
        for local, expert in self._of(rank):
            gate, up, down = (whole[f"{layer}mlp.experts.{expert}.{kind}.weight"] for kind in _KINDS)
            both, last = self._names(own, local)
            found |= {both: torch.cat((gate, up)), last: down.clone()}
        return found

    def whole(self, ranks: Sequence[Mapping[str, Tensor]], own: str, layer: str) -> dict[str, Tensor]:
        """Inverse of `shard` for all ranks e, but for the router."""
        found: dict[str, Tensor] = {}
        for rank, shard in enumerate(ranks):
            for local, expert in self._of(rank):
                both, last = self._names(own, local)
                parts = (*shard[both].chunk(2), shard[last])
                theirs = f"{layer}mlp.experts.{expert}."
                found |= {f"{theirs}{kind}.weight": part for kind, part in zip(_KINDS, parts, strict=True)}
        return found

    def _names(self, own: str, local: int) -> tuple[str, str]:
        """At the rank: of gate and up projection, which lie one above the other, and of the down projection."""
        if self.grouped:
            first, second = (f"linear_fc{each}.weight{local}" for each in (1, 2))
        else:
            first, second = (f"local_experts.{local}.linear_fc{each}.weight" for each in (1, 2))
        return f"{own}mlp.experts.{first}", f"{own}mlp.experts.{second}"

    def _of(self, rank: int) -> Iterator[tuple[int, int]]:
        """(number at the rank, number in the layer) of each expert that rank e holds."""
        each = self.count // self.ways
        return ((local, rank * each + local) for local in range(each))
