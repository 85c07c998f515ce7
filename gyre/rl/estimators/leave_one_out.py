"""The mean of the others (RLOO, Ahmadian et al. 2024): r - mean of the n - 1 others = (r - mean) n / (n - 1)."""

import statistics
from collections.abc import Sequence


def centre_and_scale(rewards: Sequence[float]) -> tuple[float, float]:
    """Of at least two rewards that are not all alike; dimensionless."""
    return statistics.fmean(rewards), (len(rewards) - 1) / len(rewards)
