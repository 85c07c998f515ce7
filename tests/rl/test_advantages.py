"""Group-relative advantages against numbers worked out by hand (design §7, Advantages)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.rl.advantages import ESTIMATORS, advantages, rule, shuffled

NEARLY = [0.3, 0.3, 0.3, 0.1 + 0.2]
REWARDS = st.lists(st.none() | st.floats(0, 1), max_size=12)


def test_rewards_are_centred_and_divided_by_the_population_deviation() -> None:
    assert advantages([1.0, 0.0, 0.0, 1.0]) == (1.0, -1.0, -1.0, 1.0)
    # mean 1/3, population variance ((1/3)^2 * 2 + (2/3)^2) / 3 = 2/9
    assert advantages([0.0, 0.0, 1.0]) == pytest.approx((-math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2)))


def test_the_mean_alone_is_taken_off_on_demand() -> None:
    assert advantages([0.0, 0.25, 1.0, 0.75], "mean") == (-0.5, -0.25, 0.5, 0.25)


def test_the_median_alone_is_taken_off_on_demand() -> None:
    assert advantages([0.0, 0.25, 1.0], "median") == (-0.25, 0.0, 0.75)
    assert advantages([0.0, 0.0, 0.5, 1.0], "median") == (-0.25, -0.25, 0.25, 0.75)


def test_the_mean_of_the_others_is_taken_off_on_demand() -> None:
    # 0.75 - (0 + 0.25 + 1) / 3 = 1/3
    assert advantages([0.0, 0.25, 1.0, 0.75], "leave_one_out") == pytest.approx((-2 / 3, -1 / 3, 2 / 3, 1 / 3))


def test_an_excluded_execution_is_not_counted() -> None:
    assert advantages([1.0, None, 0.0]) == (1.0, 0.0, -1.0)


def test_a_placeholders_zero_is_counted() -> None:
    assert advantages([1.0, 0.0, 1.0, 0.0], "mean") == (0.5, -0.5, 0.5, -0.5)


@pytest.mark.parametrize("rewards", [[], [1.0], [None, 0.5], [None, None], [0.3, 0.3, 0.3], [0.1, 0.1], NEARLY])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_fewer_than_two_rewards_or_no_spread_give_zero(rewards: list[float | None], kind: str) -> None:
    assert advantages(rewards, kind) == (0.0,) * len(rewards)  # type: ignore[arg-type]


@pytest.mark.parametrize("rewards", [[0.0, 5e-324], [0.0, 1e-9], [1e6, 1e6 + 1e-4]])
def test_rewards_that_differ_by_rounding_alone_have_no_spread(rewards: list[float]) -> None:
    assert advantages(rewards) == (0.0, 0.0)


def test_rewards_that_differ_by_more_have_one() -> None:
    assert advantages([0.0, 2e-9]) == pytest.approx((-1.0, 1.0))


def test_a_median_deviation_that_is_rounding_alone_divides_nothing() -> None:
    """Median 0.3, deviations 0, 0, 0, 0, 0.7 but for rounding: the mean one, 0.14, stands in."""
    assert 0.1 + 0.2 != 0.3
    assert advantages([0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2, 1.0], "median_mad") == pytest.approx((0.0, 0.0, 0.0, 0.0, 5.0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_named(bad: float) -> None:
    with pytest.raises(ValueError, match=r"rewards\[1\] = .* is not finite"):
        advantages([0.0, bad])


@given(REWARDS)
def test_advantages_sum_to_zero_and_order_like_the_rewards(rewards: list[float | None]) -> None:
    values = advantages(rewards)
    assert math.fsum(values) == pytest.approx(0, abs=1e-6)
    pairs = sorted((reward, value) for reward, value in zip(rewards, values, strict=True) if reward is not None)
    assert [value for _, value in pairs] == sorted(value for _, value in pairs)


@given(REWARDS, st.integers(0, 2**53))
def test_shuffling_deals_the_same_advantages_out_again(rewards: list[float | None], seed: int) -> None:
    values = advantages(rewards)
    dealt = shuffled(values, rewards, seed)
    assert sorted(dealt) == sorted(values)
    assert all(value == 0 for value, reward in zip(dealt, rewards, strict=True) if reward is None)
    assert dealt == shuffled(values, rewards, seed)


def test_shuffling_takes_the_reward_out_of_the_advantage() -> None:
    rewards = [1.0, 0.0, 0.0, 0.0]
    deals = [shuffled(advantages(rewards), rewards, seed) for seed in range(400)]
    places = [dealt.index(max(dealt)) for dealt in deals]
    assert all(60 < places.count(place) < 140 for place in range(4))


def test_a_rule_shuffles_only_when_told_to() -> None:
    rewards = [1.0, 0.0, 0.5, 0.25]
    assert rule("std", shuffle=False)(rewards, 7) == advantages(rewards)
    assert any(rule("std", shuffle=True)(rewards, seed) != advantages(rewards) for seed in range(5))
