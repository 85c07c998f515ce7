"""Where each parameter of a Llama of Hugging Face lies among the ranks of megatron-core, there and back.

A rank (tensor t of T, stage p of P) holds L / P layers, and of most tensors one T-th: "column" tensors are cut along
their first dimension, "row" tensors along their second. Queries, keys and values of a key-value group lie together in
one tensor, gate and up projection in another. The vocabulary is filled up to a multiple of T.
Tensors that several ranks hold whole are taken from the first; a tied embedding lies at the first and the last stage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gyre.trainers.port import TrainerError

Shard = dict[str, Tensor]
EMBEDDING, HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
NORM = "decoder.final_layernorm.weight"
_EMBED, _LM_HEAD, _FINAL = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class LayoutRefused(TrainerError):
    """This model cannot be laid out over so many ranks; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A model over T x P ranks.

    Raises:
        LayoutRefused: layers, heads or another family do not fit; names field, value and rule.
    """

    layers: int
    heads: int
    groups: int
    """Key-value heads."""
    head_dim: int
    vocabulary: int
    tied: bool
    tensor: int = 1
    """T"""
    pipeline: int = 1
    """P"""

    @classmethod
    def of(cls, config: Mapping[str, Any], tensor: int, pipeline: int) -> "Layout":
        """For a model's `config.json`."""
        if config["model_type"] != "llama":
            raise LayoutRefused(f"model_type = {config['model_type']}: only llama is laid out over Megatron's ranks")
        heads = config["num_attention_heads"]
        return cls(
            config["num_hidden_layers"],
            heads,
            config["num_key_value_heads"],
            config.get("head_dim") or config["hidden_size"] // heads,
            config["vocab_size"],
            config["tie_word_embeddings"],
            tensor,
            pipeline,
        )

    def __post_init__(self) -> None:
        for name, value, ways in (
            ("num_hidden_layers", self.layers, self.pipeline),
            ("num_key_value_heads", self.groups, self.tensor),
        ):
            if value % ways:
                raise LayoutRefused(f"{name} = {value}: must be a multiple of the {ways} ranks that share it")

    @property
    def padded(self) -> int:
        """Rows of the embedding: the vocabulary, filled up to a multiple of T."""
        return -(-self.vocabulary // self.tensor) * self.tensor

    def shard(self, whole: Mapping[str, Tensor], rank: int, stage: int) -> Shard:
        """What one rank holds, under its names; copies.

        Args:
            whole: Hugging Face name -> tensor.
            rank: t.
            stage: p.
        """
        found: Shard = {}
        first, last = stage == 0, stage == self.pipeline - 1
        if first:
            found[EMBEDDING] = self._row(self._filled(whole[_EMBED]), rank)
        if last:
            found[NORM] = whole[_FINAL].clone()
        if last and not (first and self.tied):
            found[HEAD] = self._row(self._filled(whole[_EMBED if self.tied else _LM_HEAD]), rank)
        for own, layer in self._layers(stage):
            found |= self._layer(whole, own, layer, rank)
        return found

    def whole(self, shards: Sequence[Sequence[Mapping[str, Tensor]]], *, add_tied: bool = False) -> Shard:
        """Inverse of `shard`.

        Args:
            shards: [stage][rank].
            add_tied: of gradients: what a tied embedding got at the first and at the last stage is added up.
        """
        head = self._unfilled([each[HEAD] for each in shards[-1]]) if HEAD in shards[-1][0] else None
        found = {_EMBED: self._unfilled([each[EMBEDDING] for each in shards[0]]), _FINAL: shards[-1][0][NORM]}
        if head is not None and not self.tied:
            found[_LM_HEAD] = head
        elif head is not None and add_tied:
            found[_EMBED] = found[_EMBED] + head
        for stage, ranks in enumerate(shards):
            for own, layer in self._layers(stage):
                found |= self._whole_layer(ranks, own, layer)
        return found

    def _layers(self, stage: int) -> Iterator[tuple[str, str]]:
        """(prefix at the rank, prefix in Hugging Face) of each layer of a stage."""
        count = self.layers // self.pipeline
        for index in range(count):
            yield f"decoder.layers.{index}.", f"model.layers.{stage * count + index}."

    def _layer(self, whole: Mapping[str, Tensor], own: str, layer: str, rank: int) -> Shard:
        per_group, width = self.heads // self.groups, self.head_dim
        query, key, value = (whole[f"{layer}self_attn.{each}_proj.weight"] for each in "qkv")
        parts = (query.view(self.groups, per_group * width, -1), key.view(self.groups, width, -1))
        joined = torch.cat((*parts, value.view(self.groups, width, -1)), 1)  # (G, (H/G + 2) D, hidden)
        gate, up = (whole[f"{layer}mlp.{each}_proj.weight"] for each in ("gate", "up"))
        return {
            f"{own}input_layernorm.weight": whole[f"{layer}input_layernorm.weight"].clone(),
            f"{own}self_attention.linear_qkv.weight": self._row(joined.flatten(0, 1), rank),
            f"{own}self_attention.linear_proj.weight": self._column(whole[f"{layer}self_attn.o_proj.weight"], rank),
            f"{own}pre_mlp_layernorm.weight": whole[f"{layer}post_attention_layernorm.weight"].clone(),
            f"{own}mlp.linear_fc1.weight": torch.cat((self._row(gate, rank), self._row(up, rank))),
            f"{own}mlp.linear_fc2.weight": self._column(whole[f"{layer}mlp.down_proj.weight"], rank),
        }

    def _whole_layer(self, ranks: Sequence[Mapping[str, Tensor]], own: str, layer: str) -> Shard:
        per_group, width = self.heads // self.groups, self.head_dim
        joined = torch.cat([each[f"{own}self_attention.linear_qkv.weight"] for each in ranks])
        by_group = joined.view(self.groups, per_group + 2, width, -1)
        halves = [each[f"{own}mlp.linear_fc1.weight"].chunk(2) for each in ranks]
        hidden = joined.shape[-1]
        return {
            f"{layer}self_attn.q_proj.weight": by_group[:, :per_group].reshape(-1, hidden),
            f"{layer}self_attn.k_proj.weight": by_group[:, per_group].reshape(-1, hidden),
            f"{layer}self_attn.v_proj.weight": by_group[:, per_group + 1].reshape(-1, hidden),
            f"{layer}self_attn.o_proj.weight": _joined(ranks, f"{own}self_attention.linear_proj.weight", 1),
            f"{layer}mlp.gate_proj.weight": torch.cat([gate for gate, _ in halves]),
            f"{layer}mlp.up_proj.weight": torch.cat([up for _, up in halves]),
            f"{layer}mlp.down_proj.weight": _joined(ranks, f"{own}mlp.linear_fc2.weight", 1),
            f"{layer}input_layernorm.weight": ranks[0][f"{own}input_layernorm.weight"],
            f"{layer}post_attention_layernorm.weight": ranks[0][f"{own}pre_mlp_layernorm.weight"],
        }

    def _filled(self, embedding: Tensor) -> Tensor:
        missing = self.padded - self.vocabulary
        return torch.cat((embedding, embedding.new_zeros(missing, embedding.shape[1]))) if missing else embedding

    def _unfilled(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts))[: self.vocabulary]

    def _row(self, tensor: Tensor, rank: int) -> Tensor:
        return tensor.chunk(self.tensor)[rank].clone()

    def _column(self, tensor: Tensor, rank: int) -> Tensor:
        return tensor.chunk(self.tensor, 1)[rank].clone()


def _joined(ranks: Sequence[Mapping[str, Tensor]], name: str, dimension: int) -> Tensor:
    return torch.cat([each[name] for each in ranks], dimension)
