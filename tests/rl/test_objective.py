"""The objective against NumPy float64, written from the formulas of design §7 and of the papers named there."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gyre.rl.algorithms.port import Settings, Targets
from gyre.rl.objective import ALGORITHMS, Decision, decide, target_losses

Array = NDArray[np.float64]

# Two executions, A = 2 and A = -1.5, with ratios from far below to far above both caps.
LOG_PI = np.array([-0.1, -2.0, -0.7, -60.0, -0.4, -9.0, -1.0])
LOG_ROLL = np.array([-0.1, -4.5, -0.2, -60.0, -0.5, -9.0, -3.9])
ADVANTAGE = np.array([2.0, 2.0, 2.0, 2.0, -1.5, -1.5, -1.5])


def targets(ratio: Array, mask: Array, log_pi: Array = LOG_PI) -> Targets:
    leaf = torch.tensor(log_pi, requires_grad=True)
    rest = (torch.tensor(each, dtype=torch.float64) for each in (LOG_ROLL, ADVANTAGE, ratio, mask))
    return Targets(leaf, *rest)


def losses_and_slopes(given: Targets, settings: Settings) -> tuple[Array, Array]:
    losses = target_losses(given, settings)
    losses.sum().backward()
    assert given.log_pi.grad is not None
    return losses.detach().numpy(), given.log_pi.grad.numpy()


def per_execution() -> tuple[Array, Array]:
    """s_i and m_i of each target's execution: exp of the mean log ratio; masked beyond 1.005 up or 0.995 down."""
    ratio, mask = np.empty(7), np.empty(7)
    for mine in (ADVANTAGE > 0, ADVANTAGE < 0):
        s = np.exp(np.mean(LOG_PI[mine] - LOG_ROLL[mine]))
        advantage = ADVANTAGE[mine][0]
        ratio[mine] = s
        mask[mine] = 0.0 if (advantage > 0 and s > 1.005) or (advantage < 0 and s < 0.995) else 1.0
    return ratio, mask


@pytest.mark.parametrize("mask", [np.ones(7), per_execution()[1], np.zeros(7)])
def test_losses_and_slopes_are_those_of_the_formulas(mask: Array) -> None:
    rho_bar = np.minimum(np.exp(LOG_PI - LOG_ROLL), 5.0)
    raw = -mask * rho_bar * ADVANTAGE * LOG_PI
    losses, slopes = losses_and_slopes(targets(np.ones(7), mask), Settings())
    np.testing.assert_allclose(losses, np.minimum(raw, 100.0), rtol=1e-14)
    np.testing.assert_allclose(slopes, np.where(raw > 100.0, 0.0, -mask * rho_bar * ADVANTAGE), rtol=1e-14)


def test_the_decision_is_that_of_the_formulas() -> None:
    ratio, mask = per_execution()
    for mine in (ADVANTAGE > 0, ADVANTAGE < 0):
        made = decide(float(np.sum(LOG_PI[mine] - LOG_ROLL[mine])), int(mine.sum()), ADVANTAGE[mine][0], Settings())
        assert made.ratio == pytest.approx(ratio[mine][0], rel=1e-14)
        assert made.mask == mask[mine][0]


def test_an_importance_weight_stops_at_five() -> None:
    _, slopes = losses_and_slopes(targets(np.ones(7), np.ones(7)), Settings())
    assert math.exp(LOG_PI[1] - LOG_ROLL[1]) > 12
    assert slopes[1] == -5.0 * 2.0


def test_a_loss_stops_at_a_hundred_and_trains_no_further() -> None:
    losses, slopes = losses_and_slopes(targets(np.ones(7), np.ones(7)), Settings())
    assert losses[3] == 100.0  # 2 x 60 without the cap
    assert slopes[3] == 0.0


def test_only_the_upper_side_of_a_loss_is_bounded() -> None:
    log_pi = np.where(ADVANTAGE < 0, -300.0, LOG_PI)
    given = Targets(
        torch.tensor(log_pi, requires_grad=True),
        torch.tensor(log_pi),
        *(torch.tensor(each) for each in (ADVANTAGE, np.ones(7), np.ones(7))),
    )
    assert target_losses(given, Settings())[5].item() == -450.0


