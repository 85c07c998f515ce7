"""What a trainer and its ranks tell each other. Imports no megatron."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gyre.rl.algorithms.port import Settings
from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.layout import Layout
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.ranked import Outcome


@dataclass(frozen=True, slots=True)
class Orders:
    """What a rank is made by."""

    rank: int
    grid: Grid
    config: Mapping[str, Any]
    """Of the model, complete."""
    layout: Layout
    """Of that model over that grid."""
    temperature: float
    settings: Settings
    adam: AdamSettings
    """Without a clip: the trainer has clipped."""
    backend: str
    """Of torch.distributed: "nccl" or "gloo"."""
    sequence: bool
    """Whether each rank of a layer norms and routes its part of the tokens only."""
    activation_bytes: int
    """Most that a rank's layers keep for the backward pass, of all rows that it holds."""
    meeting: int
    """Port of the trainer's `Meeting`."""
    threads: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Through:
    """A micro-step that is through with a rank: its gradient lies in the accumulator there."""

    ticket: int
    outcome: Outcome | None
    """At the one rank that tells."""
    trouble: str
    """What has spoilt the accumulator; empty: nothing."""
    agreement: Tensor
    """(3, executions): what this rank's routers say of the experts that they took again."""
