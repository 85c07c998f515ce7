"""The optimizer of a rank. Ranks that hold the same parameters share its work and its state. Imports megatron.

Ranks that take different rows, or parts of rows, hold the same: each has the moments of some of their parameters (whole
tensors, about equally many elements each), updates these, and gives them to the others.
"""

from collections.abc import Iterator, Mapping

import torch
from megatron.core import parallel_state
from torch import Tensor, distributed, nn

from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.layout import Shard
from gyre.trainers.optimizer import Adam, AdamSettings

_WHICH = ("first", "second")


class SharedAdam:
    """Moments of this rank's share of its parameters. Ranks call each method together, but for `state`.

    Args:
        parameters: of this rank, by name.
        grid: the ranks.
        settings: without a clip.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], grid: Grid, settings: AdamSettings) -> None:
        self._parameters = {name: each.data for name, each in parameters.items()}
        self._groups = {name: _group(name, grid) for name in parameters}
        self._owners = dict(self._shared_out())
        mine = {name: each for name, each in self._parameters.items() if self._is_mine(name)}
        self._adam = Adam(mine, settings)
        self._mine = tuple(mine)

    def apply(self, gradient: Shard) -> None:
        """Update once with the clipped gradient of all this rank's parameters; raises `UpdateSpoilt`."""
        parts = [gradient[name].reshape(-1).to(self._parameters[name].device) for name in self._mine]
        try:
            self._adam.apply(torch.cat(parts) if parts else torch.zeros(0))
        finally:  # also of weights that are refused: the others wait for theirs
            for name, each in self._parameters.items():
                self._given(name, each)

    def state(self) -> dict[str, Tensor]:
        """See `Adam.state`: of this rank's share."""
        return self._adam.state()

    def whole(self) -> tuple[Shard, Shard, int]:
        """First and second moments of all this rank's parameters, and how many updates there were."""
        state = self.state()
        first, second = (
            {
                name: self._given(name, state.get(f"{which}.{name}", torch.empty_like(each))).cpu()
                for name, each in self._parameters.items()
            }
            for which in _WHICH
        )
        return first, second, int(state["updates"])

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take its share of what may hold more; see `Adam.restore`."""
        self._adam.restore({name: state[name] for name in self.state()})

    def _is_mine(self, name: str) -> bool:
        group = self._groups[name]
        return group is None or distributed.get_rank(group) == self._owners[name]

    def _given(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor as its owner has it."""
        group = self._groups[name]
        if group is not None:
            distributed.broadcast(tensor, group=group, group_src=self._owners[name])
        return tensor

    def _shared_out(self) -> Iterator[tuple[str, int]]:
        """(name, rank in its group) of each parameter: to the one that has the least so far."""
        loads: dict[int, list[int]] = {}
        for name, each in self._parameters.items():
            group = self._groups[name]
            if group is not None:
                held = loads.setdefault(id(group), [0] * distributed.get_world_size(group))
                owner = held.index(min(held))
                held[owner] += each.numel()
                yield name, owner


def _group(name: str, grid: Grid) -> distributed.ProcessGroup | None:
    """Who holds the same parameter; None: nobody else."""
    found: distributed.ProcessGroup | None = None
    if ".mlp.experts." in name:
        found = parallel_state.get_expert_data_parallel_group() if grid.side > grid.expert else None
    elif grid.side > grid.tensor:
        found = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return found
