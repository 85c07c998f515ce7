"""What the trainer keeps, refuses and gives back."""

from pathlib import Path

import pytest
import torch

from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import AccumulatorSpoilt, MicroStepRefused, UpdateSpoilt, WeightsRefused
from schemas.base import pack_floats, pack_ints
from schemas.training import Segment
from tests.trainers import batch
from tests.trainers.batch import CASES, micro_step

FAST = AdamSettings(learning_rate=1e-2)


@pytest.fixture(scope="module")
def parts() -> list[Segment]:
    return [segment for each in CASES for segment in batch.segments(each)]


def test_a_restored_trainer_goes_on_to_the_same_files(tmp_path: Path, parts: list[Segment]) -> None:
    first, second = batch.trainer(adam=FAST), batch.trainer(adam=FAST)
    first.micro_step(micro_step([parts]))
    first.apply(first.gradient)
    saved = first.save(tmp_path)
    second.micro_step(micro_step([parts[:2]]))
    second.restore(tmp_path / saved.weights.address, tmp_path / saved.optimizer.address)
    assert not second.gradient.any()
    assert second.save(tmp_path) == saved
    first.zero()
    for each in (first, second):
        each.micro_step(micro_step([parts[2:]]))
        each.apply(each.gradient)
    after = first.save(tmp_path)
    assert after == second.save(tmp_path)
    assert after != saved


def test_an_update_moves_the_policy_towards_what_was_rewarded(parts: list[Segment]) -> None:
    trainer = batch.trainer(adam=AdamSettings(learning_rate=1e-3))
    good = micro_step([[each for each in parts if each.execution == "plain"]])
    before = trainer.micro_step(good).stats[0]
    trainer.apply(trainer.gradient)
    trainer.zero()
    after = trainer.micro_step(good).stats[0]
    assert after.ratio > before.ratio
    assert after.mask == 0
    assert not trainer.gradient.any()


def test_weights_of_a_transformers_folder_load(tmp_path: Path, parts: list[Segment]) -> None:
    model = batch.tiny_model()
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
    model.save_pretrained(tmp_path)
    trainer, twin = batch.trainer(), batch.trainer(FAST, model)
    trainer.load(tmp_path / "model.safetensors")
    for each in (trainer, twin):
        each.micro_step(micro_step([parts]))
    assert torch.equal(trainer.gradient, twin.gradient)


def test_saved_weights_load_into_transformers(tmp_path: Path, parts: list[Segment]) -> None:
    trainer = batch.trainer(adam=FAST)
    trainer.micro_step(micro_step([parts]))
    trainer.apply(trainer.gradient)
    saved = trainer.save(tmp_path / "run")
    model = batch.tiny_model()
    model.config.save_pretrained(tmp_path)
    (tmp_path / "run" / saved.weights.address).rename(tmp_path / "model.safetensors")
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    named = dict(trainer._model.named_parameters())
    assert all(torch.equal(each, named[name]) for name, each in loaded.named_parameters())


def test_another_models_weights_are_refused_and_nothing_changes(tmp_path: Path, parts: list[Segment]) -> None:
    trainer = batch.trainer()
    trainer.micro_step(micro_step([parts]))
    before = trainer.gradient.clone()
    with pytest.raises(WeightsRefused, match="not a readable safetensors file"):
        trainer.load(tmp_path / "nothing.safetensors")
    saved = trainer.save(tmp_path)
    with pytest.raises(WeightsRefused, match="belongs to another model"):
        trainer.restore(tmp_path / saved.optimizer.address, tmp_path / saved.optimizer.address)
    with pytest.raises(WeightsRefused, match="belongs to another model"):
        trainer.restore(tmp_path / saved.weights.address, tmp_path / saved.weights.address)
    assert torch.equal(trainer.gradient, before)


def test_a_released_trainer_holds_nothing_and_comes_back_empty(parts: list[Segment], tmp_path: Path) -> None:
    trainer = batch.trainer()
    saved = trainer.save(tmp_path)
    trainer.micro_step(micro_step([parts]))
    before = trainer.gradient.clone()
    trainer.release()
    assert not any(each.numel() or each.grad is not None for each in trainer._model.parameters())
    trainer.load(tmp_path / saved.weights.address)
    trainer.micro_step(micro_step([parts]))
    assert torch.equal(trainer.gradient, before)


def test_what_was_asked_of_a_released_trainer_does_not_stay(parts: list[Segment], tmp_path: Path) -> None:
    trainer = batch.trainer()
    saved = trainer.save(tmp_path)
    trainer.micro_step(micro_step([parts]))
    before = trainer.gradient.clone()
    trainer.release()
    trainer.zero()
    trainer.load(tmp_path / saved.weights.address)
    trainer.micro_step(micro_step([parts]))
    assert torch.equal(trainer.gradient, before)


