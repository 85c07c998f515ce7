"""What trainers have in common whose replica lies over several ranks.

Weights, gradient and optimizer state leave and enter as the torch trainer has them: whole, under the names of Hugging
Face, in the order of the model's parameters. So cells of any kind, or of other numbers of ranks, add up in one
reduction and go on from each other's files. Only the core's ranks have optimizer state, each of its own parameters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gyre.rl.experts import apart
from gyre.rl.objective import Decision
from gyre.trainers.checkpoint import load_tensors, save_tensors
from gyre.trainers.optimizer import global_norm, refuse_misfit
from gyre.trainers.port import AccumulatorSpoilt, Applied, Finished, GradientRefused, Saved
from gyre.trainers.ranks import RankProcesses
from gyre.trainers.stats import Tally
from schemas.training import MicroStepEnqueued

Shard = dict[str, Tensor]
_MOMENTS = ("first", "second")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one micro-step gave at a rank."""

    owners: dict[str, int]
    """Execution -> its index in the other two."""
    tally: Tally
    """Of all ranks."""
    decisions: dict[int, Decision]
    """Those that this rank knows of."""


class Spread(Protocol):
    """How a model's tensors lie over the ranks."""

    def shards(self, whole: Mapping[str, Tensor]) -> list[Shard]:
        """Hugging Face name -> tensor, as each rank holds it, in the order of ranks."""
        ...

    def whole(self, shards: Sequence[Mapping[str, Tensor]], *, add_tied: bool = False) -> Shard:
        """Inverse of `shards`; of gradients, what a tensor got at several ranks that hold it is added up."""
        ...


class RankedTrainer:
    """Implements `gyre.trainers.port.Trainer`. Ranks end with this process.

    Args:
        parameters: by name, without content, in the order in which the torch trainer's gradient has them.
        tied: names that a weights file may hold besides, for a parameter that has two.
        spread: how they lie over the ranks.
        ranks: started.
        clip: largest 2-norm of the batch's gradient.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        tied: frozenset[str],
        spread: Spread,
        ranks: RankProcesses,
        clip: float,
    ) -> None:
        self._shapes = {name: tuple(each.shape) for name, each in parameters.items()}
        self._tied = tied
        self._spread = spread
        self._ranks = ranks
        self._clip = clip
        self._spoilt = False

    @property
    def gradient(self) -> Tensor:
        """See the port."""
        self._refuse_spoilt()
        whole = self._spread.whole(self._ask("gradient"), add_tied=True)
        return torch.cat([whole[name].reshape(-1) for name in self._shapes])

    def load(self, weights: Path) -> None:
        """See the port."""
        found = load_tensors(weights)
        self._refuse_others(weights, found)
        self._ask("load", *([shard] for shard in self._spread.shards(found)))
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
        self._ask("apply", *([shard] for shard in self._spread.shards(named)))
        return Applied(norm, coefficient)

    def save(self, folder: Path, sequence: int = 0) -> Saved:
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
        state = apart(load_tensors(optimizer))
        refuse_misfit(self._moments(), state, str(optimizer))
        self.load(weights)
        whole = [{name: state[f"{which}.{name}"] for name in self._shapes} for which in _MOMENTS]
        first, second = (self._spread.shards(each) for each in whole)
        updates = int(state["updates"])
        self._ask("restore", *([(a, b, updates)] for a, b in zip(first, second, strict=True)))

    def micro_step(self, enqueued: MicroStepEnqueued) -> Finished:
        """See the port."""
        self._refuse_spoilt()
        try:
            answers = self._ask("micro_step", *([enqueued] for _ in range(len(self._ranks))))
        except AccumulatorSpoilt:
            self._spoilt = True
            raise
        outcomes: list[Outcome] = [each for each in answers if each]
        return finished(enqueued, outcomes)

    @property
    def processes(self) -> list[int]:
        """Process ids of its ranks, in their order."""
        return self._ranks.processes

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()

    def _ask(self, name: str, *arguments: Sequence[Any]) -> list[Any]:
        """See `RankProcesses.ask`."""
        return self._ranks.ask(name, *arguments)

    def _refuse_others(self, weights: Path, found: Mapping[str, Tensor]) -> None:
        """Raise `WeightsRefused` unless what was found in a file is a model such as this one."""
        expected = {name: torch.empty(shape, device="meta") for name, shape in self._shapes.items()}
        refuse_misfit(expected, {name: each for name, each in found.items() if name not in self._tied}, str(weights))

    def _moments(self) -> Shard:
        """What a file of optimizer state has to hold, without content."""
        shapes = {f"{which}.{name}": shape for which in _MOMENTS for name, shape in self._shapes.items()}
        return {name: torch.empty(shape, device="meta") for name, shape in (shapes | {"updates": ()}).items()}

    def _whole(self, shards: Sequence[Shard]) -> Shard:
        whole = self._spread.whole(shards)
        return {name: whole[name].contiguous() for name in self._shapes}

    def _refuse_spoilt(self) -> None:
        if self._spoilt:
            raise AccumulatorSpoilt("a micro-step broke half-way: zero() the accumulator and discard the contribution")


def finished(enqueued: MicroStepEnqueued, outcomes: Sequence[Outcome]) -> Finished:
    """What a micro-step found, from what its ranks say."""
    tally, owners = outcomes[0].tally, outcomes[0].owners
    if enqueued.kind == "measure":
        return Finished(measured=tally.ratios(enqueued, owners))
    decisions = {index: decision for each in outcomes for index, decision in each.decisions.items()}
    return Finished(stats=tuple(tally.stats(index, each, decisions[index]) for each, index in owners.items()))


def parameters_of(model: Path) -> tuple[dict[str, Tensor], frozenset[str]]:
    """Of a model's folder: its parameters in order, without content, and second names of those that have two."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        found = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))  # type: ignore[no-untyped-call]
    parameters: dict[str, Tensor] = dict(found.named_parameters())
    every = {name for name, _ in found.named_parameters(remove_duplicate=False)}
    return parameters, frozenset(every - set(parameters))
