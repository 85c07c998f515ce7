"""What a trainer and its ranks tell each other. Imports no megatron."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from gyre.rl.algorithms.port import Settings
from gyre.rl.objective import Decision
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.stats import Tally


@dataclass(frozen=True, slots=True)
class Orders:
    """What a rank is made by."""

    rank: int
    tensor: int
    pipeline: int
    config: Mapping[str, Any]
    """The model's `config.json`."""
    temperature: float
    settings: Settings
    adam: AdamSettings
    """Without a clip: the trainer has clipped."""
    backend: str
    """Of torch.distributed: "nccl" or "gloo"."""
    meeting: str
    """File through which the ranks find each other."""
    threads: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one micro-step gave."""

    owners: dict[str, int]
    """Execution -> its index in the other two."""
    tally: Tally
    decisions: dict[int, Decision]


class Line:
    """A connection between a trainer and a rank that it started, who trust each other. Tensors travel by value."""

    def __init__(self, descriptor: int) -> None:
        """Of a socket."""
        self._connection = Connection(descriptor)

    def send(self, said: object) -> None:
        """Raises OSError when nobody is there."""
        self._connection.send_bytes(pickle.dumps(said, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Raises EOFError when the other has hung up."""
        return pickle.loads(self._connection.recv_bytes())  # noqa: S301 - a process of our own

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
