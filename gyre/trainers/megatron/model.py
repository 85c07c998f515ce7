"""A model of Hugging Face as a stage of megatron-core's GPT model. Imports megatron."""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from gyre.trainers.megatron.attention import GatheredAttention
from gyre.trainers.megatron.grouped import grouped_experts
from gyre.trainers.megatron.layout import Layout
from gyre.trainers.megatron.norm import Norm

if not hasattr(moe_utils, "te_general_gemm"):  # 0.16.1 asks whether it is None, and has it only with transformer-engine
    moe_utils.te_general_gemm = None


def make_stage(config: Mapping[str, Any], layout: Layout, *, first: bool, last: bool, sequence: bool) -> GPTModel:
    """Random weights until they are loaded; routers can be told which experts to take, layers computed again.

    Args:
        config: of the model, complete.
        layout: over how many ranks.
        first: holds the embedding.
        last: holds the head.
        sequence: each rank of a layer norms and routes its part of the tokens only (sequence parallelism).
    """
    more: dict[str, Any] = {"sequence_parallel": sequence and layout.tensor > 1}
    if layout.experts:
        more |= _experts(config, layout)
    layers = [_layer(layout)] * (layout.layers // layout.pipeline)
    return GPTModel(
        _settings(config, layout, more),
        TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm),
        vocab_size=layout.padded,
        max_sequence_length=config["max_position_embeddings"],
        pre_process=first,
        post_process=last,
        parallel_output=True,
        share_embeddings_and_output_weights=layout.tied,
        position_embedding_type="rope",
        rotary_base=config["rope_parameters"]["rope_theta"],
    )


def _layer(layout: Layout) -> ModuleSpec:
    """Megatron's own modules, with our norm, and our attention and experts where its own would not do."""
    spec = get_gpt_layer_local_spec(
        num_experts=layout.experts or None, moe_grouped_gemm=False, qk_layernorm=layout.normed, normalization="RMSNorm"
    )
    parts, attention = spec.submodules, spec.submodules.self_attention.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    if layout.normed:
        attention.q_layernorm = attention.k_layernorm = Norm
    if layout.grouped:
        parts.mlp.submodules.experts = grouped_experts()
    if layout.grid.context > 1:
        attention.core_attention = GatheredAttention
    return spec


def _experts(config: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    return {
        "num_moe_experts": layout.experts,
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_ffn_hidden_size": config["moe_intermediate_size"],
        "moe_router_pre_softmax": not config["norm_topk_prob"],
        "moe_router_load_balancing_type": "none",  # the reward is what is trained on
        "moe_router_dtype": "fp32",
        "moe_enable_routing_replay": True,  # see `routing`
        "expert_model_parallel_size": layout.grid.expert,
        "expert_tensor_parallel_size": 1,
    }


def _settings(config: Mapping[str, Any], layout: Layout, more: Mapping[str, Any]) -> TransformerConfig:
    return TransformerConfig(
        **more,
        num_layers=layout.layers,
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=layout.heads,
        num_query_groups=layout.groups,
        kv_channels=layout.head_dim,
        qk_layernorm=layout.normed,
        tensor_model_parallel_size=layout.tensor,
        context_parallel_size=layout.grid.context,
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
        recompute_granularity="full",  # of as many layers as `recompute` says for each row
        recompute_method="block",
        recompute_num_layers=0,
        # Fused kernels are CUDA's; float32 needs none.
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
