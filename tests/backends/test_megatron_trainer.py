"""Real megatron-core ranks on the CPU, against the formulas and against the torch trainer."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gyre.rl.algorithms.port import Settings
from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.layout import Layout, LayoutRefused
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import GradientRefused, MicroStepRefused, UpdateSpoilt
from tests.backends.conftest import SHIMS
from tests.trainers import batch
from tests.trainers.batch import TEMPERATURE, distance, micro_step
from tests.trainers.conftest import one_thread  # noqa: F401 - a fixture
from tests.trainers.test_gradient import everything, split_steps, wanted

pytestmark = pytest.mark.timeout(300)
LAYOUTS = {
    "one rank": Ranks(1, 1, "gloo"),
    "tensor 2": Ranks(2, 1, "gloo"),
    "pipeline 2": Ranks(1, 2, "gloo"),
    "tensor 2 x pipeline 2": Ranks(2, 2, "gloo"),
    "tensor 2 with sequence parallelism x context 2": Ranks(2, 1, "gloo", context=2, sequence=True),
}
CLOSE = 1e-5  # relative, float32
ADAM = AdamSettings(learning_rate=1e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    batch.tiny_model().save_pretrained(folder)
    return folder


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS, scope="module")
def megatron(request: pytest.FixtureRequest, model: Path) -> Iterator[MegatronTrainer]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")])
    made = MegatronTrainer(model, TEMPERATURE, Settings(), ADAM, request.param)
    yield made
    made.close()


@pytest.fixture
def trainer(megatron: MegatronTrainer, model: Path) -> MegatronTrainer:
    megatron.load(model / "model.safetensors")
    return megatron


def test_gradient_and_loss_are_those_of_the_formulas(trainer: MegatronTrainer) -> None:
    stats = trainer.micro_step(micro_step([everything()])).stats
    assert distance(trainer.gradient, wanted().gradient) < CLOSE
    weights = {each.execution: each.weight for each in everything()}
    assert sum(each.loss * weights[each.execution] for each in stats) == pytest.approx(wanted().loss, rel=1e-5)
    assert {each.execution: each.mask for each in stats} == wanted().mask


def test_rows_of_one_segment_give_the_same(trainer: MegatronTrainer) -> None:
    stats = trainer.micro_step(micro_step([[each] for each in everything()])).stats
    assert distance(trainer.gradient, wanted().gradient) < CLOSE
    assert {each.execution: each.mask for each in stats} == wanted().mask


def test_executions_in_parts_give_the_same(trainer: MegatronTrainer) -> None:
    for enqueued in split_steps([trainer]):  # type: ignore[list-item]
        trainer.micro_step(enqueued)
    assert distance(trainer.gradient, wanted().gradient) < CLOSE


def test_an_update_is_that_of_the_torch_trainer_and_goes_on_from_its_files(
    trainer: MegatronTrainer, tmp_path: Path
) -> None:
    other = batch.trainer(adam=ADAM)
    gradient = torch.from_numpy(wanted().gradient).float()
    for step in range(3):
        mine, theirs = trainer.apply(gradient * (step + 1)), other.apply(gradient * (step + 1))
        assert mine.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-6)
    saved, twin = trainer.save(tmp_path / "megatron"), other.save(tmp_path / "torch")
    for ours, others in ((saved.weights, twin.weights), (saved.optimizer, twin.optimizer)):
        found, expected = (
            load_file(tmp_path / "megatron" / ours.address),
            load_file(tmp_path / "torch" / others.address),
        )
        assert found.keys() == expected.keys()
        for name, each in found.items():
            torch.testing.assert_close(each, expected[name], rtol=1e-6, atol=1e-9)
    trainer.restore(tmp_path / "torch" / twin.weights.address, tmp_path / "torch" / twin.optimizer.address)
    assert trainer.save(tmp_path / "again") == twin


def test_what_was_released_comes_back(trainer: MegatronTrainer, model: Path) -> None:
    trainer.release()
    trainer.zero()
    trainer.load(model / "model.safetensors")
    trainer.micro_step(micro_step([everything()]))
    assert distance(trainer.gradient, wanted().gradient) < CLOSE


def test_bad_input_is_refused_by_all_ranks_and_nothing_is_spoilt(trainer: MegatronTrainer) -> None:
    segment = everything()[0]
    wrong = segment.model_copy(update={"ids": np.full(len(segment.target), 9999, "<i4").tobytes()})
    with pytest.raises(MicroStepRefused, match="ids from 9999"):
        trainer.micro_step(micro_step([[wrong]]))
    with pytest.raises(GradientRefused, match="of 3 elements"):
        trainer.apply(torch.zeros(3))
    with pytest.raises(GradientRefused, match="norm = nan"):
        trainer.apply(torch.full_like(trainer.gradient, float("nan")))
    trainer.micro_step(micro_step([everything()]))
    assert distance(trainer.gradient, wanted().gradient) < CLOSE


def test_an_update_that_gives_no_numbers_is_refused_and_strands_no_rank(
    trainer: MegatronTrainer, model: Path, tmp_path: Path
) -> None:
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, tmp_path / "nan.safetensors")
    trainer.load(tmp_path / "nan.safetensors")
    with pytest.raises(UpdateSpoilt, match="not finite"):
        trainer.apply(torch.zeros_like(trainer.gradient))
    trainer.load(model / "model.safetensors")
    trainer.micro_step(micro_step([everything()]))
    assert distance(trainer.gradient, wanted().gradient) < CLOSE


@pytest.mark.parametrize(("tensor", "pipeline", "said"), [(3, 1, "num_key_value_heads"), (1, 5, "num_hidden_layers")])
def test_a_model_that_does_not_fit_the_ranks_is_refused(tensor: int, pipeline: int, said: str) -> None:
    config = batch.tiny_model().config.to_dict()
    with pytest.raises(LayoutRefused, match=said):
        Layout.of(config, Grid(tensor, pipeline))
