"""The norm of a layer. Imports torch alone.

That of torch which Megatron wraps will not stand at a part of the tokens (sequence parallelism), though nothing is
otherwise there: its gradient is a part then, and `sums` adds it up.
"""

from typing import Any

from torch import nn


class Norm(nn.RMSNorm):
    """Made as Megatron does."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **more: Any) -> None:
        super().__init__(hidden_size, eps=eps)
