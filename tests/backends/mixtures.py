"""Tiny mixtures of experts that SGLang serves, and what their routers choose."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gyre.engines.port import Generation
from tests import tiny
from tests.engines.conftest import VOCABULARY

EXPERTS, TOP_K, LAYERS = 8, 2, 2


def make_mixture(seed: int, *, vocabulary: int = VOCABULARY, **more: Any) -> Any:
    """A Qwen3-MoE with random weights, large enough that distributions and choices are far from uniform."""
    return tiny.mixture(
        seed,
        vocab_size=vocabulary,
        intermediate_size=64,
        initializer_range=0.2,
        max_position_embeddings=4096,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        num_hidden_layers=LAYERS,
        **more,
    )


def save(model: Any, folder: Path) -> Path:
    """As SGLang loads it."""
    model.save_pretrained(folder)
    return folder


def chosen(model: Any, prompt: tuple[int, ...], generation: Generation) -> NDArray[np.int64]:
    """(prompt + output - 1, layers, top k): the experts that each position takes, likeliest first."""
    ids = torch.tensor([[*prompt, *generation.output_ids]])
    with torch.inference_mode():
        logits = model(ids, output_router_logits=True).router_logits
    found = torch.stack([each.topk(TOP_K, dim=-1).indices for each in logits], 1)
    return found.numpy()[:-1]


def told(generation: Generation) -> NDArray[np.int64]:
    """(positions, layers, top k) that an engine told."""
    assert generation.routed_experts is not None
    return np.frombuffer(generation.routed_experts, "<i2").reshape(-1, LAYERS, TOP_K).astype(np.int64)
