"""Predictions of Appendix A against numbers by hand, and the published choices of (mu, phi)."""

import re
from math import inf, nan

import pytest

from gyre.core.plan import Kind
from gyre.core.staleness import boundary_step_time, continuous_depth, continuous_mean, continuous_ready
from gyre.core.theory import Times, predict, recommend, schedules

HOURS = Times(latency=3, training=1, beta=0.5)


def test_staleness_and_depth_need_no_times() -> None:
    found = predict(64, 8, 3, 0.5)
    assert (found.staleness, found.depth, found.depth_executions) == (1.5, 224, 1792)
    assert (found.step_time, found.continuous, found.continuous_same_depth) == (None, None, None)


def test_one_update_a_burst_takes_what_equation_19_says() -> None:
    found = predict(4, 8, 1, 1.5, HOURS)
    assert found.step_time == pytest.approx((3 + 1) / (10 / 4 - 1 + 0.5))
    assert found.bound == "rollout"


def test_the_continuous_twin_is_as_stale_and_as_slow_as_appendix_a_says() -> None:
    twin = predict(4, 8, 1, 1.5, HOURS).continuous
    assert twin is not None
    assert twin.depth == pytest.approx(4 * 1.5 / (1 + 1 / 3))  # eq. 22, alpha = 0
    assert twin.ready == pytest.approx(twin.depth / 3)  # eq. 16
    assert twin.staleness == pytest.approx(1.5)
    assert twin.step_time == pytest.approx(4 * 3 / twin.depth)  # eq. 18


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.5), (0.5, 0.5), (0.3, 0.8)])
def test_step_times_at_equal_staleness_compare_as_equation_25_says(alpha: float, beta: float) -> None:
    found = predict(4, 8, 1, 1.5, Times(3, 0.5, alpha, beta))
    assert found.continuous is not None
    assert found.step_time is not None
    assert found.continuous.step_time / found.step_time == pytest.approx((1.5 + beta) / (1.5 + alpha))


def test_at_equal_depth_continuous_dispatch_is_staler_by_a_batch_and_what_is_ready() -> None:
    found = predict(4, 8, 1, 1.5, Times(10, 1))
    twin = found.continuous_same_depth
    assert twin is not None
    assert twin.depth == found.depth == 10
    assert twin.ready == pytest.approx(1)
    assert twin.staleness == pytest.approx(found.staleness + 1 + 1 / 4)  # eq. 15


def test_a_trainer_that_is_too_slow_is_the_bound_and_ready_groups_pile_up() -> None:
    found = predict(4, 8, 1, 1.5, Times(3, 9))
    assert (found.step_time, found.bound) == (9, "training")
    assert found.continuous_same_depth is not None
    assert (found.continuous_same_depth.step_time, found.continuous_same_depth.staleness) == (9, None)


def test_nothing_dispatched_ahead_has_no_twin_that_is_as_fresh() -> None:
    assert predict(4, 8, 1, 0, HOURS).continuous is None


@pytest.mark.parametrize(
    ("depth", "phase", "step_time"),
    [
        (2, 1.0, 6.0),  # phi = 0: both groups ready 10 after the publication, trained until 12
        (3, 0.5, 6.0),  # phi = 1: one of two is from the round before, and was ready when that round's burst began
    ],
)
def test_a_burst_of_two_updates_takes_the_time_of_its_round(depth: int, phase: float, step_time: float) -> None:
    """B = 1, mu = 2, L = 10 for every group, an update takes 1: told by hand, round by round."""
    assert boundary_step_time(depth, groups=1, latency=10, training=1, phase=phase, mu=2) == pytest.approx(step_time)


def test_continuous_depth_and_staleness_undo_each_other() -> None:
    for mu in (1, 2, 3):
        depth = continuous_depth(3.0, groups=8, latency=5, training=0.5, mu=mu, phase=0)
        ready = continuous_ready(depth, latency=5, training=0.5, mu=mu)
        assert continuous_mean(depth, ready, groups=8, mu=mu) == pytest.approx(3.0)


