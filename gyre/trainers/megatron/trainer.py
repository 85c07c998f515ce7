"""A trainer whose replica is laid out over several ranks of megatron-core, each a process of its own.

Weights, gradient and optimizer state leave and enter as the torch trainer has them: whole, under the names of Hugging
Face, in the order of the model's parameters. So cells of either kind, or of other numbers of ranks, add up in one
reduction and go on from each other's files. Only the core's ranks have optimizer state, each of its own parameters.
"""

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gyre.rl.algorithms.port import Settings
from gyre.rl.experts import apart
from gyre.trainers.batches import row_tensors
from gyre.trainers.checkpoint import load_tensors, save_tensors
from gyre.trainers.executions import executions_of
from gyre.trainers.megatron.checkpoint_folder import check_optimizer, restore_optimizer, save_optimizer
from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.in_hand import InHand
from gyre.trainers.megatron.layout import Layout, Shard
from gyre.trainers.megatron.orders import Line, Orders
from gyre.trainers.nodes import begin
from gyre.trainers.optimizer import AdamSettings, global_norm, refuse_misfit
from gyre.trainers.port import AccumulatorSpoilt, Applied, Finished, GradientRefused, Saved, TrainerError
from gyre.trainers.ranks import RankLost
from gyre.trainers.replayed import Read, Shape, experts_of
from gyre.trainers.stream import Ended
from schemas.training import MicroStepEnqueued, Passage

_MOMENTS = ("first", "second")


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

    @property
    def grid(self) -> Grid:
        """All of it."""
        return Grid(self.tensor, self.pipeline, self.data, self.expert, self.context)


