"""The torch trainer's contract over two ranks of FSDP2, and what is of ranks alone."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from gyre.rl.algorithms.port import Settings
from gyre.trainers.fsdp.sharing import Chunks, rounds
from gyre.trainers.fsdp.trainer import FsdpTrainer, Ranks, RanksRefused
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import AccumulatorSpoilt, GradientRefused, MicroStepRefused, UpdateSpoilt
from gyre.trainers.ranks import RankLost
from gyre.trainers.torch import TorchTrainer
from tests.trainers import batch, test_gradient, test_shared_prefixes, test_torch_trainer
from tests.trainers.batch import SPLIT, TEMPERATURE, distance, micro_step
from tests.trainers.test_gradient import CLOSE, everything, split_steps, wanted
from tests.trainers.test_torch_trainer import FAST

pytestmark = pytest.mark.timeout(300)
CONTRACT = (
    (
        test_gradient,
        "test_one_packed_row_gives_loss_and_gradient_of_the_formulas",
        "test_stats_say_what_the_formulas_say_of_each_execution",
        "test_moments_are_sums_over_the_targets_log_probabilities",
        "test_rows_of_one_segment_give_the_same",
        "test_rows_that_mix_executions_in_any_order_give_the_same",
        "test_measurements_of_parts_add_up_to_the_executions_ratio",
        "test_a_ratio_taken_per_micro_step_gives_another_gradient",
        "test_a_split_executions_stats_are_those_of_its_part_under_the_whole_ratio",
        "test_the_same_input_gives_the_same_bits",
    ),
    (
        test_torch_trainer,
        "test_a_restored_trainer_goes_on_to_the_same_files",
        "test_an_update_moves_the_policy_towards_what_was_rewarded",
        "test_another_models_weights_are_refused_and_nothing_changes",
        "test_what_was_asked_of_a_released_trainer_does_not_stay",
        "test_a_released_optimizer_comes_back_as_it_was_saved",
        "test_executions_without_advantage_are_measured_and_train_nothing",
        "test_a_bad_segment_is_refused_before_anything_is_added",
        "test_what_is_not_a_target_may_have_any_log_probability",
        "test_two_advantages_of_one_execution_are_refused",
        "test_an_empty_micro_step_is_refused",
    ),
    (test_shared_prefixes, "test_ratios_measured_of_shared_rows_are_those_of_the_formulas"),
)
"""What holds of a trainer over ranks as it does of one in the cell's own process."""
for module, *names in CONTRACT:
    globals().update({name: getattr(module, name) for name in names})
parts = test_torch_trainer.parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny"
    batch.tiny_model().save_pretrained(made)
    return made


def make(folder: Path, count: int = 2, **more: Any) -> FsdpTrainer:
    how = {"share_prefixes": True, "activation_bytes": 1 << 30} | more
    return FsdpTrainer(folder, TEMPERATURE, Settings(), FAST, Ranks(count, "gloo"), **how)


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[list[FsdpTrainer]]:
    """Two trainers of two ranks each: these take seconds to start, so that tests share them."""
    made = [make(folder) for _ in range(2)]
    yield made
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def fresh(started: list[FsdpTrainer], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The contract's tests ask `batch.trainer` for new trainers: they get these, without a past."""
    left = list(started)

    def trainer(adam: AdamSettings | None = None) -> FsdpTrainer:
        found = left.pop()
        found.release()
        found.load(folder / "model.safetensors")
        return found

    monkeypatch.setattr(batch, "trainer", trainer)
    return trainer


@pytest.fixture
def trainer(fresh: Callable[..., Any]) -> FsdpTrainer:
    return fresh()


def torch_trainer(**more: Any) -> TorchTrainer:
    how = {"share_prefixes": True, "activation_bytes": 1 << 30} | more
    return TorchTrainer(batch.tiny_model(), TEMPERATURE, Settings(), FAST, **how)


def test_parts_of_an_execution_at_several_ranks_have_one_ratio(trainer: FsdpTrainer) -> None:
    rows = [[each] for each in everything()]
    ranks = {
        row: rank
        for each in rounds([len(row[0].target) for row in rows], 2)
        for rank, row in enumerate(each)
        if row is not None
    }
    where = {name: {ranks[row] for row, each in enumerate(rows) if each[0].execution == name} for name in SPLIT}
    assert {0, 1} in where.values()
    stats = trainer.micro_step(micro_step(rows)).stats
    assert {each.execution: each.mask for each in stats} == wanted().mask
    assert {each.execution: each.ratio for each in stats} == pytest.approx(wanted().ratio, rel=1e-5)
    assert distance(trainer.gradient, wanted().gradient) < CLOSE


def test_cells_of_either_kind_add_up_and_a_lost_micro_step_shows(trainer: FsdpTrainer) -> None:
    other = torch_trainer()
    for number, enqueued in enumerate(steps := split_steps([trainer, other])):  # type: ignore[list-item]
        (trainer, other)[number % 2].micro_step(enqueued)
    assert distance(trainer.gradient + other.gradient, wanted().gradient) < CLOSE
    trainer.zero()
    for enqueued in steps[2::2]:
        trainer.micro_step(enqueued)
    assert distance(trainer.gradient + other.gradient, wanted().gradient) > 100 * CLOSE


def test_an_update_is_that_of_the_torch_trainer_and_goes_on_from_its_files(
    trainer: FsdpTrainer, tmp_path: Path
) -> None:
    other = torch_trainer()
    gradient = torch.from_numpy(wanted().gradient).float()
    for step in range(3):
        mine, theirs = trainer.apply(gradient * (step + 1)), other.apply(gradient * (step + 1))
        assert mine.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-6)
    saved, twin = trainer.save(tmp_path / "ranks"), other.save(tmp_path / "torch")
    assert saved == twin  # bit for bit: element by element it is the same arithmetic
    other.restore(tmp_path / "ranks" / saved.weights.address, tmp_path / "ranks" / saved.optimizer.address)
    trainer.restore(tmp_path / "torch" / twin.weights.address, tmp_path / "torch" / twin.optimizer.address)
    assert trainer.save(tmp_path / "again") == other.save(tmp_path / "again") == twin


