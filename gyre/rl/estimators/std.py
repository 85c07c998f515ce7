"""The mean and the population standard deviation, as GRPO has it (Shao et al. 2024): the default."""

import statistics
from collections.abc import Sequence


def centre_and_scale(rewards: Sequence[float]) -> tuple[float, float]:
    """Of at least two rewards that are not all alike; dimensionless."""
    return statistics.fmean(rewards), statistics.pstdev(rewards)
