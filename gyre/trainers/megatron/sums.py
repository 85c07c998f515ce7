"""What the ranks of a replica accumulated, added up where each saw only a part of it. Imports megatron.

Ranks that take different rows (data) or parts of rows (context) add up what they hold alike; with sequence parallelism
each rank of a layer saw its part of the tokens, so that norms and routers are added up among them too, and so are the
norms of queries and keys always, since each rank has its own heads. Experts are added up among those that hold them.
"""

from collections.abc import Mapping

import torch
from megatron.core import parallel_state
from torch import distributed, nn

from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.layout import Shard
from gyre.trainers.stats import Tally

_HEADS = ("q_layernorm", "k_layernorm")
_WHOLE = ("layernorm", "mlp.router.")


def summed_gradient(parameters: Mapping[str, nn.Parameter], grid: Grid, *, sequence: bool) -> Shard:
    """This rank's gradient, on the CPU, with what others hold of it; the accumulators stay as they are.

    All ranks call this together.

    Args:
        parameters: of this rank, by name.
        grid: the ranks.
        sequence: whether the ranks of a layer each saw a part of the tokens.
    """
    found = {
        name: torch.zeros_like(each) if each.grad is None else each.grad.clone() for name, each in parameters.items()
    }
    for name, each in found.items():
        for group in _groups(name, grid, sequence=sequence):
            distributed.all_reduce(each, group=group)
    return {name: each.cpu() for name, each in found.items()}


def gather_over_data(tally: Tally, grid: Grid) -> None:
    """Let each tally be that of all rows, where ranks take different ones; together."""
    if grid.side > grid.tensor:
        tally.add_up(parallel_state.get_data_parallel_group_gloo(with_context_parallel=True))  # tallies lie on the CPU


def _groups(name: str, grid: Grid, *, sequence: bool) -> list[distributed.ProcessGroup]:
    if ".mlp.experts." in name:
        return [parallel_state.get_expert_data_parallel_group()] if grid.side > grid.expert else []
    groups = []
    if grid.side > grid.tensor:
        groups.append(parallel_state.get_data_parallel_group(with_context_parallel=True))
    partly = any(each in name for each in _HEADS) or (sequence and any(each in name for each in _WHOLE))
    if partly and grid.tensor > 1:
        groups.append(parallel_state.get_tensor_model_parallel_group())
    return groups
