"""Routing replay (R3): Megatron's routers take the experts that the engine took. Imports megatron.

What an engine computes in other kernels and another precision now and then routes a token otherwise, which changes its
log-probability far more than rounding does. So each position takes the recorded experts, with the weights that the
router gives them now. Where none are known the router chooses. What it would have chosen is computed all the same, and
told beside: rows that do not line up with their experts show at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from torch import Tensor, nn

from gyre.trainers.batches import RowTensors
from gyre.trainers.replayed import UNKNOWN

Choose = Callable[..., tuple[Tensor, Tensor]]


class Routing:
    """The routers of a stage.

    Args:
        model: the stage, its routers made to be replayed.
        sequence: each rank of a layer routes its part of the tokens.
    """

    def __init__(self, model: nn.Module, *, sequence: bool) -> None:
        RouterReplay.clear_global_router_replay_instances()
        self._replays = [_replaced(each) for each in model.modules() if isinstance(each, TopKRouter)]
        self._ways = parallel_state.get_tensor_model_parallel_world_size() if sequence else 1
        self._part = parallel_state.get_tensor_model_parallel_rank() if sequence else 0

    @contextmanager
    def of(self, row: RowTensors, agreement: Tensor | None = None) -> Iterator[None]:
        """Run the model on this row inside.

        Args:
            row: its `experts` are those of this stage's layers.
            agreement: (3, executions) float64: choices, overlap and equal likeliest ones are added to it.
        """
        if row.experts is None or row.holders is None:
            yield
            return
        taken, holders = (each.tensor_split(self._ways)[self._part] for each in (row.experts, row.holders))
        RouterReplay.set_replay_data(list(taken.unbind(1)))
        RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
        for each in self._replays:
            each.count = None if agreement is None else (agreement, holders)
        try:
            yield
        finally:
            RouterReplay.clear_global_router_replay_action()
            RouterReplay.clear_global_indices()


class _Replay(RouterReplay):  # type: ignore[misc]
    """One router's."""

    target_topk_idx: Tensor | None
    count: tuple[Tensor, Tensor] | None = None
    """(3, executions) sums, and the execution of each of this rank's tokens, -1 for none."""

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Choose | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As Megatron's, but for positions whose experts are not known; (values, indices), each (tokens, top k)."""
        assert default_compute_topk is not None
        if self.router_replay_action is None or self.target_topk_idx is None:
            return default_compute_topk(scores, topk, num_groups, group_topk)
        own = default_compute_topk(scores.detach(), topk, num_groups, group_topk)[1]
        taken = self.target_topk_idx.to(own.device, own.dtype)
        self.target_topk_idx = torch.where(taken[:, :1] == UNKNOWN, own, taken)
        if self.count is not None:
            _compare(taken, own, *self.count)
        found: tuple[Tensor, Tensor] = super().get_replay_topk(
            scores, topk, num_groups, group_topk, default_compute_topk
        )
        return found


def _replaced(router: Any) -> _Replay:
    replay = _Replay()  # registers itself, in the order of layers
    router.router_replay = replay
    return replay


def _compare(taken: Tensor, own: Tensor, sums: Tensor, holders: Tensor) -> None:
    """taken, own: (tokens, top k)."""
    known = ((taken[:, 0] != UNKNOWN) & (holders.to(taken.device) >= 0)).nonzero()[:, 0]
    ours, theirs = own[known], taken[known]
    overlap = (theirs[:, :, None] == ours[:, None]).any(2).double().mean(1)
    top = (theirs[:, 0] == ours[:, 0]).double()
    found = torch.stack([torch.ones_like(overlap), overlap, top]).to(sums.device)
    sums.index_add_(1, holders.to(sums.device)[known.to(sums.device)], found)