@pytest.mark.parametrize(
    ("advantage", "ratio", "mask"),
    [
        (1.0, 1.0051, 0),
        (1.0, 1.0049, 1),
        (1.0, 0.5, 1),
        (-1.0, 0.9949, 0),
        (-1.0, 0.9951, 1),
        (-1.0, 2.0, 1),
        (0.0, 2.0, 1),
        (0.0, 0.5, 1),
    ],
)
def test_an_execution_is_masked_only_where_it_went_too_far_already(advantage: float, ratio: float, mask: int) -> None:
    assert decide(4 * math.log(ratio), 4, advantage, Settings()).mask == mask


def test_a_ratio_on_the_bound_itself_still_trains() -> None:
    exactly = decide(0.0, 3, 1.0, Settings(ratio_low=1.0, ratio_high=1.0))
    assert exactly == Decision(1.0, 1)


def test_a_part_of_an_execution_would_be_decided_differently() -> None:
    parts = [0.09, 0.003, -0.03]  # sums of log rho of ten targets each
    whole = decide(sum(parts), 30, 1.0, Settings(ratio_high=1.002))
    assert whole.mask == 0
    assert [decide(each, 10, 1.0, Settings(ratio_high=1.002)).mask for each in parts] == [0, 1, 1]


@pytest.mark.parametrize("total", [1e6, -1e6])
def test_a_ratio_stays_finite_and_above_zero(total: float) -> None:
    assert 0.0 < decide(total, 1, 1.0, Settings()).ratio < math.inf


@pytest.mark.parametrize(("total", "count"), [(0.0, 0), (math.nan, 2), (math.inf, 2)])
def test_a_ratio_of_nothing_or_of_no_number_is_refused(total: float, count: int) -> None:
    with pytest.raises(ValueError, match=r"count = 0|log_ratio_sum = "):
        decide(total, count, 1.0, Settings())


def test_grpo_clips_each_token_by_its_own_ratio() -> None:
    rho = np.exp(LOG_PI - LOG_ROLL)
    expected = -np.minimum(rho * ADVANTAGE, np.clip(rho, 0.8, 1.2) * ADVANTAGE)
    settings = Settings(algorithm="grpo", ratio_low=0.8, ratio_high=1.2)
    losses, slopes = losses_and_slopes(targets(np.ones(7), np.zeros(7)), settings)
    np.testing.assert_allclose(losses, expected, rtol=1e-14)
    clipped = ((ADVANTAGE > 0) & (rho > 1.2)) | ((ADVANTAGE < 0) & (rho < 0.8))
    np.testing.assert_allclose(slopes, np.where(clipped, 0.0, -rho * ADVANTAGE), rtol=1e-14)
    assert decide(10.0, 1, 1.0, settings).mask == 1


def test_ppo_also_bounds_what_a_negative_advantage_may_cost() -> None:
    rho = np.exp(LOG_PI - LOG_ROLL)
    surrogate = np.minimum(rho * ADVANTAGE, np.clip(rho, 0.8, 1.2) * ADVANTAGE)
    expected = -np.where(ADVANTAGE < 0, np.maximum(surrogate, 5.0 * ADVANTAGE), surrogate)
    settings = Settings(algorithm="ppo", ratio_low=0.8, ratio_high=1.2)
    losses, slopes = losses_and_slopes(targets(np.ones(7), np.ones(7)), settings)
    np.testing.assert_allclose(losses, expected, rtol=1e-14)
    assert (losses[6], slopes[6]) == (7.5, 0.0)  # rho = 18 there


