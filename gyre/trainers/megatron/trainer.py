"""A trainer whose replica is laid out over several ranks of megatron-core, each a process of its own.

Weights, gradient and optimizer state leave and enter as the torch trainer has them: whole, under the names of Hugging
Face, in the order of the model's parameters. So cells of either kind, or of other numbers of ranks, add up in one
reduction and go on from each other's files. Only the core's ranks have optimizer state, each of its own parameters.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from gyre.rl.algorithms.port import Settings
from gyre.rl.experts import apart
from gyre.trainers.batches import row_tensors
from gyre.trainers.checkpoint import save_tensors
from gyre.trainers.executions import executions_of
from gyre.trainers.meeting import Meeting
from gyre.trainers.megatron.checkpoint_folder import check_optimizer, restore_optimizer, save_optimizer
from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.in_hand import InHand
from gyre.trainers.megatron.layout import Layout, complete
from gyre.trainers.megatron.orders import Orders
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import AccumulatorSpoilt, Finished, Saved, TrainerError
from gyre.trainers.ranked import RankedTrainer, parameters_of
from gyre.trainers.ranks import RankProcesses
from gyre.trainers.replayed import Read, Shape, experts_of
from gyre.trainers.stream import Ended
from schemas.training import MicroStepEnqueued, Passage


@dataclass(frozen=True, slots=True)
class Ranks:
    """How a cell's replica is laid out."""

    tensor: int = 1
    """Ranks that share each layer."""
    pipeline: int = 1
    """Stages."""
    backend: str = "nccl"
    """Of torch.distributed inside the cell; "gloo" without GPUs."""
    threads: int = 1
    timeout_seconds: float = 600.0
    """Longest that a rank waits for another."""
    data: int = 1
    """Ranks that take rows of a micro-step side by side."""
    expert: int = 1
    """Ranks over which the experts of a layer are spread; divides tensor x data x context."""
    context: int = 1
    """Ranks that share each row."""
    sequence: bool = False
    """Each rank of a layer norms and routes its part of the tokens only. With experts over tensor > 1 always so."""
    checkpoint: Literal["whole", "distributed"] = "whole"
    """Optimizer state as one file under the names of Hugging Face, or in Megatron's format, each rank its own part."""
    replay: bool = True
    """Of experts: each token takes those that the engine took, where its row tells."""
    grouped: bool = False
    """A rank's experts are one grouped product rather than one after the other."""
    activation_bytes: int = 512_000_000
    """Most that a rank's layers keep for the backward pass, of all rows that it holds; see `recompute`."""

    @property
    def grid(self) -> Grid:
        """All of it."""
        return Grid(self.tensor, self.pipeline, self.data, self.expert, self.context)


