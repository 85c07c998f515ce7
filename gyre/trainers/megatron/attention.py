"""Attention of tokens that stand at several ranks (context parallelism). Imports megatron.

Megatron's own local attention knows no context parallelism, and that of transformer-engine no segments in float32. Here
each rank gathers the keys and values of its row from the others, and its queries meet those that they may see.
"""

import math
from typing import Any

from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from torch import Tensor


class GatheredAttention(MegatronModule):  # type: ignore[misc]
    """Takes the place of a layer's core attention; made and called as Megatron does."""

    def __init__(
        self, config: Any, layer_number: int, *args: Any, softmax_scale: float | None = None, **more: Any
    ) -> None:
        super().__init__(config=config)
        self._scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)
        self._group = parallel_state.get_context_parallel_group()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **more: Any) -> Tensor:
        """(t, 1, H D) of this rank's t tokens.

        Args:
            query: (t, 1, H, D)
            key: (t, 1, G, D)
            value: (t, 1, G, D)
            attention_mask: (1, 1, t, T), True where a query does not see a key; keys rank by rank.
            more: what other attentions need.
        """
        tokens, _, heads, width = query.shape
        keys, values = (self._of_all(each, heads) for each in (key, value))  # (H, T, D)
        scores = (query[:, 0].transpose(0, 1) @ keys.transpose(1, 2)).float() * self._scale
        seen = scores.masked_fill(attention_mask[0], float("-inf")).softmax(-1).type_as(values)
        return (seen @ values).transpose(0, 1).reshape(tokens, 1, heads * width)

    def _of_all(self, own: Tensor, heads: int) -> Tensor:
        whole: Tensor = gather_from_sequence_parallel_region(own[:, 0].contiguous(), group=self._group)
        return whole.repeat_interleave(heads // whole.shape[1], 1).transpose(0, 1)
