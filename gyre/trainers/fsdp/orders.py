"""What a rank of FSDP2 is made by."""

from dataclasses import dataclass
from pathlib import Path

from gyre.rl.algorithms.port import Settings
from gyre.trainers.optimizer import AdamSettings


@dataclass(frozen=True, slots=True)
class Orders:
    """Everything about one rank."""

    rank: int
    ranks: int
    model: Path
    """Folder in Hugging Face format."""
    temperature: float
    settings: Settings
    adam: AdamSettings
    """Without a clip: the trainer has clipped."""
    share_prefixes: bool
    activation_bytes: int
    backend: str
    """Of torch.distributed: "nccl" or "gloo"."""
    meeting: int
    """Port of the trainer's `Meeting`."""
    threads: int
    timeout_seconds: float
