"""Which experts tokens take: those that the engine took (routing replay, R3), or took before. Imports megatron.

What an engine computes in other kernels and another precision now and then routes a token otherwise, which changes its
log-probability far more than rounding does. So each position takes the recorded experts, with the weights that the
router gives them now. Where none are known the router chooses. What it would have chosen is computed all the same, and
told beside: rows that do not line up with their experts show at once.

A layer that is computed again on the way back takes the experts that it took on the way there, whoever chose them:
else rounding could send a token elsewhere, and the gradient would be another function's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from torch import Tensor, nn

from gyre.trainers.batches import RowTensors
from gyre.trainers.replayed import UNKNOWN

Choose = Callable[..., tuple[Tensor, Tensor]]
_ALIKE = 0.2
"""Share of choices that may differ between the way there and the way back; rounding moves far fewer."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a layer's tokens of a row took at this rank."""

    experts: Tensor
    """(t, top k) int16."""
    own: Tensor
    """Which share of them the router would have chosen itself; ()."""


class Routing:
    """The routers of a stage, if it has any.

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
    def of(self, row: RowTensors, agreement: Tensor | None = None) -> Iterator[list[Chosen]]:
        """Run the model on this row inside; then what was chosen in each layer is in what this gives.

        Args:
            row: its `experts`, if any, are those of this stage's layers.
            agreement: (3, executions) float64: choices, overlap and equal likeliest ones are added to it.
        """
        if row.experts is not None and row.holders is not None:
            taken, holders = (each.tensor_split(self._ways)[self._part] for each in (row.experts, row.holders))
            RouterReplay.set_replay_data(list(taken.unbind(1)))
            RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
            for each in self._replays:
                each.count = None if agreement is None else (agreement, holders)
        with self._cleared():
            chosen: list[Chosen] = []
            yield chosen
            chosen += [each.chosen for each in self._replays if each.chosen is not None]

    @contextmanager
    def again(self, chosen: Sequence[Chosen]) -> Iterator[None]:
        """Go backward inside: the first layers are computed again, as many as choices are given.

        Raises:
            RuntimeError: a layer took others than these, or none; the gradient is worth nothing then.
        """
        for replay, each in zip(self._replays, chosen, strict=False):
            replay.before = each
            replay.replay_backward_list = [each.experts]
        RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_BACKWARD)
        with self._cleared():
            yield
            if any(each.replay_backward_list for each in self._replays):
                raise RuntimeError("a layer went backward without taking its experts again")

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        try:
            yield
        finally:
            RouterReplay.clear_global_router_replay_action()
            RouterReplay.clear_global_indices()
            for each in self._replays:
                each.count = each.chosen = each.before = None


class _Replay(RouterReplay):  # type: ignore[misc]
    """One router's."""

    target_topk_idx: Tensor | None
    count: tuple[Tensor, Tensor] | None = None
    """(3, executions) sums, and the execution of each of this rank's tokens, -1 for none."""
    chosen: Chosen | None = None
    """What this pass chose."""
    before: Chosen | None = None
    """What the pass chose that is done again."""

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
        values, own = default_compute_topk(scores, topk, num_groups, group_topk)
        if self.router_replay_action == RouterReplayAction.REPLAY_BACKWARD:
            return self._again(scores, own)
        if self.router_replay_action is None or self.target_topk_idx is None:
            taken = own
        else:
            told = self.target_topk_idx.to(own.device, own.dtype)
            taken = torch.where(told[:, :1] == UNKNOWN, own, told)
            values = scores.gather(1, taken)
            if self.count is not None:
                _compare(told, own, *self.count)
        self.chosen = Chosen(taken.to(torch.int16), _share(taken, own))
        return values, taken

    def _again(self, scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        if self.before is None or not self.replay_backward_list:
            raise RuntimeError("a layer is computed again, and nothing tells which experts it took")
        taken = self.replay_backward_list.pop(0).to(own.dtype)
        if taken.shape != own.shape or bool(_share(taken, own) < self.before.own - _ALIKE):
            raise RuntimeError("a layer is computed again with the experts of other tokens")
        return scores.gather(1, taken), taken


def _replaced(router: Any) -> _Replay:
    replay = _Replay()  # registers itself, in the order of layers
    router.router_replay = replay
    return replay


def _compare(taken: Tensor, own: Tensor, sums: Tensor, holders: Tensor) -> None:
    """taken, own: (tokens, top k)."""
    known = ((taken[:, 0] != UNKNOWN) & (holders.to(taken.device) >= 0)).nonzero()[:, 0]
    ours, theirs = own[known], taken[known]
    overlap = _both(theirs, ours).double().mean(1)
    top = (theirs[:, 0] == ours[:, 0]).double()
    found = torch.stack([torch.ones_like(overlap), overlap, top]).to(sums.device)
    sums.index_add_(1, holders.to(sums.device)[known.to(sums.device)], found)


def _share(taken: Tensor, own: Tensor) -> Tensor:
    """(), 1 where there are no tokens."""
    return _both(taken, own).double().mean().nan_to_num(1.0)


def _both(taken: Tensor, own: Tensor) -> Tensor:
    """(tokens, top k) bool: which of the experts taken are among the router's own."""
    return (taken[:, :, None] == own[:, None]).any(2)
