"""Rows through the stages of a cell's replica, each a micro-batch. Imports megatron."""

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor, nn

from gyre.trainers.batches import RowTensors
from gyre.trainers.megatron.work import Work
from gyre.trainers.port import AccumulatorSpoilt, MicroStepRefused

_FAR = -1e9


class Pipeline:
    """This rank's stage in it.

    Args:
        model: the stage.
        vocabulary: logits beyond it count for nothing.
        temperature: the rollout's, above 0.
    """

    def __init__(self, model: nn.Module, vocabulary: int, temperature: float) -> None:
        self._model, self._vocabulary, self._temperature = model, vocabulary, temperature

    def run(self, rows: list[RowTensors], work: Work, *, forward_only: bool = False) -> None:
        """One pass over the rows: started up and drained once. All ranks call this with the same rows."""

        def forward(remaining: Iterator[RowTensors], model: nn.Module) -> tuple[Tensor, Any]:
            row = next(remaining)
            logits = model(row.ids, row.positions, attention_mask(row.positions[0]))
            return logits, lambda output: work.loss(self._log_probs(output, row), row, train=not forward_only)

        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(rows),
            model=[self._model],
            num_microbatches=len(rows),
            seq_length=max(row.ids.numel() for row in rows),
            micro_batch_size=1,
            forward_only=forward_only,
        )
        work.agree(AccumulatorSpoilt if not forward_only else MicroStepRefused)

    def _log_probs(self, logits: Tensor, row: RowTensors) -> Tensor:
        """(U,) float64: log pi of each target at the rollout's temperature, nats; logits are (1, T, V / T)."""
        context = logits[0, row.sources].float() / self._temperature  # (D, V / T)
        first = parallel_state.get_tensor_model_parallel_rank() * context.shape[1]
        beyond = torch.arange(first, first + context.shape[1], device=context.device) >= self._vocabulary
        context = context.masked_fill(beyond, _FAR)
        lost: Tensor = vocab_parallel_cross_entropy(context[:, None], row.tokens[:, None].to(context.device))
        return -lost[:, 0][row.distinct].double()


def attention_mask(positions: Tensor) -> Tensor:
    """(1, 1, T, T), True where a place is not seen: what comes later, and what lies in another segment."""
    segment = (positions == 0).cumsum(0)
    order = torch.arange(len(positions))
    seen = (segment[:, None] == segment[None]) & (order[:, None] >= order[None])
    return ~seen[None, None]