class MegatronTrainer(RankedTrainer):
    """Implements `gyre.trainers.port.Trainer`. Ranks are started at once, and end with this process.

    Args:
        model: folder of a model in Hugging Face format, of a family that `layout` knows.
        temperature: the rollout's, above 0.
        settings: the objective.
        adam: the optimizer.
        ranks: how the replica is laid out.
        read_experts: the bodies behind the claim checks of the experts that rows tell, for routing replay.
    Raises:
        LayoutRefused: the model cannot be laid out so.
        RankLost: a rank did not start; says how it ended.
    """

    def __init__(
        self,
        model: Path,
        temperature: float,
        settings: Settings,
        adam: AdamSettings,
        ranks: Ranks,
        read_experts: Read | None = None,
    ) -> None:
        config = complete(json.loads((model / "config.json").read_text()))
        self._layout = Layout.of(config, ranks.grid, grouped=ranks.grouped)
        self._read = read_experts if ranks.replay and self._layout.experts else None
        self._taken = Shape(self._layout.layers, config.get("num_experts_per_tok", 0), self._layout.experts)
        self._distributed = ranks.checkpoint == "distributed"
        self._meeting = Meeting()
        orders = Orders(
            rank=0,
            grid=ranks.grid,
            config=config,
            layout=self._layout,
            temperature=temperature,
            settings=settings,
            adam=replace(adam, clip=math.inf),
            backend=ranks.backend,
            meeting=self._meeting.port,
            threads=ranks.threads,
            timeout_seconds=ranks.timeout_seconds,
            sequence=ranks.tensor > 1 and (ranks.sequence or self._layout.experts > 0),
            activation_bytes=ranks.activation_bytes,
        )
        every = [replace(orders, rank=each) for each in range(ranks.grid.ranks)]
        processes = RankProcesses("gyre.trainers.megatron.rank", every, ranks.threads)
        self._hand = InHand(processes.tell, processes.hear, len(processes), ranks.pipeline)
        parameters, tied = parameters_of(model)
        super().__init__(apart(parameters), tied, self._layout, processes, adam.clip)

    @property
    def gradient(self) -> Tensor:
        """See the port."""
        if not self._hand.empty:
            raise TrainerError("gradient: micro-steps are in hand, whose gradient is only partly in it; drain() first")
        return super().gradient

    def load(self, weights: Path) -> None:
        """See the port."""
        super().load(weights)
        self._hand.forget()

    def zero(self) -> None:
        """See the port."""
        super().zero()
        self._hand.forget()

    def release(self) -> None:
        """See the port."""
        super().release()
        self._hand.forget()

    def save(self, folder: Path, sequence: int = 0) -> Saved:
        """See the port."""
        if not self._distributed:
            return super().save(folder, sequence)
        weights = save_tensors(self._whole(self._ask("weights")), folder, "weights")
        return Saved(weights, save_optimizer(self._ask, len(self._ranks), folder, sequence, self._shapes))

    def restore(self, weights: Path, optimizer: Path) -> None:
        """See the port. Of whichever format the optimizer's state is."""
        if not optimizer.is_dir():
            super().restore(weights, optimizer)
            return
        check_optimizer(self._ask, len(self._ranks), optimizer, self._shapes)
        self.load(weights)
        restore_optimizer(self._ask, len(self._ranks), optimizer)

    def micro_step(self, enqueued: MicroStepEnqueued) -> Finished:
        """See the port. Its rows fill the pipeline, and it is drained again."""
        if not self._hand.empty:
            raise TrainerError(f"micro_step {enqueued.micro_step}: others are in hand; begin() it, or drain() first")
        self.begin(enqueued)
        (ended,) = self.drain()
        return ended.found

    @property
    def depth(self) -> int:
        """See `gyre.trainers.stream.Stream`: one at every stage, and one that waits."""
        stages = self._layout.grid.pipeline
        return stages + 1 if stages > 1 else 1

    @property
    def moving(self) -> bool:
        """See `gyre.trainers.stream.Stream`."""
        return self._hand.moving

    @property
    def passage(self) -> Passage | None:
        """See `gyre.trainers.stream.Stream`."""
        return self._hand.passage

    def begin(self, enqueued: MicroStepEnqueued) -> None:
        """See `gyre.trainers.stream.Stream`. It is looked through here: what one rank refused, all would have to."""
        self._refuse_spoilt()
        owners, _ = executions_of(enqueued)
        for row in enqueued.rows:
            row_tensors(row, owners, self._layout.vocabulary, share_prefixes=False)
        self._hand.begin(enqueued, () if self._read is None else experts_of(enqueued, self._taken, self._read))

    def advance(self) -> tuple[Ended, ...]:
        """See `gyre.trainers.stream.Stream`."""
        return self._unless_spoilt(self._hand.advance)

    def drain(self) -> tuple[Ended, ...]:
        """See `gyre.trainers.stream.Stream`."""
        return self._unless_spoilt(self._hand.drain)

    def _unless_spoilt(self, work: Callable[[], tuple[Ended, ...]]) -> tuple[Ended, ...]:
        self._refuse_spoilt()
        try:
            return work()
        except AccumulatorSpoilt:
            self._spoilt = True
            raise

    def _ask(self, name: str, *arguments: Sequence[Any]) -> list[Any]:
        """Tell all ranks, each with arguments of its own if any; what each answers."""
        self._hand.settle()
        return super()._ask(name, *arguments)
