"""Tiny models with random weights, always the same ones for a seed: wide enough in their logits to be far from uniform.

Each test says what of the shape is its own.
"""

from typing import Any

import torch

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "tie_word_embeddings": True,
}


def llama(seed: int, **shape: Any) -> Any:
    """Grouped-query attention and a tied head, unless said otherwise."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**(SHAPE | shape))).eval()  # type: ignore[no-untyped-call]


def qwen(seed: int, **shape: Any) -> Any:
    """A Qwen3 likewise, whose queries and keys are normed."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**(SHAPE | {"head_dim": 16} | shape))).eval()  # type: ignore[no-untyped-call]


def mixture(seed: int, **shape: Any) -> Any:
    """A Qwen3-MoE likewise, with a head of its own: eight experts a layer, of which a token takes two."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {
        "moe_intermediate_size": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "head_dim": 16,
        "tie_word_embeddings": False,
        "experts_implementation": "eager",  # others know no float64
    }
    torch.manual_seed(seed)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**(SHAPE | experts | shape))).eval()  # type: ignore[no-untyped-call]
