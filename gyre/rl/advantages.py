"""Group-relative advantages from the rewards of a group's executions (design §7, Advantages).

One number an execution, never one a leaf or a row: every admitted trajectory inherits its execution's advantage.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Literal

from gyre.rl.estimators import leave_one_out, mean, median, median_mad, std
from schemas.rewards import alike

Kind = Literal["std", "mean", "median", "median_mad", "leave_one_out"]
ESTIMATORS: Mapping[Kind, Callable[[Sequence[float]], tuple[float, float]]] = {
    "std": std.centre_and_scale,
    "mean": mean.centre_and_scale,
    "median": median.centre_and_scale,
    "median_mad": median_mad.centre_and_scale,
    "leave_one_out": leave_one_out.centre_and_scale,
}
Rule = Callable[[Sequence[float | None], int], tuple[float, ...]]
"""(rewards of the group, the group's seed) -> advantages."""


def advantages(rewards: Sequence[float | None], kind: Kind = "std") -> tuple[float, ...]:
    """Measure each execution against its group.

    Each is (r - centre) / scale as its estimator has them. Fewer than two rewards, or rewards that are all equal but
    for rounding (`alike`), give 0 everywhere: a scale that is only rounding would make it an advantage of any size.

    Args:
        rewards: (N,), dimensionless. None for an excluded execution: it is not counted and gets 0. A placeholder's
            reward is 0 and counts.
        kind: which estimator.
    Returns:
        (N,), dimensionless.
    Raises:
        ValueError: a reward is not finite (names its place).
    """
    for place, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"rewards[{place}] = {reward} is not finite: exclude the execution (None)")
    valid = [reward for reward in rewards if reward is not None]
    if len(valid) < 2 or alike(min(valid), max(valid)):  # noqa: PLR2004 - one reward has no spread
        return (0.0,) * len(rewards)
    centre, scale = ESTIMATORS[kind](valid)
    return tuple(0.0 if reward is None else (reward - centre) / scale for reward in rewards)


def shuffled(values: Sequence[float], rewards: Sequence[float | None], seed: int) -> tuple[float, ...]:
    """Deal a group's advantages out at random among its counted executions: the control that must not learn.

    The order is that of the SHA-256 digests of ``seed/place``: the same in every language and version.

    Args:
        values: (N,). Advantages as `advantages` gives them.
        rewards: (N,). None marks the excluded, which keep their 0.
        seed: of this group; a different one deals differently.
    Raises:
        ValueError: lengths differ.
    """
    counted = [place for place, reward in enumerate(rewards) if reward is not None]
    dealt = sorted(counted, key=lambda place: sha256(f"{seed}/{place}".encode()).digest())
    source = dict(zip(counted, dealt, strict=True))
    pairs = zip(values, rewards, strict=True)
    return tuple(values[source[place]] if place in source else value for place, (value, _) in enumerate(pairs))


def rule(kind: Kind, *, shuffle: bool) -> Rule:
    """Bind a run's choice to the form that `gyre.core.groups.decide` takes."""

    def of_group(rewards: Sequence[float | None], seed: int) -> tuple[float, ...]:
        values = advantages(rewards, kind)
        return shuffled(values, rewards, seed) if shuffle else values

    return of_group