def test_gradients_that_cannot_be_applied_change_nothing(trainer: FsdpTrainer, tmp_path: Path) -> None:
    before = trainer.save(tmp_path)
    with pytest.raises(GradientRefused, match="of 3 elements"):
        trainer.apply(torch.zeros(3))
    with pytest.raises(GradientRefused, match="norm = nan"):
        trainer.apply(torch.full_like(trainer.gradient, float("nan")))
    assert trainer.save(tmp_path) == before


def test_weights_that_give_no_numbers_stop_training(trainer: FsdpTrainer, folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, tmp_path / "nan.safetensors")
    trainer.load(tmp_path / "nan.safetensors")
    with pytest.raises(AccumulatorSpoilt, match="not finite"):
        trainer.micro_step(micro_step([everything()]))
    with pytest.raises(AccumulatorSpoilt, match="half-way"):
        _ = trainer.gradient
    trainer.zero()
    with pytest.raises(MicroStepRefused, match="log pi is not finite"):
        trainer.micro_step(micro_step([everything()], kind="measure"))
    with pytest.raises(UpdateSpoilt, match="not finite"):
        trainer.apply(torch.zeros_like(trainer.gradient))
    trainer.load(folder / "model.safetensors")
    trainer.micro_step(micro_step([everything()]))
    assert distance(trainer.gradient, wanted().gradient) < CLOSE


def test_layers_that_are_computed_again_give_the_same_and_lost_ranks_are_noticed(folder: Path) -> None:
    trainer = make(folder, share_prefixes=False, activation_bytes=0)
    trainer.load(folder / "model.safetensors")
    trainer.micro_step(micro_step([everything()[:4], everything()[4:], everything()[:1]][:2]))
    assert distance(trainer.gradient, wanted().gradient) < CLOSE
    first, second = trainer.processes
    os.kill(second, signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 1 ended with -9"):
        trainer.micro_step(micro_step([everything()]))
    trainer.close()
    assert not any(Path(f"/proc/{each}").exists() for each in (first, second))


def test_what_the_torch_trainer_refuses_is_refused_by_name(tmp_path: Path) -> None:
    bent = batch.tiny_model()
    bent.config.logits_scaling = 8.0
    bent.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"llama: logits_scaling = 8\.0"):
        make(tmp_path, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_ranks_for_gpus_are_refused_where_there_are_none(folder: Path) -> None:
    with pytest.raises(RanksRefused, match=r'trainer.backend = "nccl": .*"gloo"'):
        FsdpTrainer(folder, 1.0, Settings(), FAST, Ranks(2), share_prefixes=True, activation_bytes=0)


ROWS = st.lists(st.integers(1, 4000), min_size=1, max_size=40)


@settings(deadline=None)
@given(ROWS, st.integers(1, 9))
def test_every_row_is_computed_once_and_no_rank_has_much_more(tokens: list[int], ranks: int) -> None:
    found = rounds(tokens, ranks)
    assert sorted(row for each in found for row in each if row is not None) == list(range(len(tokens)))
    loads = [sum(tokens[each[rank]] for each in found if each[rank] is not None) for rank in range(ranks)]  # type: ignore[index]
    assert max(loads) - min(loads) <= max(tokens)
    assert all(any(row is not None for row in each) for each in found)


@settings(deadline=None)
@given(st.integers(1, 17), st.integers(1, 5), st.integers(1, 6))
def test_parts_are_those_that_torch_cuts_and_make_the_whole_again(first: int, second: int, ranks: int) -> None:
    whole = {"a": torch.arange(float(first * second)).view(first, second), "b": torch.arange(float(first))}
    chunks = Chunks(ranks)
    shards = chunks.shards(whole)
    assert len(shards) == ranks
    assert all(torch.equal(each, whole[name]) for name, each in chunks.whole(shards).items())
    assert [len(each["b"]) for each in shards if len(each["b"])] == [len(each) for each in whole["b"].chunk(ranks)]