class MegatronTrainer:
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
        config = json.loads((model / "config.json").read_text())
        self._layout = Layout.of(config, ranks.grid)
        self._read = read_experts if ranks.replay and self._layout.experts else None
        self._taken = Shape(self._layout.layers, config.get("num_experts_per_tok", 0), self._layout.experts)
        self._shapes = _shapes(model)
        self._clip = adam.clip
        self._distributed = ranks.checkpoint == "distributed"
        self._spoilt = False
        self._folder = tempfile.TemporaryDirectory(prefix="gyre-ranks-")
        orders = Orders(
            rank=0,
            grid=ranks.grid,
            config=config,
            temperature=temperature,
            settings=settings,
            adam=replace(adam, clip=math.inf),
            backend=ranks.backend,
            meeting=str(Path(self._folder.name) / "meeting"),
            threads=ranks.threads,
            timeout_seconds=ranks.timeout_seconds,
            sequence=ranks.tensor > 1 and (ranks.sequence or self._layout.experts > 0),
            replay=ranks.replay,
        )
        self._ranks = [_Rank(replace(orders, rank=each), ranks.grid.ranks) for each in range(ranks.grid.ranks)]
        self._hand = InHand(self._tell, self._hear, len(self._ranks), ranks.pipeline)
        try:
            for each in self._ranks:
                each.answer()
        except RankLost:
            self.close()
            raise

    @property
    def gradient(self) -> Tensor:
        """See the port."""
        self._refuse_spoilt()
        if not self._hand.empty:
            raise TrainerError("gradient: micro-steps are in hand, whose gradient is only partly in it; drain() first")
        whole = self._layout.whole(self._ask("gradient"), add_tied=True)
        return torch.cat([whole[name].reshape(-1) for name in self._shapes])

    def load(self, weights: Path) -> None:
        """See the port."""
        found = load_tensors(weights)
        expected = {name: torch.empty(shape, device="meta") for name, shape in self._shapes.items()}
        refuse_misfit(expected, {name: each for name, each in found.items() if name in expected}, str(weights))
        self._ask("load", *([shard] for shard in self._shards(found)))
        self._hand.forget()
        self._spoilt = False

    def zero(self) -> None:
        """See the port."""
        self._ask("zero")
        self._hand.forget()
        self._spoilt = False

    def release(self) -> None:
        """See the port."""
        self._ask("release")
        self._hand.forget()

    def apply(self, reduced: Tensor) -> Applied:
        """See the port."""
        expected = sum(math.prod(shape) for shape in self._shapes.values())
        if reduced.numel() != expected:
            raise GradientRefused(f"gradient of {reduced.numel()} elements: the model has {expected} parameters")
        norm = global_norm(reduced)
        if not math.isfinite(norm):
            raise GradientRefused(f"gradient norm = {norm}: a batch must give finite numbers; weights are unchanged")
        coefficient = min(1.0, self._clip / norm) if norm > 0.0 else 1.0
        parts = torch.split(reduced * coefficient, [math.prod(shape) for shape in self._shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
        self._ask("apply", *([shard] for shard in self._shards(named)))
        return Applied(norm, coefficient)

    def save(self, folder: Path, sequence: int = 0) -> Saved:
        """See the port."""
        weights = save_tensors(self._whole(self._ask("weights")), folder, "weights")
        if self._distributed:
            return Saved(weights, save_optimizer(self._ask, len(self._ranks), folder, sequence, self._shapes))
        moments = self._ask("optimizer")
        state = {"updates": torch.tensor(moments[0][2], dtype=torch.int64)}
        for place, which in enumerate(_MOMENTS):
            whole = self._whole([each[place] for each in moments])
            state |= {f"{which}.{name}": each for name, each in whole.items()}
        return Saved(weights, save_tensors(state, folder, "optimizer"))

    def restore(self, weights: Path, optimizer: Path) -> None:
        """See the port. Of whichever format the optimizer's state is."""
        if optimizer.is_dir():
            check_optimizer(self._ask, len(self._ranks), optimizer, self._shapes)
            self.load(weights)
            restore_optimizer(self._ask, len(self._ranks), optimizer)
            return
        state = load_tensors(optimizer)
        expected = {
            f"{which}.{name}": torch.empty(shape, device="meta")
            for which in _MOMENTS
            for name, shape in self._shapes.items()
        }
        refuse_misfit(expected | {"updates": torch.empty((), device="meta")}, state, str(optimizer))
        self.load(weights)
        whole = [{name: state[f"{which}.{name}"] for name in self._shapes} for which in _MOMENTS]
        first, second = (self._shards(each) for each in whole)
        updates = int(state["updates"])
        self._ask("restore", *([(a, b, updates)] for a, b in zip(first, second, strict=True)))

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

    def _refuse_spoilt(self) -> None:
        if self._spoilt:
            raise AccumulatorSpoilt("a micro-step broke half-way: zero() the accumulator and discard the contribution")

    @property
    def processes(self) -> list[int]:
        """Process ids of the ranks."""
        return [each.process.pid for each in self._ranks]

    def close(self) -> None:
        """End the ranks."""
        for each in self._ranks:
            each.close()
        self._folder.cleanup()

    def _ask(self, name: str, *arguments: list[Any]) -> list[Any]:
        """Tell all ranks, each with arguments of its own if any; what each answers."""
        self._hand.settle()
        for index, rank in enumerate(self._ranks):
            rank.tell(name, arguments[index] if arguments else ())
        return self._hear()

    def _tell(self, name: str, arguments: Sequence[Any]) -> None:
        for rank in self._ranks:
            rank.tell(name, arguments)

    def _hear(self) -> list[Any]:
        answers = [rank.hear() for rank in self._ranks]
        if refused := next((said for well, said in answers if not well), None):
            raise refused
        return [said for _, said in answers]

    def _shards(self, whole: Mapping[str, Tensor]) -> list[Shard]:
        """In the order of ranks."""
        return [self._layout.shard(whole, rank) for rank in range(self._layout.grid.ranks)]

    def _whole(self, shards: list[Shard]) -> Shard:
        whole = self._layout.whole(shards)
        return {name: whole[name].contiguous() for name in self._shapes}


class _Rank:
    """A rank's process, and the line to it."""

    def __init__(self, orders: Orders, count: int) -> None:
        self.process, descriptor = begin("gyre.trainers.megatron.rank", orders.rank, count, orders.threads)
        self._line = Line(descriptor)
        self._number = orders.rank
        self._line.send(orders)

    def tell(self, name: str, arguments: Sequence[Any]) -> None:
        """What to do."""
        try:
            self._line.send((name, arguments))
        except OSError as error:
            raise self._lost() from error

    def hear(self) -> tuple[bool, Any]:
        """Whether it was done, and what was found, or why not."""
        try:
            said: tuple[bool, Any] = self._line.receive()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return said

    def answer(self) -> None:
        """Wait until it is ready."""
        self.hear()

    def close(self) -> None:
        """Hang up, by which it ends."""
        self._line.close()
        self.process.wait()

    def _lost(self) -> RankLost:
        return RankLost(f"rank {self._number} ended with {self.process.wait()}: see what it printed before")


def _shapes(model: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each parameter, in the order in which the torch trainer's gradient has them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        found = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))  # type: ignore[no-untyped-call]
    return {name: tuple(each.shape) for name, each in apart(dict(found.named_parameters())).items()}
