"""Optimizer files of mixtures of experts name experts apart, as weights do, whatever transformers fuses in memory."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gyre.rl.experts import together
from gyre.trainers.optimizer import Adam, AdamSettings
from gyre.trainers.port import Saved, WeightsRefused
from gyre.trainers.torch import TorchTrainer
from tests.trainers import batch

FAST = AdamSettings(learning_rate=1e-3)


def trainer() -> TorchTrainer:
    return batch.trainer(adam=FAST, model=batch.tiny_mixture())


def gradient() -> torch.Tensor:
    size = sum(each.numel() for each in batch.tiny_mixture().parameters())
    return torch.randn(size, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """After two updates."""
    first = trainer()
    for step in (1, 2):
        first.apply(gradient() * step)
    return first.save(tmp_path)


def test_moments_are_named_as_the_weights_are(saved: Saved, tmp_path: Path) -> None:
    weights, state = load_file(tmp_path / saved.weights.address), load_file(tmp_path / saved.optimizer.address)
    assert "model.layers.1.mlp.experts.7.up_proj.weight" in weights
    assert set(state) == {f"{which}.{name}" for which in ("first", "second") for name in weights} | {"updates"}
    assert all(state[f"first.{name}"].shape == each.shape for name, each in weights.items())


def test_an_update_is_that_of_the_fused_tensors(saved: Saved, tmp_path: Path) -> None:
    fused = {name: each.data for name, each in batch.tiny_mixture().named_parameters()}
    adam = Adam(fused, FAST)
    for step in (1, 2):
        adam.apply(gradient() * step)
    found = together(load_file(tmp_path / saved.weights.address))
    assert found.keys() == fused.keys()
    assert all(torch.equal(each, fused[name]) for name, each in found.items())


def test_a_file_of_fused_moments_is_gone_on_from(saved: Saved, tmp_path: Path) -> None:
    """As they were saved before moments were named apart."""
    old = together(load_file(tmp_path / saved.optimizer.address))
    assert "first.model.layers.0.mlp.experts.gate_up_proj" in old
    save_file(old, tmp_path / "old.safetensors")
    second = trainer()
    second.restore(tmp_path / saved.weights.address, tmp_path / "old.safetensors")
    assert second.save(tmp_path / "again") == saved


def test_a_folder_of_megatrons_format_is_refused_with_what_to_do(saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "optimizer" / ("0" * 64)).mkdir()
    with pytest.raises(WeightsRefused, match=r'go on with trainer\.kind = "megatron"'):
        trainer().restore(tmp_path / saved.weights.address, tmp_path / "optimizer" / ("0" * 64))
