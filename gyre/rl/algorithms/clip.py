"""What each algorithm clips, and the bounds of its paper. Imports no torch: configurations are checked with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Name = Literal["gyre", "gspo", "grpo", "ppo", "decoupled"]


@dataclass(frozen=True, slots=True)
class Clip:
    """How far a ratio may go; all dimensionless."""

    low: float
    """Below it, what has a negative advantage is clipped."""
    high: float
    """Above it, what has a positive advantage is clipped."""
    whole: bool
    """Whether the ratio is the whole execution's, s_i, whose mask m_i holds for all its targets wherever they lie."""


CLIPS: Mapping[Name, Clip] = {
    "gyre": Clip(0.995, 1.005, whole=True),  # design §7
    "gspo": Clip(1 - 3e-4, 1 + 4e-4, whole=True),  # Zheng et al. 2025, §5.1
    "grpo": Clip(0.8, 1.2, whole=False),  # Shao et al. 2024
    "ppo": Clip(0.8, 1.2, whole=False),  # Schulman et al. 2017, §3
    "decoupled": Clip(0.8, 1.2, whole=False),  # Hilton et al. 2022, with PPO's
}
