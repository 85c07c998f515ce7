"""The torch trainer's work shared out over ranks by FSDP2: parameters, gradient and optimizer state lie in parts."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gyre.rl.algorithms.port import Settings
from gyre.rl.experts import apart
from gyre.trainers.fsdp.files import shapes_in
from gyre.trainers.fsdp.orders import Orders
from gyre.trainers.fsdp.sharing import Chunks
from gyre.trainers.meeting import Meeting
from gyre.trainers.optimizer import AdamSettings, refuse_misfit
from gyre.trainers.port import TrainerError
from gyre.trainers.ranked import RankedTrainer, parameters_of
from gyre.trainers.ranks import RankProcesses


class RanksRefused(TrainerError):
    """Ranks of this kind cannot run here; names field, value and rule."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Over what a cell's replica is sharded."""

    count: int
    backend: str = "nccl"
    """Of torch.distributed inside the cell; "gloo" without GPUs."""
    threads: int = 1
    timeout_seconds: float = 600.0
    """Longest that a rank waits for another."""


class FsdpTrainer(RankedTrainer):
    """Implements `gyre.trainers.port.Trainer`. Ranks are started at once, and end with this process.

    Args:
        model: folder of a causal language model that the torch trainer takes.
        temperature: the rollout's, above 0.
        settings: the objective.
        adam: the optimizer.
        ranks: how many, and how they speak.
        share_prefixes: compute a prefix that segments of a row have in common once.
        activation_bytes: most that a row's layers keep for the backward pass, at each rank.
    Raises:
        RanksRefused: there are no GPUs for "nccl", or the model has experts.
        RankLost: a rank did not start, for instance because the model cannot be trained; says how it ended.
    """

    def __init__(
        self,
        model: Path,
        temperature: float,
        settings: Settings,
        adam: AdamSettings,
        ranks: Ranks,
        *,
        share_prefixes: bool,
        activation_bytes: int,
    ) -> None:
        if ranks.backend == "nccl" and not torch.cuda.is_available():
            raise RanksRefused('trainer.backend = "nccl": there is no GPU here; set trainer.backend = "gloo"')
        parameters, tied = parameters_of(model)
        if apart(parameters).keys() != parameters.keys():
            raise RanksRefused('trainer.kind = "torch": ranks of FSDP2 hold no experts; set "megatron", or ranks = 1')
        self._meeting = Meeting()
        orders = Orders(
            rank=0,
            ranks=ranks.count,
            model=model,
            temperature=temperature,
            settings=settings,
            adam=replace(adam, clip=math.inf),
            share_prefixes=share_prefixes,
            activation_bytes=activation_bytes,
            backend=ranks.backend,
            meeting=self._meeting.port,
            threads=ranks.threads,
            timeout_seconds=ranks.timeout_seconds,
        )
        every = [replace(orders, rank=each) for each in range(ranks.count)]
        processes = RankProcesses("gyre.trainers.fsdp.rank", every, ranks.threads)
        super().__init__(parameters, tied, Chunks(ranks.count), processes, adam.clip)

    def load(self, weights: Path) -> None:
        """See the port. Each rank reads its own part."""
        self._refuse_others(weights, shapes_in(weights))
        self._ask("load", *([[weights]] * len(self._ranks)))
        self._spoilt = False

    def restore(self, weights: Path, optimizer: Path) -> None:
        """See the port. Each rank reads its own part."""
        refuse_misfit(self._moments(), shapes_in(optimizer), str(optimizer))
        self.load(weights)
        self._ask("restore", *([[optimizer]] * len(self._ranks)))