def test_gspo_has_the_slope_of_the_executions_ratio() -> None:
    """Against a difference quotient of -min(s A, clip(s) A), s the geometric mean of the ratios: one per execution."""
    settings = Settings(algorithm="gspo", ratio_low=0.9, ratio_high=1.1)

    def surrogate(log_pi: Array, mine: NDArray[np.bool_]) -> float:
        s, advantage = np.exp(np.mean(log_pi[mine] - LOG_ROLL[mine])), ADVANTAGE[mine][0]
        return float(-np.minimum(s * advantage, np.clip(s, 0.9, 1.1) * advantage))

    log_pi = LOG_PI - np.where(ADVANTAGE > 0, 0.6, 0.0)  # s = 0.9 and more on the kept side, so that both train
    for mine in (ADVANTAGE > 0, ADVANTAGE < 0):
        count = int(mine.sum())
        made = decide(float(np.sum((log_pi - LOG_ROLL)[mine])), count, ADVANTAGE[mine][0], settings)
        given = targets(np.full(7, made.ratio), np.full(7, float(made.mask)), log_pi)
        losses, slopes = losses_and_slopes(given, settings)
        assert losses[mine].mean() == pytest.approx(surrogate(log_pi, mine), rel=1e-12)
        for place in np.flatnonzero(mine):
            step = np.zeros(7)
            step[place] = 1e-6
            quotient = (surrogate(log_pi + step, mine) - surrogate(log_pi - step, mine)) / 2e-6
            assert slopes[place] / count == pytest.approx(quotient, rel=1e-6, abs=1e-9)
        assert made.mask == 1


def test_a_clipped_gspo_execution_costs_its_bound_and_trains_nothing() -> None:
    settings = Settings(algorithm="gspo")
    losses, slopes = losses_and_slopes(targets(np.full(7, 1.5), np.zeros(7)), settings)
    np.testing.assert_allclose(losses[ADVANTAGE > 0], -1.0004 * 2.0, rtol=1e-14)
    assert not slopes.any()


def test_decoupled_weighs_by_the_proximal_policy_and_clips_against_it() -> None:
    """By hand: p_roll = 1/8, pi_prox = 1/2, pi = 3/4: weight 4; r = 3/2, clipped to 1.2 where A > 0 only."""
    log_pi = torch.tensor([math.log(0.75)] * 2, dtype=torch.float64, requires_grad=True)
    log_roll, log_prox = (torch.full((2,), math.log(each), dtype=torch.float64) for each in (0.125, 0.5))
    advantage, ones = torch.tensor([2.0, -1.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    given = Targets(log_pi, log_roll, advantage, ones, ones, log_prox)
    losses, slopes = losses_and_slopes(given, Settings("decoupled"))
    np.testing.assert_allclose(losses, [-4 * 1.2 * 2.0, 4 * 1.5], rtol=1e-14)
    np.testing.assert_allclose(slopes, [0.0, 4 * 1.5], rtol=1e-14)


def test_decoupled_is_the_capped_policy_gradient_when_a_batch_is_updated_once() -> None:
    losses, slopes = losses_and_slopes(targets(np.ones(7), np.ones(7)), Settings("decoupled", weight_cap=3.0))
    weight = np.minimum(np.exp(LOG_PI - LOG_ROLL), 3.0)
    np.testing.assert_allclose(losses, -weight * ADVANTAGE, rtol=1e-14)
    np.testing.assert_allclose(slopes, -weight * ADVANTAGE, rtol=1e-14)
    assert decide(9.0, 1, 1.0, Settings("decoupled")).mask == 1


def test_each_algorithm_has_the_bounds_of_its_paper_unless_told_otherwise() -> None:
    assert [(each, Settings(each).low, Settings(each).high) for each in ALGORITHMS] == [
        ("gyre", 0.995, 1.005),
        ("gspo", 1 - 3e-4, 1 + 4e-4),
        ("grpo", 0.8, 1.2),
        ("ppo", 0.8, 1.2),
        ("decoupled", 0.8, 1.2),
    ]
    assert (Settings("grpo", ratio_high=1.28).low, Settings("grpo", ratio_high=1.28).high) == (0.8, 1.28)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"algorithm": "dpo"}, "algorithm = 'dpo'"),
        ({"ratio_low": 1.1}, "ratio_low = 1.1"),
        ({"ratio_high": 0.9}, "ratio_high = 0.9"),
        ({"weight_cap": 0.5}, "weight_cap = 0.5"),
        ({"loss_cap": 0.0}, "loss_cap = 0.0"),
    ],
)
def test_impossible_settings_are_refused_by_name(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)  # type: ignore[arg-type]
