"""Activations that a stage's layers keep for the backward pass, within a budget; what is beyond it is computed again.

First to go is what core attention keeps, which grows with the square of a row and is cheap to compute again; then whole
layers, the first ones first. Whatever is computed again repeats its exchanges with other ranks, so that all ranks of a
stage must decide alike: by numbers that they share, and the longest of the rows that they take side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed, nn

from gyre.trainers.recompute import addresses, saved_bytes

_PROBE = 64  # tokens of the shorter of two rows that are measured
Probe = Callable[[int], object]
"""Takes a made-up row of so many tokens through the stage; what it gives keeps the row's activations alive."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes that a layer keeps of a row of T tokens: `linear` T + `square` T^2."""

    linear: float
    square: float

    @classmethod
    def through(cls, tokens: int, once: float, twice: float) -> "Growth":
        """From what is kept of rows of `tokens` and of 2 `tokens`."""
        return cls((4 * once - twice) / (2 * tokens), (twice - 2 * once) / (2 * tokens**2))

    def of(self, tokens: int) -> float:
        """A row of so many."""
        return self.linear * tokens + self.square * tokens**2


class Recompute:
    """Decides for each row how many of a stage's layers keep their activations.

    Args:
        model: the stage, in eval mode, made to compute layers again.
        budget: most bytes that its layers keep of one row, as a mean over the ranks; the inputs of layers that are
            computed again, and the one that just is, come on top.
        probe: of this stage; all ranks probe together.
    """

    def __init__(self, model: Any, budget: float, probe: Probe) -> None:
        self._decoder: Any = model.decoder
        self._layers: list[Any] = list(self._decoder.layers)
        self._budget = budget
        self._whole, self._lean = (self._growth(model, probe, attention=each) for each in (True, False))

    def prepare(self, tokens: int) -> int:
        """Set the layers up for a row; how many of them will be computed again, from the first one on.

        Args:
            tokens: of the longest of the rows that ranks take side by side.
        """
        layers = len(self._layers)
        if layers * self._whole.of(tokens) <= self._budget:
            return self._keep(layers, attention=True)
        return self._keep(min(layers, int(self._budget / max(self._lean.of(tokens), 1.0))), attention=False)

    def _growth(self, model: nn.Module, probe: Probe, *, attention: bool) -> Growth:
        """Of a layer beyond one that is computed again."""
        beside, found = addresses(model), []
        for length in (_PROBE, 2 * _PROBE):
            self._keep(0, attention=True)
            least = saved_bytes(partial(probe, length), beside)
            self._keep(len(self._layers), attention=attention)
            more = saved_bytes(partial(probe, length), beside) - least
            found.append(_mean(more / len(self._layers), next(model.parameters()).device))
        return Growth.through(_PROBE, *found)

    def _keep(self, kept: int, *, attention: bool) -> int:
        """The last ones keep theirs, with that of core attention or without. What is inside stays in eval mode."""
        again = len(self._layers) - kept
        self._decoder.config.recompute_num_layers = again
        self._decoder.training = again > 0
        for number, layer in enumerate(self._layers):
            of_layer = layer.self_attention
            of_layer.training = of_layer.checkpoint_core_attention = number >= again and not attention
        return again


def _mean(value: float, device: torch.device) -> float:
    """Over all ranks."""
    told = torch.tensor([value], dtype=torch.float64, device=device)
    distributed.all_reduce(told)
    return float(told.item()) / distributed.get_world_size()
