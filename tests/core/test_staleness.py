"""Staleness by hand, by formula and by the paper's figures."""

import itertools
from math import inf

import pytest

from gyre.core.staleness import (
    boundary_depth,
    boundary_mean,
    boundary_step_time,
    continuous_mean,
    continuous_step_time,
    dispatches,
    expected_mean,
    realised_mean,
)


def test_twenty_steps_at_phi_half_and_mu_two_have_a_mean_of_0_95() -> None:
    assert expected_mean(20, 4, 0.5, 2) == pytest.approx(0.95, abs=1e-12)


def test_the_papers_e0_has_a_mean_of_1_375_over_its_12_steps() -> None:
    assert expected_mean(12, 64, 0.5, 3) == pytest.approx(1.375, abs=1e-12)


@pytest.mark.parametrize(("phi", "mu"), [(0, 1), (0, 3), (0.5, 2), (2.5, 1), (3, 5)])
@pytest.mark.parametrize("steps", range(1, 20))
def test_the_mean_is_that_of_all_dispatches_one_by_one(steps: int, phi: float, mu: int) -> None:
    born = sum(version * count for version, count in dispatches(steps, 4, phi, mu))
    assert expected_mean(steps, 4, phi, mu) == pytest.approx((sum(range(steps)) - born / 4) / steps, abs=1e-12)


def test_a_run_without_end_takes_no_longer_to_predict() -> None:
    assert expected_mean(10**400, 4, 0.5, 2) == boundary_mean(0.5, 2)


@pytest.mark.parametrize(("phi", "mu"), [(0.5, 2), (0, 1), (1.5, 1), (0.5, 3), (0, 4)])
def test_long_runs_tend_to_the_formula_from_below(phi: float, mu: int) -> None:
    means = [expected_mean(steps, 2, phi, mu) for steps in (mu, 4 * mu, 400 * mu)]
    assert means == sorted(means)
    assert means[-1] <= boundary_mean(phi, mu)
    assert means[-1] == pytest.approx(boundary_mean(phi, mu), abs=0.01)


def test_without_extra_dispatch_and_with_single_steps_nothing_is_ever_stale() -> None:
    assert expected_mean(50, 3, 0, 1) == 0


def test_the_mean_is_that_of_groups_consumed_in_any_order() -> None:
    steps, groups, phi, mu = 7, 2, 1.5, 3
    born = [version for version, count in dispatches(steps, groups, phi, mu) for _ in range(count)]
    trained = [step for step in range(steps) for _ in range(groups)]
    oldest_first = realised_mean(used - made for used, made in zip(trained, born, strict=True))
    assert oldest_first == pytest.approx(expected_mean(steps, groups, phi, mu), abs=1e-12)
    assert all(used >= made for used, made in zip(trained, born, strict=True))


def test_a_run_dispatches_exactly_its_groups_the_last_time_trimmed() -> None:
    for steps, phi, mu in itertools.product((1, 2, 5, 12), (0, 0.5, 2), (1, 2, 3)):
        counts = [count for _, count in dispatches(steps, 2, phi, mu)]
        assert sum(counts) == 2 * steps
        assert all(count == 2 * mu for count in counts[1:-1])


def test_depths_and_step_times_follow_appendix_a() -> None:
    assert boundary_depth(4, 0.5, 2) == 10
    assert continuous_mean(depth=8, ready=2, groups=4, mu=3) == 3.5
    assert continuous_step_time(depth=8, groups=4, latency=10) == 5
    assert boundary_step_time(depth=8, groups=4, latency=10, training=2, phase=0.5) == 8


@pytest.mark.parametrize(
    ("steps", "groups", "phi", "mu"), [(0, 1, 0, 1), (1, 0, 0, 1), (1, 1, 0, 0), (1, 1, -1, 1), (1, 1, inf, 1)]
)
def test_impossible_schedules_are_refused(steps: int, groups: int, phi: float, mu: int) -> None:
    with pytest.raises(ValueError, match="is not"):
        expected_mean(steps, groups, phi, mu)


def test_a_phi_that_cuts_groups_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number of groups"):
        expected_mean(10, 4, 0.3, 2)
