"""A trainer whose replica is laid out over several ranks of megatron-core, each a process of its own.

Weights, gradient and optimizer state leave and enter as the torch trainer has them: whole, under the names of Hugging
Face, in the order of the model's parameters. So cells of either kind, or of other numbers of ranks, add up in one
reduction and go on from each other's files. Only the core's ranks have optimizer state, each of its own parameters.
"""

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyre.rl.algorithms.port import Settings
from gyre.trainers.checkpoint import load_tensors, save_tensors
from gyre.trainers.megatron.layout import Layout, Shard
from gyre.trainers.megatron.orders import Line, Orders, Outcome
from gyre.trainers.optimizer import AdamSettings, global_norm, refuse_misfit
from gyre.trainers.port import AccumulatorSpoilt, Applied, Finished, GradientRefused, Saved, TrainerError
from schemas.training import MicroStepEnqueued, RatioMeasured

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


class RankLost(TrainerError):
    """A rank ended; its cell has to be started anew."""


class MegatronTrainer:
    """Implements `gyre.trainers.port.Trainer`. Ranks are started at once, and end with this process.

    Args:
        model: folder of a Llama in Hugging Face format.
        temperature: the rollout's, above 0.
        settings: the objective.
        adam: the optimizer.
        ranks: how the replica is laid out.
    Raises:
        LayoutRefused: the model cannot be laid out so.
        RankLost: a rank did not start; says how it ended.
    """

    def __init__(self, model: Path, temperature: float, settings: Settings, adam: AdamSettings, ranks: Ranks) -> None:
        config = json.loads((model / "config.json").read_text())
        self._layout = Layout.of(config, ranks.tensor, ranks.pipeline)
        self._shapes = _shapes(model)
        self._clip = adam.clip
        self._spoilt = False
        self._folder = tempfile.TemporaryDirectory(prefix="gyre-ranks-")
        orders = Orders(
            rank=0,
            tensor=ranks.tensor,
            pipeline=ranks.pipeline,
            config=config,
            temperature=temperature,
            settings=settings,
            adam=replace(adam, clip=math.inf),
            backend=ranks.backend,
            meeting=str(Path(self._folder.name) / "meeting"),
            threads=ranks.threads,
            timeout_seconds=ranks.timeout_seconds,
        )
        self._ranks = [_Rank(replace(orders, rank=each)) for each in range(ranks.tensor * ranks.pipeline)]
        try:
            for each in self._ranks:
                each.answer()
        except RankLost:
            self.close()
            raise

    @property
    def gradient(self) -> Tensor:
        """See the port."""
        if self._spoilt:
            raise AccumulatorSpoilt("a micro-step broke half-way: zero() the accumulator and discard the contribution")
        whole = self._layout.whole(self._grid(self._ask("gradient")), add_tied=True)
        return torch.cat([whole[name].reshape(-1) for name in self._shapes])

    def load(self, weights: Path) -> None:
        """See the port."""
        found = load_tensors(weights)
        expected = {name: torch.empty(shape, device="meta") for name, shape in self._shapes.items()}
        refuse_misfit(expected, {name: each for name, each in found.items() if name in expected}, str(weights))
        self._ask("load", *([shard] for shard in self._shards(found)))
        self._spoilt = False

    def zero(self) -> None:
        """See the port."""
        self._ask("zero")
        self._spoilt = False

    def release(self) -> None:
        """See the port."""
        self._ask("release")

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

    def save(self, folder: Path) -> Saved:
        """See the port."""
        weights = save_tensors(self._whole(self._ask("weights")), folder, "weights")
        moments = self._ask("optimizer")
        state = {"updates": torch.tensor(moments[0][2], dtype=torch.int64)}
        for place, which in enumerate(_MOMENTS):
            whole = self._whole([each[place] for each in moments])
            state |= {f"{which}.{name}": each for name, each in whole.items()}
        return Saved(weights, save_tensors(state, folder, "optimizer"))

    def restore(self, weights: Path, optimizer: Path) -> None:
        """See the port."""
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
        """See the port."""
        if self._spoilt:
            raise AccumulatorSpoilt("a micro-step broke half-way: zero() the accumulator and discard the contribution")
        try:
            answers = self._ask("micro_step", *([enqueued] for _ in self._ranks))
        except AccumulatorSpoilt:
            self._spoilt = True
            raise
        outcome: Outcome = next(each for each in answers if each)
        tally, owners = outcome.tally, outcome.owners
        if enqueued.kind == "measure":
            measured = ((execution, *tally.measured(index)) for execution, index in owners.items())
            return Finished(measured=tuple(_measured(enqueued, *each) for each in measured))
        return Finished(
            stats=tuple(tally.stats(index, each, outcome.decisions[index]) for each, index in owners.items())
        )

    def close(self) -> None:
        """End the ranks."""
        for each in self._ranks:
            each.close()
        self._folder.cleanup()

    def _ask(self, name: str, *arguments: list[Any]) -> list[Any]:
        """Tell all ranks, each with arguments of its own if any; what each answers."""
        for index, rank in enumerate(self._ranks):
            rank.tell(name, arguments[index] if arguments else [])
        answers = [rank.hear() for rank in self._ranks]
        if refused := next((said for well, said in answers if not well), None):
            raise refused
        return [said for _, said in answers]

    def _shards(self, whole: Mapping[str, Tensor]) -> list[Shard]:
        """In the order of ranks: tensor parallel ranks of a stage lie side by side."""
        layout = self._layout
        return [layout.shard(whole, t, p) for p in range(layout.pipeline) for t in range(layout.tensor)]

    def _grid(self, shards: list[Shard]) -> list[list[Shard]]:
        each = self._layout.tensor
        return [shards[start : start + each] for start in range(0, len(shards), each)]

    def _whole(self, shards: list[Shard]) -> Shard:
        whole = self._layout.whole(self._grid(shards))
        return {name: whole[name].contiguous() for name in self._shapes}


class _Rank:
    """A rank's process, and the line to it."""

    def __init__(self, orders: Orders) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gyre.trainers.megatron.rank", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": str(orders.threads)},
            )
        self._line = Line(ours.detach())
        self._number = orders.rank
        self._line.send(orders)

    def tell(self, name: str, arguments: list[Any]) -> None:
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
        self._process.wait()

    def _lost(self) -> RankLost:
        return RankLost(f"rank {self._number} ended with {self._process.wait()}: see what it printed before")


def _measured(enqueued: MicroStepEnqueued, execution: str, log_ratio: float, count: int) -> RatioMeasured:
    return RatioMeasured(
        step=enqueued.step,
        micro_step=enqueued.micro_step,
        execution=execution,
        log_ratio_sum=log_ratio,
        count=count,
    )


def _shapes(model: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each parameter, in the order in which the torch trainer's gradient has them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        found = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))  # type: ignore[no-untyped-call]
    return {name: tuple(each.shape) for name, each in found.named_parameters()}
