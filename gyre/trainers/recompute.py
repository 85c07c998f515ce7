"""Activations that layers keep for the backward pass, within a budget; layers beyond it are computed again there."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

_PROBE = 8  # tokens of the pass that is measured


class Recompute:
    """Decides for each row how many of a model's decoder layers keep their activations.

    Args:
        model: a causal language model of transformers, in eval mode.
        budget: most bytes kept over all layers; the one layer that is being computed again comes on top.
    """

    def __init__(self, model: Any, budget: int) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        self._layers: list[Any] = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
        for each in self._layers:
            each.gradient_checkpointing = True
            each._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # noqa: SLF001 - its documented hook
        self._budget = budget
        self._layer_bytes = (
            saved_bytes(partial(_short_pass, model), addresses(model)) / _PROBE / max(1, len(self._layers))
        )

    def prepare(self, tokens: int) -> int:
        """Set the layers up for a row of so many tokens; returns how many of them keep their activations."""
        kept = min(len(self._layers), int(self._budget / (tokens * self._layer_bytes)))
        for place, layer in enumerate(self._layers):
            layer.training = place >= kept  # of the layer alone: what is inside stays in eval mode
        return kept


def saved_bytes(work: Callable[[], object], beside: set[int]) -> int:
    """What autograd keeps of some work for its backward pass: storages but those at the addresses `beside`, bytes."""
    kept: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in beside:
            kept[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        output = work()
    del output  # until here it keeps what was noted alive, so that no address was counted twice
    return sum(kept.values())


def addresses(model: nn.Module) -> set[int]:
    """Of its weights' storages."""
    return {each.untyped_storage().data_ptr() for each in model.parameters()}


def _short_pass(model: Any) -> object:
    """In which no layer is computed again."""
    return model.base_model(input_ids=torch.zeros(1, _PROBE, dtype=torch.int64), use_cache=False)
