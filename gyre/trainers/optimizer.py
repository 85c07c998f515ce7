"""Adam with decoupled weight decay over flat parameters (design §7, Objective), clipped by the global norm.

Own code, for two reasons: its state can be saved under the parameters' names, and it works in slices, so that an
update needs no second copy of the model.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre.trainers.port import Applied, GradientRefused, UpdateSpoilt, WeightsRefused

_SLICE = 1 << 20  # elements that one pass touches


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """All dimensionless.

    Raises:
        ValueError: a value out of range; names field, value and rule.
    """

    learning_rate: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-15
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest 2-norm of the batch's gradient."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip"):
            if getattr(self, name) <= 0.0:
                raise ValueError(f"{name} = {getattr(self, name)}: give more than 0")
        least = torch.finfo(torch.float32).tiny  # below it, it may be 0 where it is added, and the update 0 / 0
        if self.epsilon < least:
            raise ValueError(f"epsilon = {self.epsilon}: give at least {least}")
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} = {getattr(self, name)}: give 0 <= {name} < 1")
        if self.weight_decay < 0.0:
            raise ValueError(f"weight_decay = {self.weight_decay}: give 0 or more")


class Adam:
    """The moments of one model's parameters, by name; zero until the first update."""

    def __init__(self, parameters: Mapping[str, Tensor], settings: AdamSettings) -> None:
        self._parameters = parameters
        self._settings = settings
        self._first = {name: torch.zeros_like(each) for name, each in parameters.items()}
        self._second = {name: torch.zeros_like(each) for name, each in parameters.items()}
        self._updates = 0

    @torch.no_grad()
    def apply(self, gradient: Tensor) -> Applied:
        """Clip and update once.

        `g = min(1, clip / |G|) G; m = b1 m + (1 - b1) g; n = b2 n + (1 - b2) g^2;
        p = p (1 - lr decay) - lr (m / (1 - b1^k)) / (sqrt(n / (1 - b2^k)) + epsilon)` at the k-th update.

        Args:
            gradient: (P,) float32, the parameters' gradients end to end in the mapping's order.
        Raises:
            GradientRefused: wrong length, or not finite; nothing has changed then.
            UpdateSpoilt: a parameter is not finite by now.
        """
        expected = sum(each.numel() for each in self._parameters.values())
        if gradient.numel() != expected:
            raise GradientRefused(f"gradient of {gradient.numel()} elements: the model has {expected} parameters")
        norm = global_norm(gradient)
        if not math.isfinite(norm):
            raise GradientRefused(f"gradient norm = {norm}: a batch must give finite numbers; weights are unchanged")
        coefficient = min(1.0, self._settings.clip / norm) if norm > 0.0 else 1.0
        self._updates += 1
        start, finite = 0, torch.zeros(())
        for name, parameter in self._parameters.items():
            part = gradient[start : start + parameter.numel()]
            start += parameter.numel()
            moments = self._first[name].view(-1), self._second[name].view(-1)
            finite = finite + self._update(parameter.view(-1), *moments, part, coefficient)
        if finite != 0.0:
            raise UpdateSpoilt(
                f"update {self._updates}: weights that are not finite: lower optimizer.lr, or raise optimizer.eps"
            )
        return Applied(norm, coefficient)

    def _update(self, parameter: Tensor, first: Tensor, second: Tensor, gradient: Tensor, coefficient: float) -> Tensor:
        """0 if the parameter is finite now, else NaN."""
        rate, decay = self._settings.learning_rate, self._settings.weight_decay
        bias1 = 1.0 - self._settings.beta1**self._updates
        bias2 = 1.0 - self._settings.beta2**self._updates
        slices = zip(*(torch.split(each, _SLICE) for each in (parameter, first, second, gradient)), strict=True)
        finite = parameter.new_zeros(())
        for p, m, n, raw in slices:
            g = raw * coefficient
            m.lerp_(g, 1.0 - self._settings.beta1)
            n.mul_(self._settings.beta2).addcmul_(g, g, value=1.0 - self._settings.beta2)
            scale = (n / bias2).sqrt_().add_(self._settings.epsilon)
            p.mul_(1.0 - rate * decay).addcdiv_(m, scale, value=-rate / bias1)
            finite += (p * 0.0).sum()  # a fraction of what `isfinite` takes
        return finite

    def state(self) -> dict[str, Tensor]:
        """`first.<name>`, `second.<name>` and `updates`: the moments themselves, not copies."""
        moments = {f"first.{name}": each for name, each in self._first.items()}
        moments |= {f"second.{name}": each for name, each in self._second.items()}
        return moments | {"updates": torch.tensor(self._updates, dtype=torch.int64)}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what `state` gave; raises `WeightsRefused`, changing nothing, if names or shapes differ."""
        mine = self.state()
        refuse_misfit(mine, state, "optimizer state")
        for name, each in mine.items():
            each.copy_(state[name])
        self._updates = int(state["updates"])


def global_norm(gradient: Tensor) -> float:
    """2-norm of (P,), summed in float64 slice by slice."""
    squares = (
        float(torch.linalg.vector_norm(each, dtype=torch.float64)) ** 2 for each in torch.split(gradient, _SLICE)
    )
    return math.sqrt(sum(squares))


def refuse_misfit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], what: str) -> None:
    """Raise `WeightsRefused`, naming the first difference, unless both hold the same names and shapes."""
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or unknown:
        raise WeightsRefused(f"{what}: missing {missing[:1]}, unknown {unknown[:1]}: it belongs to another model")
    for name, each in expected.items():
        if each.shape != found[name].shape:
            shapes = f"{tuple(found[name].shape)}, the model has {tuple(each.shape)}"
            raise WeightsRefused(f"{what}: {name} is {shapes}: it belongs to another model")