def test_a_released_optimizer_comes_back_as_it_was_saved(parts: list[Segment], tmp_path: Path) -> None:
    trainers = [batch.trainer() for _ in range(2)]
    saved = []
    for trainer in trainers:
        for _ in range(2):
            trainer.micro_step(micro_step([parts]))
            trainer.apply(trainer.gradient.clone())
            trainer.zero()
            files = trainer.save(tmp_path)
            if trainer is trainers[0]:
                trainer.release()
                trainer.restore(tmp_path / files.weights.address, tmp_path / files.optimizer.address)
        saved.append(files)
    assert saved[0] == saved[1]


def test_executions_without_advantage_are_measured_and_train_nothing(parts: list[Segment]) -> None:
    trainer = batch.trainer()
    level = [each.model_copy(update={"advantage": 0.0}) for each in parts]
    stats = trainer.micro_step(micro_step([level])).stats
    assert not trainer.gradient.any()
    assert {each.mask for each in stats} == {1}
    assert all(each.k3 > 0 for each in stats)


def segment(**changes: object) -> Segment:
    fields = {
        "execution": "x",
        "leaf": "l",
        "ids": pack_ints([1, 2, 3]),
        "target": b"\0\1\1",
        "logprobs": pack_floats([0.0, -1.0, -2.0]),
        "advantage": 1.0,
        "weight": 0.5,
    }
    return Segment.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ids": pack_ints([1, 2])}, "ids 2, target 3, logprobs 3 entries"),
        ({"ids": b"\0\0\0\0\1"}, "ids 5 bytes"),
        ({"ids": pack_ints([1, 2, batch.VOCABULARY])}, "ids from 1 to 61: need 0 to 60"),
        ({"ids": pack_ints([1, -2, 3])}, "ids from -2 to 3"),
        ({"target": b"\1\0\1"}, r"target\[0\] = 1"),
        ({"target": b"\0\0\0"}, "target is 0 throughout"),
        ({"logprobs": pack_floats([0.0, -1.0, float("nan")])}, "logprobs: a target's .* is not finite"),
    ],
)
def test_a_bad_segment_is_refused_before_anything_is_added(
    wrong: dict[str, object], message: str, parts: list[Segment]
) -> None:
    trainer = batch.trainer()
    with pytest.raises(MicroStepRefused, match=f"execution x, leaf l: {message}"):
        trainer.micro_step(micro_step([parts, [segment(**wrong)]]))
    assert not trainer.gradient.any()


def test_what_is_not_a_target_may_have_any_log_probability(parts: list[Segment]) -> None:
    trainer = batch.trainer()
    trainer.micro_step(micro_step([[segment(logprobs=pack_floats([float("nan"), -1.0, -2.0]))]]))
    assert trainer.gradient.isfinite().all()


def test_two_advantages_of_one_execution_are_refused() -> None:
    with pytest.raises(MicroStepRefused, match=r"execution x: advantage = 2\.0 and 1\.0"):
        batch.trainer().micro_step(micro_step([[segment(), segment(advantage=2.0)]]))


@pytest.mark.parametrize("rows", [[], [[]]])
def test_an_empty_micro_step_is_refused(rows: list[list[Segment]]) -> None:
    with pytest.raises(MicroStepRefused, match="must not be empty"):
        batch.trainer().micro_step(micro_step(rows))


def test_half_a_micro_step_never_reaches_a_reduction(parts: list[Segment], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = batch.trainer()
    layer = trainer._model.model.layers[0].self_attn.q_proj
    handle = layer.register_full_backward_pre_hook(lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
    with pytest.raises(MemoryError):
        trainer.micro_step(micro_step([parts]))
    handle.remove()
    with pytest.raises(AccumulatorSpoilt, match="half-way"):
        _ = trainer.gradient
    with pytest.raises(AccumulatorSpoilt, match="half-way"):
        trainer.micro_step(micro_step([parts]))
    trainer.zero()
    assert not trainer.gradient.any()


def test_weights_that_give_no_numbers_stop_training(parts: list[Segment]) -> None:
    trainer = batch.trainer()
    with torch.no_grad():
        trainer._model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(AccumulatorSpoilt, match="log pi is not finite"):
        trainer.micro_step(micro_step([parts]))
    trainer.zero()
    with pytest.raises(MicroStepRefused, match="log pi is not finite"):
        trainer.micro_step(micro_step([parts], kind="measure"))
    with pytest.raises(UpdateSpoilt, match="not finite"):
        trainer.apply(torch.zeros_like(trainer.gradient))


def test_a_temperature_of_zero_and_other_architectures_are_refused() -> None:
    with pytest.raises(ValueError, match="temperature = 0"):
        batch.trainer(temperature=0.0)
    for field in ("logits_scaling", "attn_logit_softcapping"):
        bent = batch.tiny_model()
        setattr(bent.config, field, 8.0)
        with pytest.raises(ValueError, match=rf"llama: {field} = 8\.0"):
            batch.trainer(model=bent)
    window = batch.tiny_model()
    window.config.sliding_window = 128
    with pytest.raises(ValueError, match=r"llama: layer_types .*sliding_window = 128"):
        batch.trainer(model=window)
