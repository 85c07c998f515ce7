"""The median and the median absolute deviation, as the authors of MC-GRPO scale it (Kim 2026, `mc` in their code).

Where half of a group or more has the median itself, but for rounding, that deviation is 0 and the mean absolute one
stands in; their code adds 0.001 instead, by which such a group would outweigh a whole batch. It also multiplies by the
group's size over its number of advantages that are not 0, which is left out: here every execution has the same weight.
"""

import statistics
from collections.abc import Sequence

from schemas.rewards import alike


def centre_and_scale(rewards: Sequence[float]) -> tuple[float, float]:
    """Of at least two rewards that are not all alike; dimensionless."""
    centre = statistics.median(rewards)
    deviations = [abs(reward - centre) for reward in rewards]
    scale = statistics.median(deviations)
    return centre, statistics.fmean(deviations) if alike(centre, centre + scale) else scale
