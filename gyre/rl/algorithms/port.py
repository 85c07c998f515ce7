"""What an algorithm is given and gives."""

from dataclasses import dataclass
from typing import Protocol, get_args

from torch import Tensor

from gyre.rl.algorithms.clip import CLIPS, Name


@dataclass(frozen=True, slots=True)
class Settings:
    """Which algorithm, and its bounds; all dimensionless but the last.

    Raises:
        ValueError: a bound out of range; names field, value and rule.
    """

    algorithm: Name = "gyre"
    ratio_low: float | None = None
    """Below it, what has a negative advantage is clipped; None: the algorithm's own."""
    ratio_high: float | None = None
    """Above it, what has a positive advantage is clipped; None: the algorithm's own."""
    weight_cap: float = 5.0
    """gyre, decoupled: largest importance weight of a target. ppo: bound of the dual clip. The others take no cap."""
    loss_cap: float = 100.0
    """gyre: largest loss of a target, nats; beyond it a target has no gradient."""

    def __post_init__(self) -> None:
        if self.algorithm not in get_args(Name):
            raise ValueError(f"algorithm = {self.algorithm!r}: give one of {', '.join(get_args(Name))}")
        if not 0.0 < self.low <= 1.0 <= self.high:
            found = f"ratio_low = {self.low}, ratio_high = {self.high}"
            raise ValueError(f"{found}: need 0 < ratio_low <= 1 <= ratio_high")
        if self.weight_cap < 1.0:
            raise ValueError(f"weight_cap = {self.weight_cap}: give at least 1")
        if self.loss_cap <= 0.0:
            raise ValueError(f"loss_cap = {self.loss_cap}: give more than 0")

    @property
    def low(self) -> float:
        """The lower bound of a ratio."""
        return CLIPS[self.algorithm].low if self.ratio_low is None else self.ratio_low

    @property
    def high(self) -> float:
        """The upper bound of a ratio."""
        return CLIPS[self.algorithm].high if self.ratio_high is None else self.ratio_high


@dataclass(frozen=True, slots=True)
class Targets:
    """U targets of any executions; each tensor is (U,) float64, and only `log_pi` carries a gradient."""

    log_pi: Tensor
    """log pi_theta(y_u | c_u) at the rollout's temperature, nats."""
    log_roll: Tensor
    """Recorded behaviour log-probability, nats."""
    advantage: Tensor
    """A_i of the target's execution."""
    ratio: Tensor
    """s_i of the target's execution."""
    mask: Tensor
    """m_i of the target's execution: 0 or 1."""
    log_prox: Tensor | None = None
    """Log-probability under the proximal policy, nats. None: under the weights of `log_pi`, as a batch's are fixed."""

    @property
    def log_ratio(self) -> Tensor:
        """(U,) log rho_u = log pi_u - log p_roll_u, nats."""
        return self.log_pi - self.log_roll


class Algorithm(Protocol):
    """An objective: one loss a target, to be weighted by 1 / (B N L_i) and summed by the caller."""

    def __call__(self, targets: Targets, settings: Settings) -> Tensor:
        """(U,) float64: l_u, whose gradient flows through `log_pi` alone."""
        ...
