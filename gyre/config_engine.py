"""The tables [engine] and [trainer]: what a cell generates and trains with."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gyre.config_section import Count, Section, refuse


class EngineSection(Section):
    """The rollout engine of each cell; not read where model.path is "modelled"."""

    kind: Literal["torch", "sglang"] = "torch"
    """"torch": in the cell's own process; "sglang": a server that the cell starts, or that runs already."""
    url: str = ""
    """Of a server that runs already, with {cell} for the cell's index; empty: each cell starts one of its own."""
    python: str = ""
    """Interpreter that has SGLang; empty: the one that runs gyre."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `sglang.launch_server`: device, parallelism, memory; {cell} is the cell's index."""
    environment: dict[str, str] = Field(default_factory=dict)
    """What the server's environment has besides the cell's."""
    shared_cache: bool = False
    """Keep keys and values in a folder of the run that all cells' servers read, so that an execution that moves finds
    its own there (hierarchical caching); otherwise they are computed anew."""

    @model_validator(mode="after")
    def _only_sglang_has_a_server(self) -> Self:
        if self.kind == "torch":
            for field in ("url", "python", "arguments", "environment", "shared_cache"):
                if value := getattr(self, field):
                    raise refuse(f"engine.{field}", value, 'is of a server; set engine.kind = "sglang" or leave it out')
        return self


class TrainerSection(Section):
    """The trainer of each cell; not read where model.path is "modelled"."""

    kind: Literal["torch", "megatron"] = "torch"
    """"torch": in the cell's own process, or over `ranks` by FSDP2; "megatron": megatron-core over ranks of its own."""
    ranks: Count = 1
    """Of "torch": processes over which each cell's replica is sharded, each with rows of its own."""
    tensor: Count = 1
    """Ranks that share each layer."""
    pipeline: Count = 1
    """Stages of layers."""
    data: Count = 1
    """Ranks that take rows of a micro-step side by side."""
    expert: Count = 1
    """Ranks over which the experts of each layer are spread; divides tensor x data x context."""
    context: Count = 1
    """Ranks that share each row, each with a part of its tokens."""
    sequence: bool = False
    """Each of the `tensor` ranks norms, and keeps for the backward pass, its part of the tokens only (sequence
    parallelism). A model with experts needs it, and has it, where tensor is above 1."""
    routing_replay: bool = True
    """Of a model with experts: each token takes those in training that it took in the engine (R3)."""
    grouped_experts: bool = False
    """Of "megatron" and a model with experts: those of a rank are one grouped product, not one after the other."""
    checkpoint: Literal["whole", "distributed"] = "whole"
    """Of "megatron": the optimizer's state as one file that the cell gathers, or in Megatron's distributed format, each
    rank its own part."""
    backend: Literal["nccl", "gloo"] = "nccl"
    """Of torch.distributed inside a cell; "gloo" without GPUs."""

    @model_validator(mode="after")
    def _only_megatron_has_ranks(self) -> Self:
        for field in ("tensor", "pipeline", "data", "expert", "context"):
            if self.kind == "torch" and (value := getattr(self, field)) > 1:
                raise refuse(f"trainer.{field}", value, 'is of ranks; set trainer.kind = "megatron" or leave it out')
        for field, usual in (("checkpoint", "whole"), ("grouped_experts", False)):
            if self.kind == "torch" and (value := getattr(self, field)) != usual:
                raise refuse(f"trainer.{field}", value, 'is of Megatron; set trainer.kind = "megatron" or leave it out')
        if self.kind == "megatron" and self.ranks > 1:
            raise refuse("trainer.ranks", self.ranks, 'is of trainer.kind = "torch"; Megatron has tensor and pipeline')
        return self

    @model_validator(mode="after")
    def _experts_are_spread_over_ranks(self) -> Self:
        side = self.tensor * self.data * self.context
        if side % self.expert:
            rule = f"must divide tensor x data x context = {side}: raise one of them, or lower it"
            raise refuse("trainer.expert", self.expert, rule)
        if self.sequence and self.tensor == 1:
            raise refuse("trainer.sequence", True, "is of ranks that share a layer; set trainer.tensor above 1")
        return self
