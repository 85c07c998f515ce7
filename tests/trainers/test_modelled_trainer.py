"""What the modelled trainer waits for and adds up."""

from pathlib import Path

import pytest
import torch

from gyre.trainers.modelled import ModelledTrainer
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import MicroStepRefused, WeightsRefused
from schemas.base import pack_floats, pack_ints
from schemas.training import MicroStepEnqueued, Row, Segment

ORIGINALS = 4  # B N


def segment(execution: str, ids: tuple[int, ...], advantage: float, *, of: int | None = None) -> Segment:
    """All ids but the first are targets, sampled at log p = -2; `of`: the execution's targets, if it has more rows."""
    return Segment(
        execution=execution,
        leaf="leaf",
        ids=pack_ints(ids),
        target=bytes([0] + [1] * (len(ids) - 1)),
        logprobs=pack_floats([0.0] + [-2.0] * (len(ids) - 1)),
        advantage=advantage,
        weight=1.0 / (ORIGINALS * (of or len(ids) - 1)),
    )


def micro_step(*segments: Segment, kind: str = "train") -> MicroStepEnqueued:
    rows = tuple(Row(segments=(each,)) for each in segments)
    return MicroStepEnqueued.model_validate({"step": 1, "micro_step": 0, "kind": kind, "rows": rows, "tokens": 9})


BATCH = (
    micro_step(segment("x0-0", (1, 7, 8, 9), 1.0)),
    micro_step(segment("x0-1", (1, 7, 7), -1.0)),
    micro_step(segment("x1-0", (1, 300, 4), 0.5, of=3), segment("x1-0", (1, 5), 0.5, of=3)),
    micro_step(segment("x1-1", (1, 6), 0.0)),
)


def trainer(waits: list[float] | None = None) -> ModelledTrainer:
    wait = ([] if waits is None else waits).append
    return ModelledTrainer(AdamSettings(learning_rate=0.1), batch_seconds=20.0, update_seconds=3.0, wait=wait)


def test_a_batch_takes_its_time_however_it_is_cut_and_an_update_its_own() -> None:
    waits: list[float] = []
    busy = trainer(waits)
    for each in BATCH:
        busy.micro_step(each)
    assert waits == pytest.approx([5.0, 5.0, 5.0, 5.0])
    busy.apply(busy.gradient)
    assert waits[4:] == [3.0]


def test_what_cells_add_up_is_the_same_whoever_did_what_and_shows_what_was_lost() -> None:
    alone, first, second = trainer(), trainer(), trainer()
    for each in BATCH:
        alone.micro_step(each)
    for each, cell in zip(BATCH, (first, second, first, second), strict=True):
        cell.micro_step(each)
    assert torch.equal(first.gradient + second.gradient, alone.gradient)
    assert not torch.equal(first.gradient, alone.gradient)
    assert float(alone.gradient[7]) == pytest.approx(-1 / 12 + 2 / 8)
    assert float(alone.gradient[300 % 256]) == pytest.approx(-0.5 / 12)


def test_its_statistics_are_those_of_equal_weights_an_execution_each_in_order() -> None:
    both = micro_step(
        segment("x1-0", (1, 3, 4), 0.5, of=3), segment("x0-1", (1, 7), -1.0), segment("x1-0", (1, 5), 0.5)
    )
    found = trainer().micro_step(both).stats
    assert [(each.execution, each.targets, each.ratio, each.mask) for each in found] == [
        ("x1-0", 3, 1, 1),
        ("x0-1", 1, 1, 1),
    ]
    assert [each.loss for each in found] == pytest.approx([3.0, -2.0])


def test_measuring_adds_nothing_up() -> None:
    measuring = trainer()
    found = measuring.micro_step(micro_step(segment("x0-0", (1, 7, 8), 1.0), kind="measure"))
    assert [(each.execution, each.log_ratio_sum, each.count) for each in found.measured] == [("x0-0", 0.0, 2)]
    assert not measuring.gradient.any()


def test_a_restored_trainer_goes_on_to_the_same_files(tmp_path: Path) -> None:
    first, second = trainer(), trainer()
    first.micro_step(BATCH[0])
    first.apply(first.gradient)
    saved = first.save(tmp_path)
    second.micro_step(BATCH[1])
    second.restore(tmp_path / saved.weights.address, tmp_path / saved.optimizer.address)
    assert not second.gradient.any()
    assert second.save(tmp_path) == saved
    first.zero()
    for each in (first, second):
        each.micro_step(BATCH[2])
        each.apply(each.gradient)
    after = first.save(tmp_path)
    assert after == second.save(tmp_path)
    assert after != saved
    with pytest.raises(WeightsRefused):
        second.load(tmp_path / saved.optimizer.address)


def test_a_released_trainer_comes_back_empty(tmp_path: Path) -> None:
    released, twin = trainer(), trainer()
    saved = released.save(tmp_path)
    released.micro_step(BATCH[0])
    released.release()
    released.zero()
    released.load(tmp_path / saved.weights.address)
    for each in (released, twin):
        each.micro_step(BATCH[1])
    assert torch.equal(released.gradient, twin.gradient)


def test_a_segment_without_targets_is_refused_by_name() -> None:
    empty = segment("x0-0", (1, 7), 1.0).model_copy(update={"target": b"\0\0"})
    with pytest.raises(MicroStepRefused, match="execution x0-0, leaf leaf: ids 2, target 2"):
        trainer().micro_step(micro_step(empty))
