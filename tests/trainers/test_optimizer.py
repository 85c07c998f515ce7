"""Adam with decoupled decay and the clip by global norm, against NumPy float64."""

import numpy as np
import pytest
import torch

from gyre.trainers.optimizer import Adam, AdamSettings, global_norm
from gyre.trainers.port import GradientRefused, UpdateSpoilt, WeightsRefused

SETTINGS = AdamSettings(learning_rate=1e-2)


def parameters() -> dict[str, torch.Tensor]:
    return {"a": torch.linspace(-1, 1, 6).reshape(2, 3), "b": torch.tensor([0.5, -2.0])}


def flat(tensors: dict[str, torch.Tensor]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return torch.cat([each.reshape(-1) for each in tensors.values()]).double().numpy()


def test_three_updates_are_those_of_the_formulas() -> None:
    mine = parameters()
    adam = Adam(mine, SETTINGS)
    p, m, n = flat(parameters()), np.zeros(8), np.zeros(8)
    for k in (1, 2, 3):
        gradient = np.random.default_rng(k).normal(size=8).astype(np.float32)
        norm = float(np.linalg.norm(gradient.astype(np.float64)))
        g = gradient.astype(np.float64) * min(1.0, 1.0 / norm)
        m = 0.9 * m + 0.1 * g
        n = 0.95 * n + 0.05 * g**2
        p = p - 1e-2 * 0.01 * p - 1e-2 * (m / (1 - 0.9**k)) / (np.sqrt(n / (1 - 0.95**k)) + 1e-15)
        applied = adam.apply(torch.from_numpy(gradient))
        assert applied.gradient_norm == pytest.approx(norm, rel=1e-12)
        assert applied.clip_coefficient == pytest.approx(min(1.0, 1.0 / norm), rel=1e-12)
        np.testing.assert_allclose(flat(mine), p, rtol=2e-6)


def test_a_gradient_within_the_clip_is_left_as_it_is() -> None:
    assert Adam(parameters(), SETTINGS).apply(torch.full((8,), 0.1)).clip_coefficient == 1.0


def test_a_gradient_of_nothing_only_decays_the_weights() -> None:
    mine = parameters()
    assert Adam(mine, SETTINGS).apply(torch.zeros(8)).gradient_norm == 0.0
    np.testing.assert_allclose(flat(mine), flat(parameters()) * (1 - 1e-4), rtol=1e-6)


@pytest.mark.parametrize("gradient", [torch.tensor([1.0] * 7 + [float("nan")]), torch.ones(7)])
def test_a_broken_gradient_changes_neither_weights_nor_moments(gradient: torch.Tensor) -> None:
    mine = parameters()
    adam = Adam(mine, SETTINGS)
    with pytest.raises(GradientRefused, match=r"gradient norm = nan|7 elements: the model has 8"):
        adam.apply(gradient)
    assert np.array_equal(flat(mine), flat(parameters()))
    assert not any(each.any() for each in adam.state().values())


@pytest.mark.parametrize("size", [8, (1 << 20) + 1])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_weights_that_an_update_leaves_without_a_number_are_refused(size: int, broken: float) -> None:
    mine = {"a": torch.ones(3), "b": torch.ones(size), "c": torch.ones(2)}
    mine["b"][-1] = broken
    with pytest.raises(UpdateSpoilt, match=r"^update 1: weights that are not finite: lower optimizer\.lr"):
        Adam(mine, SETTINGS).apply(torch.zeros(size + 5))


def test_a_learning_rate_that_leaves_no_numbers_is_found_at_the_update() -> None:
    with pytest.raises(UpdateSpoilt):
        Adam(parameters(), AdamSettings(learning_rate=1e37, weight_decay=1e37)).apply(torch.ones(8))


def test_epsilon_stays_above_0_in_the_numbers_of_the_optimizer() -> None:
    with pytest.raises(ValueError, match=r"epsilon = 1e-46: give at least 1\.175"):
        AdamSettings(epsilon=1e-46)
    mine = parameters()
    Adam(mine, AdamSettings(epsilon=2.0**-126)).apply(torch.tensor([1.0] + [0.0] * 7))
    assert np.isfinite(flat(mine)).all()


def test_a_restored_optimizer_goes_on_to_the_same_bits() -> None:
    mine, other = parameters(), parameters()
    adam = Adam(mine, SETTINGS)
    adam.apply(torch.ones(8))
    other = {name: each.clone() for name, each in mine.items()}
    twin = Adam(other, SETTINGS)
    twin.restore({name: each.clone() for name, each in adam.state().items()})
    adam.apply(torch.arange(8.0))
    twin.apply(torch.arange(8.0))
    assert np.array_equal(flat(mine), flat(other))


def test_another_models_state_is_refused_by_name() -> None:
    state = Adam(parameters(), SETTINGS).state()
    with pytest.raises(WeightsRefused, match=r"missing \['first.a'\]"):
        Adam(parameters(), SETTINGS).restore({name: each for name, each in state.items() if name != "first.a"})
    with pytest.raises(WeightsRefused, match=r"first.b is \(3,\), the model has \(2,\)"):
        Adam(parameters(), SETTINGS).restore(state | {"first.b": torch.zeros(3)})


def test_the_norm_of_millions_of_elements_is_exact() -> None:
    assert global_norm(torch.full((3_000_000,), 0.1)) == pytest.approx(np.float32(0.1) * 3e6**0.5, rel=1e-12)


@pytest.mark.parametrize("wrong", ["learning_rate", "epsilon", "clip", "beta1", "beta2", "weight_decay"])
def test_impossible_settings_are_refused_by_name(wrong: str) -> None:
    with pytest.raises(ValueError, match=f"{wrong} = -1.0"):
        AdamSettings(**{wrong: -1.0})
