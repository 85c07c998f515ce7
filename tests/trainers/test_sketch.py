"""What a sketch tells about two gradients."""

import math

import pytest
import torch

from gyre.trainers.sketch import WIDTH, apart, sketch


def gradients(size: int, relative: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One, and another that is so far from it."""
    random = torch.Generator().manual_seed(seed)
    one, other = (torch.randn(size, generator=random) for _ in range(2))
    return one, one + other * (relative * one.norm() / other.norm())


@pytest.mark.parametrize("relative", [1e-4, 1e-2, 1.0])
def test_the_distance_of_two_sketches_is_that_of_the_gradients(relative: float) -> None:
    found = [
        apart(sketch(other), sketch(one)) for one, other in (gradients(5000, relative, seed) for seed in range(20))
    ]
    mean = sum(found) / len(found)
    assert mean == pytest.approx(relative, rel=0.1)
    assert all(0.6 * relative < each < 1.5 * relative for each in found)


def test_a_change_of_one_element_shows_in_full() -> None:
    one = torch.ones(3_000_000)
    other = one.clone()
    other[2_500_000] += 100.0
    difference = apart(sketch(other), sketch(one)) * math.sqrt(sum(each**2 for each in values(one)))
    assert difference == pytest.approx(100.0, rel=1e-5)


def test_equal_gradients_have_equal_sketches_of_a_kilobyte() -> None:
    one, _ = gradients(1000, 0.0, 1)
    assert sketch(one) == sketch(one.clone())
    assert len(sketch(one)) == 4 * WIDTH
    assert apart(sketch(one), sketch(one)) == 0.0


def test_rounding_to_float32_stays_far_below_what_is_looked_for() -> None:
    one = torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert apart(sketch(one.float()), sketch(one)) < 1e-6


def test_a_gradient_where_none_was_is_infinitely_far() -> None:
    nothing = sketch(torch.zeros(10))
    assert apart(nothing, nothing) == 0.0
    assert apart(sketch(torch.ones(10)), nothing) == math.inf


def test_what_is_no_sketch_is_refused() -> None:
    with pytest.raises(ValueError, match="sketch of 0 bytes: need 1024"):
        apart(b"", sketch(torch.ones(10)))


def values(gradient: torch.Tensor) -> list[float]:
    from schemas.base import floats

    return floats(sketch(gradient))