def test_every_schedule_of_a_mean_staleness_is_found() -> None:
    assert schedules(1.5, 64) == [(1, 1.5), (2, 1.0), (3, 0.5), (4, 0.0)]
    assert schedules(0, 4) == [(1, 0)]


def test_groups_stay_whole_and_the_mean_comes_as_near_as_they_allow() -> None:
    for mu, phi in schedules(0.9, 4):
        assert (phi * 4).is_integer()
        assert abs(predict(4, 8, mu, phi).staleness - 0.9) <= 1 / 8


@pytest.mark.parametrize(
    ("staleness", "kind", "standalone", "chosen"),
    [
        (1.5, "async", 0, (1, 1.5)),  # A0
        (1.5, "colocate", 0, (4, 0.0)),  # C0
        (1.5, "colocate", 2, (3, 0.5)),  # C1 to C3
        (1.5, "elastic", 0, (3, 0.5)),  # E0
        (1.0, "elastic", 0, (2, 0.5)),
        (0.2, "elastic", 0, (1, 0.25)),
        (0.0, "elastic", 0, (1, 0.0)),
        (0.3, "async", 0, (1, 0.25)),
        (0.9, "colocate", 0, (3, 0.0)),
    ],
)
def test_what_is_recommended_is_what_was_published(
    staleness: float, kind: Kind, standalone: int, chosen: tuple[int, float]
) -> None:
    assert recommend(staleness, 4, kind, standalone) == chosen


def test_an_odd_batch_keeps_half_of_it_ahead_as_near_as_may_be() -> None:
    assert recommend(1.5, 5, "elastic") == (3, 0.4)
    assert recommend(1.5, 1, "elastic") == (2, 1.0)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (Times(0, 1), "latency: 0"),
        (Times(1, 0), "rate: "),
        (Times(inf, 1), "latency: inf"),
        (Times(1e308, 1), r"latency: 1e\+308"),
        (Times(1, inf), "rate: an update that takes inf"),
        (Times(1, 1, alpha=1), "alpha: 1"),
        (Times(1, 1, alpha=nan), "alpha: nan"),
        (Times(1, 1, beta=nan), "beta: nan"),
        (Times(1, 1, beta=-0.5), "beta: -0.5"),
        (Times(1, 1, beta=1.5), "beta: 1.5"),
    ],
)
def test_impossible_times_are_refused_by_name(times: Times, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        predict(4, 8, 1, 0.5, times)


def test_a_phi_that_cuts_groups_apart_is_refused_with_the_nearest_that_does_not() -> None:
    with pytest.raises(ValueError, match=r"phi: 0\.3 .* 0\.25 would be"):
        predict(4, 8, 1, 0.3)
    with pytest.raises(ValueError, match="staleness: -1"):
        schedules(-1, 4)


@pytest.mark.parametrize("phi", [inf, nan, 1e308, 1e9, -0.5])
def test_a_phi_beyond_all_schedules_is_refused_with_its_bounds(phi: float) -> None:
    with pytest.raises(ValueError, match=rf"phi: {re.escape(str(phi))} .* from 0 to 1000000"):
        predict(4, 8, 1, phi)


@pytest.mark.parametrize("staleness", [inf, nan, 1e9])
def test_a_staleness_that_would_have_candidates_without_end_is_refused(staleness: float) -> None:
    with pytest.raises(ValueError, match=rf"staleness: {re.escape(str(staleness))} .* from 0 to 1000"):
        recommend(staleness, 4, "elastic")


@pytest.mark.parametrize("place", range(3))
def test_counts_beyond_all_schedules_are_refused_by_name(place: int) -> None:
    counts = [4, 8, 2]
    counts[place] = 10**400
    with pytest.raises(ValueError, match=rf"{('groups', 'executions', 'mu')[place]}: 10+ is out of bounds"):
        predict(counts[0], counts[1], counts[2], 0.5)


def test_a_beta_that_leaves_hardly_any_depth_gives_no_time_without_end() -> None:
    with pytest.raises(ValueError, match="beta: "):
        predict(4, 8, 3, 0.0, Times(1, 1, beta=5e-324))
