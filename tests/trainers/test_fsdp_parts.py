"""What a rank of FSDP2 makes of a model's folder without reading its weights, and what it reads of a file of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from gyre.models.load import ModelError, load_model
from gyre.trainers.attention import attach
from gyre.trainers.fsdp.empty import empty_model, lent
from gyre.trainers.fsdp.files import parts_of, shapes_in
from gyre.trainers.fsdp.sharing import Chunks
from gyre.trainers.port import WeightsRefused
from gyre.trainers.recompute import Recompute
from tests.trainers import batch
from tests.trainers.conftest import one_thread  # noqa: F401 - a fixture

LONG = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def long_model() -> Any:
    """With turns that are not those of the default."""
    return batch.tiny_model(rope_parameters={**LONG, "original_max_position_embeddings": 64})


def halved_model() -> Any:
    """Its file holds bfloat16, and a head of its own."""
    return batch.tiny_model(tie_word_embeddings=False).bfloat16()


@pytest.fixture(params=[batch.tiny_model, batch.tiny_qwen, long_model, halved_model])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    request.param().save_pretrained(tmp_path)
    return tmp_path


def test_an_empty_model_is_the_loaded_one_without_its_parameters(folder: Path) -> None:
    empty, config = empty_model(folder)
    loaded, other = load_model(folder)
    assert config.to_dict() == other.to_dict()
    assert all(each.is_meta and each.dtype == torch.float32 for each in empty.parameters())
    shapes = [{name: each.shape for name, each in model.named_parameters()} for model in (empty, loaded)]
    assert list(shapes[0].items()) == list(shapes[1].items())
    buffers = dict(loaded.named_buffers())
    assert dict(empty.named_buffers()).keys() == buffers.keys()
    assert all(torch.equal(each, buffers[name]) for name, each in empty.named_buffers())


def test_an_empty_model_is_tried_as_a_loaded_one_is(folder: Path) -> None:
    empty, loaded = empty_model(folder)[0], load_model(folder)[0]
    before = dict(empty.named_parameters())
    attach(loaded)
    with lent(empty):
        attach(empty)
        pairs = [(Recompute(empty, budget), Recompute(loaded, budget)) for budget in (0, 20_000, 200_000, 1 << 30)]
    assert [mine.prepare(30) for mine, _ in pairs] == [other.prepare(30) for _, other in pairs]
    after = dict(empty.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is each for name, each in before.items())


def test_segments_that_would_see_each_other_are_noticed_without_weights(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    empty, _ = empty_model(folder)
    monkeypatch.setattr(empty, "set_attn_implementation", lambda name: None)  # as architectures do that cannot
    with lent(empty), pytest.raises(ValueError, match="its attention cannot be kept inside the segments"):
        attach(empty)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"model_type": "nothing"}', ""),
        (
            '{"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}',
            r"hidden size \(30\) is not",
        ),
    ],
)
def test_a_folder_without_a_model_is_refused(tmp_path: Path, config: str, said: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelError, match=rf"model folder .*{said}.*; give a complete causal model"):
        empty_model(tmp_path)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 17), st.integers(1, 5), st.integers(1, 6))
def test_ranks_read_what_they_are_told_to_hold(tmp_path: Path, first: int, second: int, ranks: int) -> None:
    whole = {"a": torch.randn(first, second), "b": torch.arange(float(first)), "n": torch.tensor(3)}
    file = tmp_path / "some.safetensors"
    save_file(whole, file)
    assert {name: each.shape for name, each in shapes_in(file).items()} == {n: each.shape for n, each in whole.items()}
    chunks = Chunks(ranks)
    shards = chunks.shards({name: whole[name] for name in "ab"})
    for rank in range(ranks):
        with parts_of(file, chunks, rank) as part:
            assert all(torch.equal(part(name), shards[rank][name]) for name in "ab")
            assert int(part("n")) == 3


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("spoil", [Path.unlink, shorten, make_folder])
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    file = tmp_path / "some.safetensors"
    save_file({"a": torch.ones(4)}, file)
    spoil(file)
    with pytest.raises(WeightsRefused, match=r"some\.safetensors: not a readable safetensors file"):
        shapes_in(file)
    with pytest.raises(WeightsRefused, match=r"some\.safetensors: not a readable"), parts_of(file, Chunks(2), 0):
        pass
