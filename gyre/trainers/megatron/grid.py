"""Which part of a replica each of its ranks holds, in megatron-core's own order. Imports no megatron.

Ranks are numbered tensor first, then context, data and stage. Of a mixture of experts each expert lies whole at one
rank of every `expert` that stand side by side in a stage, whatever else these share (expert tensor parallelism is 1).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank stands."""

    tensor: int
    """t: which part of each layer that is cut it holds."""
    context: int
    """c: which part of each row it computes."""
    data: int
    """d: which rows it computes."""
    stage: int
    """p"""
    expert: int
    """e: which experts it holds."""
    copy: int
    """0 at the first of the ranks that hold the same experts."""

    @property
    def first(self) -> bool:
        """Whether it is the first of those that hold the same part of what is no expert."""
        return self.data == self.context == 0


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers of ranks."""

    tensor: int = 1
    """T: that share each layer."""
    pipeline: int = 1
    """P: stages."""
    data: int = 1
    """D: that take rows of a micro-step side by side."""
    expert: int = 1
    """E: over which a layer's experts are spread; divides T x C x D."""
    context: int = 1
    """C: that share each row."""

    @property
    def side(self) -> int:
        """Ranks of a stage."""
        return self.tensor * self.context * self.data

    @property
    def ranks(self) -> int:
        """All."""
        return self.side * self.pipeline

    def place(self, rank: int) -> Place:
        """Of rank 0 to `ranks` - 1."""
        stage, beside = divmod(rank, self.side)
        copy, expert = divmod(beside, self.expert)
        rest, tensor = divmod(beside, self.tensor)
        data, context = divmod(rest, self.context)
        return Place(tensor, context, data, stage, expert, copy)
