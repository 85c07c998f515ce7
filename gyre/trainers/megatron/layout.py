"""Where each parameter of a model of Hugging Face lies among the ranks of megatron-core, there and back.

Llama, Qwen3 and Qwen3-MoE. A rank (tensor t of T, stage p of P) holds L / P layers, and of most tensors one T-th:
"column" tensors are cut along their first dimension, "row" tensors along their second. Queries, keys and values of a
key-value group lie together in one tensor, gate and up projection in another; experts: see `layout_experts`. The
vocabulary is filled up to a multiple of T.
Tensors that several ranks hold whole are taken from the first; a tied embedding lies at the first and the last stage.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.layout_experts import Experts
from gyre.trainers.port import TrainerError

Shard = dict[str, Tensor]
EMBEDDING, HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
NORM = "decoder.final_layernorm.weight"
FAMILIES = ("llama", "qwen3", "qwen3_moe")
_SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_UNSET = ("attention_bias", "mlp_bias", "use_sliding_window", "mlp_only_layers", *_SOFT_CAPS)
_ONE = ("logits_scaling", "logit_scale")
_ALIGNED = 4  # numbers of 4 bytes in the 16 that torch's grouped product wants
_EMBED, _LM_HEAD, _FINAL = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class LayoutRefused(TrainerError):
    """This model cannot be laid out over so many ranks; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A model over a grid of ranks.

    Raises:
        LayoutRefused: layers, heads, experts or another family do not fit; names field, value and rule.
    """

    layers: int
    heads: int
    groups: int
    """Key-value heads."""
    head_dim: int
    vocabulary: int
    tied: bool
    grid: Grid = Grid()
    normed: bool = False
    """Whether queries and keys are normed."""
    experts: int = 0
    """Of each layer; 0: none, a plain MLP."""
    grouped: bool = False
    """Whether a rank's experts are one grouped product."""

    @classmethod
    def of(cls, config: Mapping[str, Any], grid: Grid, *, grouped: bool = False) -> "Layout":
        """For a model's `config.json`."""
        config = complete(config)
        if grouped:
            _refuse_odd(config)
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            heads=heads,
            groups=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            tied=config["tie_word_embeddings"],
            grid=grid,
            normed=config["model_type"] != "llama",
            experts=expert_count(config),
            grouped=grouped,
        )

    def __post_init__(self) -> None:
        grid = self.grid
        for name, value, ways in (
            ("num_hidden_layers", self.layers, grid.pipeline),
            ("num_key_value_heads", self.groups, grid.tensor),
            ("tensor x context x data", grid.side, grid.expert),
            ("num_experts", self.experts, grid.expert),
        ):
            if value % ways:
                raise LayoutRefused(f"{name} = {value}: must be a multiple of the {ways} ranks that share it")
        if grid.expert > 1 and not self.experts:
            raise LayoutRefused(f"expert = {grid.expert}: this model has no experts to spread; leave it at 1")

    @property
    def tensor(self) -> int:
        """T, ranks that share each layer."""
        return self.grid.tensor

    @property
    def pipeline(self) -> int:
        """P, stages."""
        return self.grid.pipeline

    @property
    def padded(self) -> int:
        """Rows of the embedding: the vocabulary, filled up to a multiple of T."""
        return -(-self.vocabulary // self.tensor) * self.tensor

    def shard(self, whole: Mapping[str, Tensor], rank: int) -> Shard:
        """What one rank holds, under its names; copies.

        Args:
            whole: Hugging Face name -> tensor.
            rank: 0 to the grid's ranks - 1.
        """
        place = self.grid.place(rank)
        found: Shard = {}
        first, last = place.stage == 0, place.stage == self.pipeline - 1
        if first:
            found[EMBEDDING] = self._row(self._filled(whole[_EMBED]), place.tensor)
        if last:
            found[NORM] = whole[_FINAL].clone()
        if last and not (first and self.tied):
            found[HEAD] = self._row(self._filled(whole[_EMBED if self.tied else _LM_HEAD]), place.tensor)
        for own, layer in self._layers(place.stage):
            found |= self._attention(whole, own, layer, place.tensor)
            if self.experts:
                found |= self._mixture.shard(whole, own, layer, place.expert)
            else:
                found |= self._mlp(whole, own, layer, place.tensor)
        return found

    def shards(self, whole: Mapping[str, Tensor]) -> list[Shard]:
        """What each rank holds, in the order of ranks."""
        return [self.shard(whole, rank) for rank in range(self.grid.ranks)]

    def whole(self, shards: Sequence[Mapping[str, Tensor]], *, add_tied: bool = False) -> Shard:
        """Inverse of `shard`.

        Args:
            shards: of all ranks in order. Only the first rank of those that hold the same needs to give it.
            add_tied: of gradients: what a tied embedding got at the first and at the last stage is added up.
        """
        stages = [self._ranks_of(shards, stage) for stage in range(self.pipeline)]
        first, last = stages[0][0], stages[-1][0]
        head = self._unfilled([each[HEAD] for each in last]) if HEAD in last[0] else None
        found = {_EMBED: self._unfilled([each[EMBEDDING] for each in first]), _FINAL: last[0][NORM]}
        if head is not None and not self.tied:
            found[_LM_HEAD] = head
        elif head is not None and add_tied:
            found[_EMBED] = found[_EMBED] + head
        for stage, (ranks, holders) in enumerate(stages):
            for own, layer in self._layers(stage):
                found |= self._whole_attention(ranks, own, layer)
                if self.experts:
                    found[self._mixture.router(layer)] = ranks[0][f"{own}mlp.router.weight"]
                    found |= self._mixture.whole(holders, own, layer)
                else:
                    found |= self._whole_mlp(ranks, own, layer)
        return found

    @property
    def _mixture(self) -> Experts:
        return Experts(self.experts, self.grid.expert, self.grouped)

    def _ranks_of(
        self, shards: Sequence[Mapping[str, Tensor]], stage: int
    ) -> tuple[list[Mapping[str, Tensor]], list[Mapping[str, Tensor]]]:
        """Of a stage: the first ranks that hold each part of a layer, and those that hold each part of its experts."""
        placed = [(self.grid.place(rank), shard) for rank, shard in enumerate(shards)]
        here = [(place, shard) for place, shard in placed if place.stage == stage]
        return [shard for place, shard in here if place.first], [shard for place, shard in here if place.copy == 0]

    def _layers(self, stage: int) -> Iterator[tuple[str, str]]:
        """(prefix at the rank, prefix in Hugging Face) of each layer of a stage."""
        count = self.layers // self.pipeline
        for index in range(count):
            yield f"decoder.layers.{index}.", f"model.layers.{stage * count + index}."

    def _attention(self, whole: Mapping[str, Tensor], own: str, layer: str, rank: int) -> Shard:
        per_group, width = self.heads // self.groups, self.head_dim
        query, key, value = (whole[f"{layer}self_attn.{each}_proj.weight"] for each in "qkv")
        parts = (query.view(self.groups, per_group * width, -1), key.view(self.groups, width, -1))
        joined = torch.cat((*parts, value.view(self.groups, width, -1)), 1)  # (G, (H/G + 2) D, hidden)
        found = {
            f"{own}self_attention.linear_qkv.weight": self._row(joined.flatten(0, 1), rank),
            f"{own}self_attention.linear_proj.weight": self._column(whole[f"{layer}self_attn.o_proj.weight"], rank),
        }
        return found | {mine: whole[theirs].clone() for mine, theirs in self._norms(own, layer)}

    def _norms(self, own: str, layer: str) -> Iterator[tuple[str, str]]:
        """(name at the rank, name in Hugging Face) of what every rank of a stage holds whole."""
        yield f"{own}input_layernorm.weight", f"{layer}input_layernorm.weight"
        yield f"{own}pre_mlp_layernorm.weight", f"{layer}post_attention_layernorm.weight"
        for each in "qk" if self.normed else "":
            yield f"{own}self_attention.{each}_layernorm.weight", f"{layer}self_attn.{each}_norm.weight"

    def _mlp(self, whole: Mapping[str, Tensor], own: str, layer: str, rank: int) -> Shard:
        gate, up = (whole[f"{layer}mlp.{each}_proj.weight"] for each in ("gate", "up"))
        return {
            f"{own}mlp.linear_fc1.weight": torch.cat((self._row(gate, rank), self._row(up, rank))),
            f"{own}mlp.linear_fc2.weight": self._column(whole[f"{layer}mlp.down_proj.weight"], rank),
        }

    def _whole_attention(self, ranks: Sequence[Mapping[str, Tensor]], own: str, layer: str) -> Shard:
        per_group, width = self.heads // self.groups, self.head_dim
        joined = torch.cat([each[f"{own}self_attention.linear_qkv.weight"] for each in ranks])
        by_group = joined.view(self.groups, per_group + 2, width, -1)
        hidden = joined.shape[-1]
        found = {
            f"{layer}self_attn.q_proj.weight": by_group[:, :per_group].reshape(-1, hidden),
            f"{layer}self_attn.k_proj.weight": by_group[:, per_group].reshape(-1, hidden),
            f"{layer}self_attn.v_proj.weight": by_group[:, per_group + 1].reshape(-1, hidden),
            f"{layer}self_attn.o_proj.weight": _joined(ranks, f"{own}self_attention.linear_proj.weight", 1),
        }
        return found | {theirs: ranks[0][mine] for mine, theirs in self._norms(own, layer)}

    def _whole_mlp(self, ranks: Sequence[Mapping[str, Tensor]], own: str, layer: str) -> Shard:
        halves = [each[f"{own}mlp.linear_fc1.weight"].chunk(2) for each in ranks]
        return {
            f"{layer}mlp.gate_proj.weight": torch.cat([gate for gate, _ in halves]),
            f"{layer}mlp.up_proj.weight": torch.cat([up for _, up in halves]),
            f"{layer}mlp.down_proj.weight": _joined(ranks, f"{own}mlp.linear_fc2.weight", 1),
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


def expert_count(config: Mapping[str, Any]) -> int:
    """Experts of each layer, as a `config.json` of any version of transformers says it; 0 for none."""
    return int(config.get("num_experts") or config.get("num_local_experts") or 0)


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's `config.json` with what it leaves to transformers, which also knows how older versions spell it.

    Raises:
        LayoutRefused: it is of another model than those that are laid out here, or transformers refuses it.
    """
    from transformers import AutoConfig

    _refuse_others(config)
    try:
        found: dict[str, Any] = AutoConfig.for_model(**deepcopy(dict(config))).to_dict()
    except Exception as error:  # whatever a damaged config makes transformers raise
        raise LayoutRefused(f"config.json: {' '.join(str(error).split())[:200]}; give a complete one") from error
    return found


def _refuse_others(config: Mapping[str, Any]) -> None:
    """What would be another model than the one that is laid out here."""
    family = config.get("model_type")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}  # in the order of transformers
    kind = rope.get("rope_type", rope.get("type", "default"))
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    by_layer = [name for name, each in rope.items() if isinstance(each, Mapping)]
    other_layers = sorted(set(config.get("layer_types") or ()) - {"full_attention"})
    window = config.get("sliding_window") if family == "llama" else None  # a Qwen3 needs use_sliding_window as well
    for field, value, fits in (
        ("model_type", family, family in FAMILIES),
        ("hidden_act", config.get("hidden_act"), config.get("hidden_act", "silu") == "silu"),
        ("rope_type", kind, kind == "default"),
        ("rope_parameters", by_layer, not by_layer),
        ("partial_rotary_factor", partial, partial in (None, 1)),
        ("layer_types", other_layers, not other_layers),
        ("sliding_window", window, not window),
        ("decoder_sparse_step", config.get("decoder_sparse_step"), config.get("decoder_sparse_step", 1) == 1),
        *((name, config.get(name), not config.get(name)) for name in _UNSET),
        *((name, config.get(name), config.get(name) in (None, 1)) for name in _ONE),
    ):
        if not fits:
            known = f"{', '.join(FAMILIES)} with silu, default rope over whole heads, full attention, no biases"
            rule = f"{known}, a plain linear head, and experts in every layer or in none"
            raise LayoutRefused(f"{field} = {value}: laid out over Megatron's ranks are {rule}")


def _refuse_odd(config: Mapping[str, Any]) -> None:
    """What no grouped product takes."""
    if not expert_count(config):
        raise LayoutRefused("grouped_experts = true: this model has no experts to group; leave it out")
    for field in ("hidden_size", "moe_intermediate_size"):
        if config[field] % _ALIGNED:
            rule = f"grouped experts need a multiple of {_ALIGNED}; set grouped_experts = false"
            raise LayoutRefused(f"{field} = {config[field]}: {rule}")
