"""A Llama of Hugging Face as a stage of megatron-core's GPT model. Imports megatron."""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from gyre.trainers.megatron.layout import Layout


def make_stage(config: Mapping[str, Any], layout: Layout, *, first: bool, last: bool) -> GPTModel:
    """Random weights until they are loaded.

    Args:
        config: the model's `config.json`.
        layout: over how many ranks.
        first: holds the embedding.
        last: holds the head.
    """
    rope = config.get("rope_parameters") or {}
    return GPTModel(
        _settings(config, layout),
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=layout.padded,
        max_sequence_length=config["max_position_embeddings"],
        pre_process=first,
        post_process=last,
        parallel_output=True,
        share_embeddings_and_output_weights=layout.tied,
        position_embedding_type="rope",
        rotary_base=int(rope.get("rope_theta", config.get("rope_theta", 10_000))),
    )


def _settings(config: Mapping[str, Any], layout: Layout) -> TransformerConfig:
    return TransformerConfig(
        num_layers=layout.layers,
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=layout.heads,
        num_query_groups=layout.groups,
        kv_channels=layout.head_dim,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        variable_seq_lengths=True,  # a micro-batch is a row, and rows have different lengths
        moe_token_dispatcher_type="alltoall",  # noqa: S106 - the one that goes with that, even without experts
        normalization="RMSNorm",
        layernorm_epsilon=config["rms_norm_eps"],
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        # Fused kernels are CUDA's; float32 needs none.
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
