"""The draw and its log-probability, against numbers worked out by hand and against frequencies."""

import math

import numpy as np
import pytest
import torch

from gyre.engines.sampling import draw_key, sample, uniforms

FOUR = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3]))


def draw(
    logits: torch.Tensor, u: list[float], t: float = 1.0, p: float = 1.0, k: int = 0
) -> tuple[list[int], list[float]]:
    n = len(u)
    tokens, logprobs = sample(
        logits.expand(n, -1).contiguous(),
        torch.full((n,), t),
        torch.full((n,), p),
        torch.full((n,), k),
        torch.tensor(u, dtype=torch.float64),
    )
    return tokens.tolist(), logprobs.tolist()


def test_a_draw_inverts_the_cumulative_distribution() -> None:
    tokens, logprobs = draw(FOUR, [0.05, 0.15, 0.49, 0.51, 0.69, 0.71, 0.999999])
    assert tokens == [0, 1, 1, 2, 2, 3, 3]
    assert logprobs == pytest.approx([math.log(p) for p in (0.1, 0.4, 0.4, 0.2, 0.2, 0.3, 0.3)], abs=1e-6)


def test_temperature_sharpens_what_is_drawn_and_what_is_reported() -> None:
    squared = [0.01 / 0.30, 0.16 / 0.30, 0.04 / 0.30, 0.09 / 0.30]  # T = 1/2 squares the probabilities
    tokens, logprobs = draw(FOUR, [0.03, 0.04], t=0.5)
    assert tokens == [0, 1]
    assert logprobs == pytest.approx([math.log(squared[0]), math.log(squared[1])], abs=1e-6)


def test_top_k_leaves_the_likeliest_renormalised() -> None:
    tokens, logprobs = draw(FOUR, [0.5, 0.6], k=2)  # 0.4 and 0.3 of 0.7
    assert tokens == [1, 3]
    assert logprobs == pytest.approx([math.log(4 / 7), math.log(3 / 7)], abs=1e-6)


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    tokens, logprobs = draw(FOUR, [0.01, 0.99], p=0.65)  # 0.4, then 0.3 crosses it
    assert tokens == [1, 3]
    assert logprobs == pytest.approx([math.log(4 / 7), math.log(3 / 7)], abs=1e-6)
    assert draw(FOUR, [0.99], p=0.01) == ([1], [pytest.approx(0.0, abs=1e-6)])


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    tokens, _ = draw(FOUR, [0.99], p=0.5, k=2)  # 0.4 / 0.7 alone reaches a half
    assert tokens == [1]


def test_among_equals_top_k_keeps_the_lower_ids() -> None:
    tokens, _ = draw(torch.zeros(6), [0.1, 0.4, 0.9], k=2)
    assert tokens == [0, 0, 1]


def test_greedy_takes_the_likeliest_with_certainty() -> None:
    assert draw(FOUR, [0.01, 0.99], t=0.0) == ([1, 1], [0.0, 0.0])


def test_rows_keep_their_own_settings() -> None:
    tokens, logprobs = sample(
        FOUR.expand(3, -1).contiguous(),
        torch.tensor([1.0, 0.0, 1.0]),
        torch.tensor([1.0, 1.0, 0.3]),
        torch.tensor([0, 0, 0]),
        torch.tensor([0.05, 0.05, 0.05], dtype=torch.float64),
    )
    assert tokens.tolist() == [0, 1, 1]
    assert logprobs.tolist() == pytest.approx([math.log(0.1), 0.0, 0.0], abs=1e-6)


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf])
    tokens, _ = draw(logits, [1e-15, 0.4999999, 0.5, 0.5000001, 1 - 2**-49])
    assert set(tokens) == {1, 3}


def test_logits_that_are_not_finite_show_in_the_logprob() -> None:
    assert math.isnan(draw(torch.full((4,), torch.nan), [0.5])[1][0])


def test_draws_follow_the_distribution() -> None:
    n, size = 40_000, 20
    logits = torch.randn(size, generator=torch.Generator().manual_seed(1))
    keys = np.full(n, draw_key(5, ""), np.uint64)
    tokens, _ = draw(logits, uniforms(keys, np.arange(n)).tolist(), t=0.7, k=12)
    kept = torch.full((size,), -torch.inf).scatter(0, logits.topk(12).indices, logits.topk(12).values)
    expected = torch.softmax(kept / 0.7, -1).numpy() * n
    seen = np.bincount(tokens, minlength=size)
    chi = ((seen - expected) ** 2)[expected > 0] / expected[expected > 0]
    assert seen[expected == 0].sum() == 0
    assert chi.sum() < 31.3  # 11 degrees of freedom, 0.1 % level


def test_uniforms_are_uniform_over_positions_and_over_seeds() -> None:
    over_positions = uniforms(np.full(20_000, draw_key(0, ""), np.uint64), np.arange(20_000))
    over_seeds = uniforms(np.array([draw_key(s, "") for s in range(20_000)], np.uint64), np.full(20_000, 17))
    for draws in (over_positions, over_seeds):
        assert 0 < draws.min() < draws.max() < 1
        assert np.histogram(draws, 10, (0, 1))[0].std() < 90  # binomial: 42
    assert abs(np.corrcoef(over_positions[1:], over_positions[:-1])[0, 1]) < 0.03


def test_a_request_without_a_seed_draws_by_its_id() -> None:
    assert draw_key(None, "a") == draw_key(None, "a")
    assert len({draw_key(None, "a"), draw_key(None, "b"), draw_key(1, "a"), draw_key(2, "a")}) == 4
    assert draw_key(1, "a") == draw_key(1, "b")
