"""One pass of a causal LM over new tokens, keys and values going into a `SlotCache`.

Any transformers model serves through its own forward. Plain Llamas (nano and SmolLM2 are) have a pass of their own over
the same parameters: for a model as small as nano, transformers' Python costs more than its arithmetic.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from gyre.engines.kv import SlotCache


class Forward(Protocol):
    """A pass over new tokens.

    `ids` and `positions` are (n, T) int64, `mask` is (n, 1, T, window) additive float32, and the cache has been told
    where this pass writes.
    """

    def fill(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> None:
        """Compute keys and values only."""
        ...

    def logits(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        """(n, V) float32: what follows each row's last token."""
        ...


def forward_of(model: Any) -> Forward:
    """The quickest pass that is right for the model."""
    return LlamaForward(model) if _is_plain_llama(model) else ModelForward(model)


class ModelForward:
    """The model's own forward."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def fill(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> None:
        """See `Forward`."""
        self._model.base_model(input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True)

    def logits(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        """See `Forward`."""
        out = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        )
        logits: Tensor = out.logits[:, -1]
        return logits


class LlamaForward:
    """Llama's arithmetic (Touvron et al. 2023), straight over the model's parameters, which may be swapped under it."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        config, inner = model.config, model.model
        self._epsilon = config.rms_norm_eps
        self._dim = int(inner.layers[0].self_attn.head_dim)
        self._groups = int(inner.layers[0].self_attn.num_key_value_groups)
        self._embedding, self._last_norm, self._head = (
            inner.embed_tokens.weight,
            inner.norm.weight,
            model.lm_head.weight,
        )
        self._layers = [_layer_parameters(layer) for layer in inner.layers]
        with torch.inference_mode():
            every = torch.arange(config.max_position_embeddings)[None]
            cosine, sine = inner.rotary_emb(torch.zeros(1), every)  # (1, context, dim)
        # Rotating half negates what comes from the upper half: with the sign in the table, a roll does the rest.
        half = self._dim // 2
        self._cosine, self._sine = cosine[0], torch.cat([-sine[0, :, :half], sine[0, :, half:]], dim=-1)

    def fill(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> None:
        """See `Forward`."""
        self._hidden(ids, positions, mask, cache)

    def logits(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        """See `Forward`."""
        last = self._hidden(ids, positions, mask, cache)[:, -1]
        return functional.linear(self._norm(last, self._last_norm), self._head)

    def _hidden(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        """(n, T, width) before the last norm."""
        hidden = functional.embedding(ids, self._embedding)
        turn = self._cosine[positions][:, None], self._sine[positions][:, None]  # (n, 1, T, dim) each
        for index, (before, query, key, value, out, after, gate, up, down) in enumerate(self._layers):
            normed = self._norm(hidden, before)
            queries = _turned(self._heads(normed, query), *turn)
            keys, values = cache.update(_turned(self._heads(normed, key), *turn), self._heads(normed, value), index)
            hidden = hidden + functional.linear(self._attend(queries, keys, values, mask), out)
            normed = self._norm(hidden, after)
            gated = functional.silu(functional.linear(normed, gate)) * functional.linear(normed, up)
            hidden = hidden + functional.linear(gated, down)
        return hidden

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._epsilon)

    def _heads(self, normed: Tensor, weight: Tensor) -> Tensor:
        """(n, T, width) -> (n, heads, T, dim)."""
        n, size, _ = normed.shape
        return functional.linear(normed, weight).view(n, size, -1, self._dim).transpose(1, 2)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """(n, T, heads * dim). Queries (n, heads, T, dim) share each key-value head in groups."""
        n, heads, size, dim = queries.shape
        if self._groups > 1 and size == 1:  # the group takes the place of the queries: no copy of keys and values
            queries = queries.reshape(n, heads // self._groups, self._groups, dim)
        elif self._groups > 1:
            keys, values = (block.repeat_interleave(self._groups, dim=1) for block in (keys, values))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return mixed.reshape(n, heads, size, dim).transpose(1, 2).reshape(n, size, heads * dim)


def _turned(states: Tensor, cosine: Tensor, signed_sine: Tensor) -> Tensor:
    """Rotary positions, half against half."""
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, -1), signed_sine)


def _layer_parameters(layer: Any) -> tuple[Tensor, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    first = (layer.input_layernorm.weight, *(projection.weight for projection in projections))
    second = (layer.post_attention_layernorm.weight, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight)
    return *first, *second


def _is_plain_llama(model: Any) -> bool:
    """Whether `LlamaForward` computes what the model would: no subclass, no biases, plain rotary positions."""
    if type(model) is not LlamaForCausalLM:
        return False
    config = model.config
    biased = config.attention_bias or config.mlp_bias
    return not biased and config.hidden_act == "silu" and model.model.rotary_emb.rope_type == "default"
