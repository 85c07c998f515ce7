"""Every algorithm and estimator on numbers that can be checked with a pencil, written from the papers alone.

Probabilities are powers of two, so ratios are exact: loss and slope (d loss / d log pi) stand beside each.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyre.rl.advantages import ESTIMATORS, Kind, advantages
from gyre.rl.algorithms.port import Settings, Targets
from gyre.rl.objective import decide, target_losses

ROOT = math.sqrt(2)


def trained(
    pi: list[float], roll: list[float], advantage: float, prox: list[float] | None = None, **settings: Any
) -> tuple[list[float], list[float], int]:
    """Losses, slopes and mask of one execution with these targets, its ratio taken over all of them."""
    chosen = Settings(**settings)
    log_pi = torch.tensor(pi, dtype=torch.float64).log().requires_grad_()
    log_roll = torch.tensor(roll, dtype=torch.float64).log()
    made = decide(float((log_pi.detach() - log_roll).sum()), len(pi), advantage, chosen)
    ratio, mask, same = (torch.full_like(log_roll, each) for each in (made.ratio, float(made.mask), advantage))
    log_prox = None if prox is None else torch.tensor(prox, dtype=torch.float64).log()
    losses = target_losses(Targets(log_pi, log_roll, same, ratio, mask, log_prox), chosen)
    losses.sum().backward()
    assert log_pi.grad is not None
    return losses.tolist(), log_pi.grad.tolist(), made.mask


def test_gyre_masks_an_execution_whole_and_weighs_each_token_by_itself() -> None:
    """Ratios 1 and 2: s = sqrt 2. Too far up already for A > 0; for A < 0 it may come back down."""
    assert trained([1 / 2, 1 / 2], [1 / 2, 1 / 4], 1.0) == ([0.0, 0.0], [0.0, 0.0], 0)
    losses, slopes, mask = trained([1 / 2, 1 / 2], [1 / 2, 1 / 4], -2.0)
    assert losses == pytest.approx([-2 * math.log(2), -4 * math.log(2)])  # -m w A log pi, with log pi = -log 2
    assert (slopes, mask) == (pytest.approx([2.0, 4.0]), 1)
    losses, slopes, _ = trained([1 / 2, 1 / 2], [1 / 32, 1 / 2], -1.0)  # ratios 16 and 1: the first weighs 5
    assert slopes == pytest.approx([5.0, 1.0])
    assert losses == pytest.approx([-5 * math.log(2), -math.log(2)])


def test_gspo_weighs_every_token_by_the_geometric_mean() -> None:
    losses, slopes, mask = trained([1 / 2, 1 / 2], [1 / 2, 1 / 4], -1.0, algorithm="gspo")
    assert (losses, slopes, mask) == (pytest.approx([ROOT, ROOT]), pytest.approx([ROOT, ROOT]), 1)
    losses, slopes, mask = trained([1 / 2, 1 / 2], [1 / 2, 1 / 4], 1.0, algorithm="gspo")  # clipped to 1.0004
    assert (losses, slopes, mask) == (pytest.approx([-1.0004] * 2), [0.0, 0.0], 0)
    losses, slopes, mask = trained([1 / 4, 1 / 4], [1 / 2, 1 / 4], -3.0, algorithm="gspo")  # clipped to 0.9997
    assert (losses, slopes, mask) == (pytest.approx([3 * 0.9997] * 2), [0.0, 0.0], 0)
    losses, slopes, mask = trained([1 / 4, 1 / 4], [1 / 2, 1 / 4], 3.0, algorithm="gspo")  # below, but to be raised
    assert (losses, slopes, mask) == (pytest.approx([-3 / ROOT] * 2), pytest.approx([-3 / ROOT] * 2), 1)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_grpo_and_ppo_clip_each_token_on_the_side_that_its_advantage_pushes_to(algorithm: str) -> None:
    """Ratios 1, 2 and 1/2, clipped to [0.8, 1.2]."""
    pi, roll = [1 / 2, 1 / 2, 1 / 4], [1 / 2, 1 / 4, 1 / 2]
    losses, slopes, mask = trained(pi, roll, 1.0, algorithm=algorithm)
    assert (losses, slopes, mask) == (pytest.approx([-1, -1.2, -0.5]), pytest.approx([-1, 0, -0.5]), 1)
    losses, slopes, mask = trained(pi, roll, -1.0, algorithm=algorithm)
    assert (losses, slopes, mask) == (pytest.approx([1, 2, 0.8]), pytest.approx([1, 2, 0]), 1)


def test_ppos_second_clip_bounds_what_a_bad_token_may_cost() -> None:
    """Ratios 4 and 8 with A = -1: grpo lets the second cost 8, the dual clip 5; A > 0 knows no second clip."""
    pi, roll = [1 / 2, 1 / 2], [1 / 8, 1 / 16]
    assert trained(pi, roll, -1.0, algorithm="ppo")[:2] == (pytest.approx([4, 5]), pytest.approx([4, 0]))
    assert trained(pi, roll, -1.0, algorithm="grpo")[:2] == (pytest.approx([4, 8]), pytest.approx([4, 8]))
    assert trained(pi, roll, 1.0, algorithm="ppo")[0] == pytest.approx([-1.2, -1.2])
    assert trained(pi, roll, -1.0, algorithm="ppo", weight_cap=3.0)[0] == pytest.approx([3, 3])  # as Ye et al. have it


def test_decoupled_corrects_for_the_behaviour_and_clips_against_the_proximal_policy() -> None:
    """proximal / behaviour = 8, capped at 5; new / proximal = 1.5 and 0.5, clipped to [0.8, 1.2]."""
    pi, roll, prox = [3 / 4, 1 / 4], [1 / 16, 1 / 16], [1 / 2, 1 / 2]
    losses, slopes, _ = trained(pi, roll, 1.0, prox, algorithm="decoupled")
    assert (losses, slopes) == (pytest.approx([-5 * 1.2, -5 * 0.5]), pytest.approx([0, -5 * 0.5]))
    losses, slopes, _ = trained(pi, roll, -1.0, prox, algorithm="decoupled")
    assert (losses, slopes) == (pytest.approx([5 * 1.5, 5 * 0.8]), pytest.approx([5 * 1.5, 0]))
    losses, slopes, _ = trained([1 / 2], [1 / 1], 1.0, [1 / 2], algorithm="decoupled")  # stale upwards: weight 1/2
    assert (losses, slopes) == (pytest.approx([-0.5]), pytest.approx([-0.5]))


PROBABILITIES = st.lists(st.tuples(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0)), min_size=1, max_size=6)
SIGNED = st.floats(-3, 3).filter(lambda value: abs(value) > 1e-3)


@given(PROBABILITIES, SIGNED)
def test_decoupled_is_grpo_where_the_proximal_policy_is_the_behaviour(
    pairs: list[tuple[float, float]], advantage: float
) -> None:
    pi, roll = ([pair[place] for pair in pairs] for place in (0, 1))
    apart = trained(pi, roll, advantage, roll, algorithm="decoupled")
    whole = trained(pi, roll, advantage, algorithm="grpo")
    assert apart[0] == pytest.approx(whole[0], rel=1e-9)
    assert apart[1] == pytest.approx(whole[1], rel=1e-9)


@given(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0), SIGNED)
def test_an_execution_of_one_token_is_the_same_to_gspo_and_grpo(pi: float, roll: float, advantage: float) -> None:
    bounds = {"ratio_low": 0.8, "ratio_high": 1.2}
    gspo = trained([pi], [roll], advantage, algorithm="gspo", **bounds)
    grpo = trained([pi], [roll], advantage, algorithm="grpo", **bounds)
    assert gspo[0] == pytest.approx(grpo[0], rel=1e-9)
    assert gspo[1] == pytest.approx(grpo[1], rel=1e-9)


@given(PROBABILITIES, SIGNED, st.sampled_from(["gyre", "gspo", "grpo", "ppo", "decoupled"]))
def test_no_step_raises_a_bad_token_or_lowers_a_good_one(
    pairs: list[tuple[float, float]], advantage: float, algorithm: str
) -> None:
    pi, roll = ([pair[place] for pair in pairs] for place in (0, 1))
    _, slopes, _ = trained(pi, roll, advantage, algorithm=algorithm)
    assert all(slope * advantage <= 0 for slope in slopes)


@pytest.mark.parametrize(
    ("kind", "rewards", "expected"),
    [
        # mean 1/2, population variance (1/4 + 1/4 + 0 + 0) / 4 = 1/8
        ("std", [0.0, 1.0, 0.5, 0.5], [-ROOT, ROOT, 0.0, 0.0]),
        ("mean", [0.0, 1.0, 0.5, 0.5, 0.25], [-0.45, 0.55, 0.05, 0.05, -0.2]),
        # five rewards: the third is the median, and the only one that is left at zero
        ("median", [0.0, 1.0, 0.5, 0.25, 0.75], [-0.5, 0.5, 0.0, -0.25, 0.25]),
        # |r - 1/2| = 1/2, 1/2, 0, 1/4, 1/4, whose median is 1/4
        ("median_mad", [0.0, 1.0, 0.5, 0.25, 0.75], [-2.0, 2.0, 0.0, -1.0, 1.0]),
        # one in four: the median deviation is 0, the mean one 1/4
        ("median_mad", [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 4.0]),
        # 1 - (0 + 0) / 2, and 0 - (0 + 1) / 2
        ("leave_one_out", [0.0, 0.0, 1.0], [-0.5, -0.5, 1.0]),
    ],
)
def test_advantages_by_hand(kind: Kind, rewards: list[float], expected: list[float]) -> None:
    assert advantages(rewards, kind) == pytest.approx(expected)
    with_gap = [*rewards[:1], None, *rewards[1:]]
    assert advantages(with_gap, kind) == pytest.approx([*expected[:1], 0.0, *expected[1:]])


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_an_outlier_moves_the_mean_of_its_group_and_not_its_median(kind: Kind) -> None:
    """MC-GRPO's reason: among 0, 0, 0, 1/4, 1 the mean is 1/4, and a reward above most others gets nothing."""
    found = advantages([0.0, 0.0, 0.0, 0.25, 1.0], kind)[3]
    assert found > 0.1 if kind.startswith("median") else found == pytest.approx(0.0)


@given(st.lists(st.integers(0, 8), min_size=2, max_size=9), st.integers(-4, 4), st.sampled_from(sorted(ESTIMATORS)))
def test_advantages_do_not_depend_on_where_zero_is(rewards: list[int], shift: int, kind: Kind) -> None:
    here = advantages([reward / 8 for reward in rewards], kind)
    assert advantages([(reward + shift) / 8 for reward in rewards], kind) == pytest.approx(here, abs=1e-9)
