"""How stale training data is: exact for a run of S steps, and in the long run (paper §2.2 and Appendix A).

Scheduling staleness of a group is d = v_t - v_d: the trainer's version just before the update that consumes it, less
the published version at its dispatch, in training steps. Its mean does not depend on the order in which groups are
consumed, because every group is consumed exactly once.
"""

from collections.abc import Iterable, Iterator
from math import inf, isclose


def dispatches(steps: int, groups: int, phi: float, mu: int) -> Iterator[tuple[int, int]]:
    """Boundary dispatch as (published version, groups dispatched), in order; the last one is trimmed.

    Args:
        steps: S, optimizer updates in the run.
        groups: B, groups an update.
        phi: groups dispatched ahead, in units of B; phi * B must be whole.
        mu: updates between publications.

    Raises:
        ValueError: a count below 1, a phi that is negative or infinite, or phi * B not whole.
    """
    ahead = _checked_ahead(steps, groups, phi, mu)
    left, version, due = steps * groups, 0, ahead + mu * groups
    while left > 0:
        now = min(due, left)
        yield version, now
        left, version, due = left - now, version + mu, mu * groups


def expected_mean(steps: int, groups: int, phi: float, mu: int) -> float:
    """Exact mean staleness of a run of `steps` updates, training steps.

    (sum of v_t over steps - sum of v_d over groups / B) / S, design §6. It tends to `boundary_mean`, from below.
    """
    burst = mu * groups
    bursts, rest = divmod(max(0, steps * groups - _checked_ahead(steps, groups, phi, mu) - burst), burst)
    trained = steps * (steps - 1) // 2
    dispatched = mu * (burst * (bursts * (bursts + 1) // 2) + rest * (bursts + 1))  # `dispatches`, all but the first
    return (trained * groups - dispatched) / (steps * groups)


def realised_mean(staleness: Iterable[int]) -> float:
    """Mean over consumed groups, each counted once; 0 when there is none."""
    values = list(staleness)
    return sum(values) / len(values) if values else 0.0


def boundary_depth(groups: int, phi: float, mu: int) -> float:
    """Q_b = (phi + mu) B: unconsumed groups just after a dispatch (eq. 1)."""
    return (phi + mu) * groups


def boundary_mean(phi: float, mu: int) -> float:
    """E[d] = phi + (mu - 1) / 2 in the long run, under boundary dispatch (eq. 2, theorem A.1)."""
    return phi + (mu - 1) / 2


def continuous_mean(depth: float, ready: float, groups: int, mu: int) -> float:
    """E[d] = (Q_c + R) / B + (mu - 1) / 2 in the long run, under continuous dispatch (eq. 13).

    Args:
        depth: Q_c, unfinished groups.
        ready: R, ready groups that are left at a publication, on average.
        groups: B.
        mu: updates between publications.
    """
    return (depth + ready) / groups + (mu - 1) / 2


def continuous_ready(depth: float, latency: float, training: float, mu: int) -> float:
    """R = Q_c mu (B / v_T) / L: about so many groups are ready at a publication (eq. 16): those of the burst's time.

    Args:
        depth: Q_c, unfinished groups.
        latency: L, mean time from dispatch to readiness.
        training: B / v_T, time of one update, in the same unit.
        mu: updates between publications.
    """
    return depth * mu * training / latency


def continuous_depth(staleness: float, groups: int, latency: float, training: float, mu: int, phase: float) -> float:
    """Q_c that gives a mean staleness under continuous dispatch, about: eq. 13 with R of eq. 16, solved for Q_c.

    B (d + alpha - (mu - 1) / 2) / (1 + mu (B / v_T) / L); for mu = 1 it is eq. 22.

    Args:
        staleness: d, training steps.
        groups: B.
        latency: L, mean time from dispatch to readiness.
        training: B / v_T, time of one update, in the same unit.
        mu: updates between publications.
        phase: alpha, mean share of the time between publications that has passed at a dispatch, where d is the
            interpolated staleness; 0 where it is the discrete one, which is what runs record.
    """
    return groups * (staleness + phase - (mu - 1) / 2) / (1 + mu * training / latency)


def boundary_step_time(depth: float, groups: int, latency: float, training: float, phase: float, mu: int = 1) -> float:
    """T_b = (L + B / v_T) / (Q_b / B - 1 + beta) for mu = 1 (eq. 19), in the unit of its times.

    A longer burst is to the balance behind it what an update is there: with mu B in B's place the time of a burst comes
    out, of which an update is one mu-th: (L + mu B / v_T) / (Q_b / B - mu + mu beta).

    Args:
        depth: Q_b, groups; above (1 - beta) mu B.
        groups: B.
        latency: L, mean time from dispatch to readiness.
        training: B / v_T, time of one update.
        phase: beta, mean completion offset from the start of the burst before the consuming one, in units of the time
            from burst to burst (mu T_b).
        mu: updates between publications; all mu B groups of a burst are ready when it begins.
    """
    return (latency + mu * training) / (depth / groups - mu + mu * phase)


def continuous_step_time(depth: float, groups: int, latency: float) -> float:
    """T_c = B L / Q_c for mu = 1 (eq. 18), in the unit of `latency`."""
    return groups * latency / depth


def _checked_ahead(steps: int, groups: int, phi: float, mu: int) -> int:
    for name, value in (("steps", steps), ("groups", groups), ("mu", mu)):
        if value < 1:
            raise ValueError(f"{name}: {value} is not at least 1")
    ahead = round(phi * groups) if 0 <= phi < inf else -1
    if ahead < 0 or not isclose(phi * groups, ahead, abs_tol=1e-9):
        raise ValueError(f"phi: {phi} * {groups} groups is not a whole number of groups from 0 on")
    return ahead
