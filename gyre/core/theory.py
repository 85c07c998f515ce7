"""What Appendix A predicts for a schedule, and which (mu, phi) to take for a mean staleness (paper §2.2, §6.1).

Times are in any one unit. Step times hold in the long run, under Assumption A.2: every dispatched group starts at once,
L does not depend on how many run, a burst begins when its mu B groups are ready, and rollout goes on meanwhile. That is
`async` without streaming; streaming and elastic cells do better, by how much is for a simulation to say.
"""

from dataclasses import dataclass, replace
from typing import Literal

from gyre.core.plan import ROUNDING, Kind
from gyre.core.staleness import (
    boundary_depth,
    boundary_mean,
    boundary_step_time,
    continuous_depth,
    continuous_mean,
    continuous_ready,
    continuous_step_time,
)

MOST = 10**6
"""Of groups in a batch, executions in a group, updates in a burst: what is beyond it was not meant."""
STALEST = 1000
"""Training steps: nobody means to train on older data, and each half of one is a candidate more."""
LONGEST = 1e100
"""Of any time: sums and quotients of longer ones, or of shorter than its inverse, may be infinite."""
Bound = Literal["rollout", "training"]
"""What updates wait for: data, or the trainer (then the assumptions fail, and an update takes B / v_T)."""
USUAL_BETA = 0.6
"""beta where nobody measured it: simulations with even and with lognormal durations give 0.59 to 0.64 for phi > 0 and
0.5 for phi = 0, mu = 4; a tenth more or less moves a step time by less than a tenth."""


@dataclass(frozen=True, slots=True)
class Times:
    """What step times depend on besides the schedule."""

    latency: float
    """L: mean time from a group's dispatch to its readiness, evaluation included."""
    training: float
    """B / v_T: time of one update."""
    alpha: float = 0.0
    """Mean share of the time between publications that has passed at a continuous dispatch, in [0, 1): then staleness
    is compared as interpolated; 0 compares it as runs record it."""
    beta: float = USUAL_BETA
    """Mean offset of completions from the start of the burst before the consuming one, in bursts."""


@dataclass(frozen=True, slots=True)
class Continuous:
    """The same run under continuous dispatch."""

    depth: float
    """Q_c: unfinished groups at all times."""
    staleness: float | None
    """E[d], training steps; None where the trainer is the bound: ready groups pile up and it grows without end."""
    ready: float | None
    """R: groups ready at a publication; None likewise."""
    step_time: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class Prediction:
    """One schedule under boundary dispatch, and its twins under continuous dispatch."""

    mu: int
    phi: float
    staleness: float
    """E[d], training steps (eq. 2, 10)."""
    depth: float
    """Q_b: groups dispatched and not yet consumed, just after a dispatch (eq. 1)."""
    depth_executions: int
    """N Q_b: places in rollout that start all of them at once."""
    step_time: float | None = None
    """T_b, from one update to the next (eq. 19); None without times."""
    bound: Bound | None = None
    continuous: Continuous | None = None
    """At the same staleness; None without times, or where continuous dispatch cannot be that fresh."""
    continuous_same_depth: Continuous | None = None
    """At Q_c = Q_b: what changing `schedule.dispatch` alone does; None without times."""


def predict(groups: int, executions: int, mu: int, phi: float, times: Times | None = None) -> Prediction:
    """What Appendix A says about B groups of N executions an update.

    Raises:
        ValueError: naming the value that is out of its range.
    """
    for name, value, least in (("groups", groups, 1), ("executions", executions, 1), ("mu", mu, 1), ("phi", phi, 0)):
        _check_within(name, value, least)
    if abs(phi * groups - round(phi * groups)) > ROUNDING:
        near = round(phi * groups) / groups
        raise ValueError(f"phi: {phi:g} * {groups} groups is not a whole number of groups; {near:g} would be")
    depth, staleness = boundary_depth(groups, phi, mu), boundary_mean(phi, mu)
    plain = Prediction(mu, phi, staleness, depth, round(depth * executions))
    if times is None:
        return plain
    _check(times, mu, phi)
    step_time = boundary_step_time(depth, groups, times.latency, times.training, times.beta, mu)
    step_time, bound = _bounded(step_time, times.training)
    matched = continuous_depth(staleness, groups, times.latency, times.training, mu, times.alpha)
    return replace(
        plain,
        step_time=step_time,
        bound=bound,
        continuous=_continuous(matched, groups, mu, times) if matched > ROUNDING else None,
        continuous_same_depth=_continuous(depth, groups, mu, times),
    )


def schedules(staleness: float, groups: int) -> list[tuple[int, float]]:
    """Every (mu, phi) whose mean staleness is as near to the target as whole groups allow, by mu.

    Raises:
        ValueError: a target below 0 or beyond `STALEST`.
    """
    _check_within("staleness", staleness, 0, STALEST)
    found = []
    for mu in range(1, int(2 * staleness + ROUNDING) + 2):
        ahead = round((staleness - (mu - 1) / 2) * groups)
        found.append((mu, max(0, ahead) / groups))
    return found


def recommend(staleness: float, groups: int, kind: Kind, standalone: int = 0) -> tuple[int, float]:
    """The (mu, phi) to begin with for a mean staleness.

    async: one update a burst, since a split pool gains nothing by waiting for more groups (table 1: A2 against A0).
    colocate without standalone engines: nothing ahead, since it would wait for the pool. Otherwise the longest burst
    that leaves half a batch ahead: it keeps engines busy while the last groups of a burst come in (paper §6.1).
    """
    found = schedules(staleness, groups)
    if kind == "async":
        return found[0]
    if kind == "colocate" and not standalone:
        return max(1, round(2 * staleness + 1)), 0.0
    least = (
        max(1, groups // 2) / groups
    )  # what keeps engines busy while the last groups of a burst come in (paper §6.1)
    return [each for each in found if each[1] >= least or each[0] == 1][-1]


def _continuous(depth: float, groups: int, mu: int, times: Times) -> Continuous:
    step_time, bound = _bounded(continuous_step_time(depth, groups, times.latency), times.training)
    if bound == "training":
        return Continuous(depth, None, None, step_time, bound)
    ready = continuous_ready(depth, times.latency, times.training, mu)
    return Continuous(depth, continuous_mean(depth, ready, groups, mu), ready, step_time, bound)


def _bounded(step_time: float, training: float) -> tuple[float, Bound]:
    return (step_time, "rollout") if step_time > training else (training, "training")


def _check_within(name: str, value: float, least: int, most: int = MOST) -> None:
    """What is less or more, or no number, is refused."""
    if not least <= value <= most:
        raise ValueError(f"{name}: {value} is out of bounds; give a number from {least} to {most}")


def _check(times: Times, mu: int, phi: float) -> None:
    if not 1 / LONGEST <= times.latency <= LONGEST:
        raise ValueError(f"latency: {times.latency:g} is no time; give that from a group's dispatch to its readiness")
    if not 1 / LONGEST <= times.training <= LONGEST:
        raise ValueError(f"rate: an update that takes {times.training:g} is not one; give groups per unit of time")
    if not 0 <= times.alpha < 1:
        raise ValueError(f"alpha: {times.alpha:g} is not in [0, 1)")
    if not phi + mu * times.beta > ROUNDING or times.beta > 1:
        raise ValueError(f"beta: {times.beta:g} is not in (-phi / mu, 1] = ({-phi / mu:g}, 1]")
