"""The paper's Appendix A in simulation: its identities hold to 0.5 % over a long run, whatever the durations are.

Assumptions A.1 and A.2 as they are stated: an asynchronous pool with room for everything, executions that do not slow
each other down, training of fixed length that begins when its groups are there, and nothing else takes time.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import pytest

from gyre.core import staleness
from gyre.core.plan import Dispatching, Kind
from gyre.core.simulation.setting import Setting
from gyre.core.simulation.workload import Durations, Job, Sampled
from schemas.dispatch import GroupDispatched
from schemas.rewards import GroupReady
from schemas.training import GroupAssigned, OptimizerStepped, WeightsPublished
from tests.core.simulation.small import NOTHING_BUT_WORK, Log, plan, told

CLOSE = 0.005
GROUPS, STEPS, TRAINING = 2, 800, 2.0
TAIL = 50
"""Steps at either end that are not stationary yet or no more."""


class Even(Sampled):
    """Durations between nothing and twice the mean, each as likely, one execution a group."""

    def jobs(self, index: int, task: str, executions: int) -> tuple[Job, ...]:
        return tuple(Job(self._chance.uniform(0.0, 40.0)) for _ in range(executions))


def lognormal() -> Sampled:
    return Sampled(Durations(20.0, 0.6, 0.3), TRAINING, GROUPS, 1, random.Random(5))


def even() -> Sampled:
    return Even(Durations(20.0, 0.6, 0.3), TRAINING, GROUPS, 1, random.Random(6))


WORKLOADS: dict[str, Callable[[], Sampled]] = {"lognormal": lognormal, "even": even}


@dataclass(frozen=True)
class Accounts:
    """Appendix A's quantities as a run had them, over its stationary part."""

    staleness: float
    step: float
    """T, mean interval between updates."""
    latency: float
    """L, mean time from dispatch to readiness."""
    ready: float
    """R, ready and unconsumed groups at a publication, on average."""
    phase: float
    """beta, in units of a burst"""


@cache
def accounts(workload: str, dispatching: Dispatching, phi: float, mu: int, kind: Kind = "async") -> Accounts:
    trainers = 1 if kind == "async" else 0
    chosen = plan(
        steps=STEPS,
        groups=GROUPS,
        executions=1,
        phi=phi,
        mu=mu,
        kind=kind,
        stream=False,
        trainers=trainers,
        dispatching=dispatching,
        tau_seconds=0.0,
    )
    outcome, log = told(Setting(chosen, capacity=10 * chosen.depth, timings=NOTHING_BUT_WORK), WORKLOADS[workload]())
    assert len(outcome.updates) == STEPS
    return _reckon(log, mu)


def _reckon(log: Log, mu: int) -> Accounts:
    dispatched = {event.group: seconds for seconds, event in log.of(GroupDispatched)}
    ready = {event.group: seconds for seconds, event in log.of(GroupReady)}
    updates = log.times(OptimizerStepped)
    consumed = [(event.step, event.group, event.staleness) for _, event in log.of(GroupAssigned)]
    middle = [each for each in consumed if TAIL < each[0] <= STEPS - TAIL]
    step = (updates[STEPS - TAIL - 1] - updates[TAIL - 1]) / (STEPS - 2 * TAIL)
    starts = [update - TRAINING for update in updates[::mu]]  # of bursts
    return Accounts(
        staleness=fmean(found for _, _, found in middle),
        step=step,
        latency=fmean(ready[group] - dispatched[group] for _, group, _ in middle),
        ready=_left_ready(log),
        phase=fmean(ready[group] - starts[(number - 1) // mu - 1] for number, group, _ in middle) / (mu * step),
    )


def _left_ready(log: Log) -> float:
    left, found = 0, []
    for _, event in log.pairs:
        left += isinstance(event, GroupReady) - isinstance(event, GroupAssigned)
        if isinstance(event, WeightsPublished):
            found.append(left)
    return fmean(found[TAIL:-TAIL])


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("phi", "mu"), [(1.5, 1), (0.5, 3)])
def test_a1_boundary_staleness_is_phi_and_half_of_mu_less_one(workload: str, phi: float, mu: int) -> None:
    found = accounts(workload, "boundary", phi, mu)
    assert found.staleness == pytest.approx(staleness.boundary_mean(phi, mu), rel=CLOSE)


def test_a2_colocate_without_extra_dispatch_is_stale_by_its_burst_alone() -> None:
    found = accounts("lognormal", "boundary", 0.0, 4, "colocate")
    assert found.staleness == pytest.approx(1.5, rel=CLOSE)


def test_a3_async_with_one_step_a_burst_is_stale_by_phi() -> None:
    assert accounts("even", "boundary", 1.5, 1).staleness == pytest.approx(1.5, rel=CLOSE)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("phi", "mu"), [(1.5, 1), (0.5, 3)])
def test_a4_continuous_staleness_counts_what_is_ready_at_a_publication(workload: str, phi: float, mu: int) -> None:
    found = accounts(workload, "continuous", phi, mu)
    depth = (phi + mu) * GROUPS
    assert found.staleness == pytest.approx(staleness.continuous_mean(depth, found.ready, GROUPS, mu), rel=CLOSE)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a7_a_continuous_step_takes_b_latencies_over_the_depth(workload: str) -> None:
    found = accounts(workload, "continuous", 1.5, 1)
    assert found.step == pytest.approx(staleness.continuous_step_time(2.5 * GROUPS, GROUPS, found.latency), rel=CLOSE)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("phi", [0.5, 1.5])
def test_a8_a_boundary_step_is_what_its_depth_and_completion_phase_say(workload: str, phi: float) -> None:
    found = accounts(workload, "boundary", phi, 1)
    expected = staleness.boundary_step_time((phi + 1) * GROUPS, GROUPS, found.latency, TRAINING, found.phase)
    assert found.step == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("phi", "mu"), [(0.5, 3), (1.5, 2)])
def test_a8_a_step_of_a_longer_burst_is_its_share_of_what_the_bursts_depth_and_phase_say(
    workload: str, phi: float, mu: int
) -> None:
    """Eq. 19 with mu B in the place of B: (L + mu B / v_T) / (Q_b / B - mu + mu beta)."""
    found = accounts(workload, "boundary", phi, mu)
    expected = staleness.boundary_step_time((phi + mu) * GROUPS, GROUPS, found.latency, TRAINING, found.phase, mu)
    assert found.step == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a11_step_times_at_equal_depth_compare_as_the_exact_form_says(workload: str) -> None:
    """T_c / T_b = (d + beta) / (Q_c / B + Q_c / (L v_T)), with d = Q_b / B - 1."""
    boundary, continuous = accounts(workload, "boundary", 1.5, 1), accounts(workload, "continuous", 1.5, 1)
    depth = 2.5
    expected = (depth - 1 + boundary.phase) / (depth + depth * TRAINING / continuous.latency)
    assert continuous.step / boundary.step == pytest.approx(expected, rel=CLOSE)
