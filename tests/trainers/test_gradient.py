"""The batch's gradient: that of the formulas, however its work is packed, split and shared."""

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch

from gyre.rl.algorithms.clip import Name
from gyre.rl.algorithms.port import Settings
from gyre.rl.objective import ALGORITHMS
from gyre.trainers.torch import TorchTrainer
from schemas.training import ExecutionStats, MicroStepEnqueued, Segment
from tests.trainers import batch
from tests.trainers.batch import CASES, SPLIT, Expected, distance, micro_step

CLOSE = 1e-5  # relative, float32


@cache
def wanted() -> Expected:
    return batch.expected()


@cache
def pieces() -> dict[str, list[Segment]]:
    return {each.name: batch.segments(each) for each in CASES}


def everything() -> list[Segment]:
    return [segment for parts in pieces().values() for segment in parts]


def split_steps(trainers: Sequence[TorchTrainer], settings: Settings | None = None) -> list[MicroStepEnqueued]:
    """Whole executions in micro-steps of their own; each part of the split ones too, under masks measured first."""
    whole = [name for name in pieces() if name not in SPLIT]
    parts = [(name, part) for name in SPLIT for part in pieces()[name]]
    measured = []
    for number, (_, part) in enumerate(parts):
        enqueued = micro_step([[part]], number, kind="measure")
        measured += trainers[number % len(trainers)].micro_step(enqueued).measured
    decided = {each.execution: each for each in batch.masks(measured, settings)}
    steps = [micro_step([pieces()[name]], 100 + number) for number, name in enumerate(whole)]
    return steps + [
        micro_step([[part]], 200 + number, masks=(decided[name],)) for number, (name, part) in enumerate(parts)
    ]


def test_the_cases_reach_every_bound() -> None:
    found = wanted()
    assert found.mask == dict.fromkeys(found.mask, 1) | {"toohigh": 0, "toolow": 0}
    assert found.ratio["toohigh"] > 1.005
    assert found.ratio["toolow"] < 0.995
    assert found.ratio["capped"] > 5.0
    costly = found.sums["costly"] / sum(sum(each.target) for each in pieces()["costly"])
    assert 50 < costly < 100  # some targets at the loss cap, some below


def test_one_packed_row_gives_loss_and_gradient_of_the_formulas() -> None:
    trainer = batch.trainer()
    stats = trainer.micro_step(micro_step([everything()])).stats
    assert distance(trainer.gradient, wanted().gradient) < CLOSE
    weights = {each.execution: each.weight for each in everything()}
    assert sum(each.loss * weights[each.execution] for each in stats) == pytest.approx(wanted().loss, rel=1e-5)


def test_stats_say_what_the_formulas_say_of_each_execution() -> None:
    stats = {each.execution: each for each in batch.trainer().micro_step(micro_step([everything()])).stats}
    for case in CASES:
        found, counts = stats[case.name], [sum(each.target) for each in pieces()[case.name]]
        assert found.targets == sum(counts)
        assert found.ratio == pytest.approx(wanted().ratio[case.name], rel=1e-5)
        assert found.mask == wanted().mask[case.name]
        assert found.loss == pytest.approx(wanted().sums[case.name], rel=1e-5)
        assert found.max_delta_log_p == pytest.approx(max(map(abs, case.log_ratios)), abs=1e-4)
        k3 = sum(n * (np.exp(each) - 1 - each) for n, each in zip(counts, case.log_ratios, strict=True))
        assert found.k3 == pytest.approx(k3, rel=1e-3, abs=1e-7)


def test_moments_are_sums_over_the_targets_log_probabilities() -> None:
    stats = {each.execution: each for each in batch.trainer().micro_step(micro_step([everything()])).stats}
    for case in CASES:
        x, y = [], []
        for part, log_ratio in zip(pieces()[case.name], case.log_ratios, strict=True):
            rolled = np.frombuffer(part.logprobs, "<f4")[np.frombuffer(part.target, np.uint8) == 1].astype(np.float64)
            x += rolled.tolist()
            y += (rolled + log_ratio).tolist()
        a, b = np.array(x), np.array(y)
        expected = {
            "sum_rollout": a.sum(), "sum_train": b.sum(), "sum_rollout_squared": a @ a, "sum_train_squared": b @ b,
            "sum_product": a @ b,
        }  # fmt: skip
        moments = stats[case.name].moments
        assert moments is not None
        assert moments.model_dump() == pytest.approx(expected, rel=1e-4)


def test_rows_of_one_segment_give_the_same() -> None:
    trainer = batch.trainer()
    stats = trainer.micro_step(micro_step([[each] for each in everything()])).stats
    assert distance(trainer.gradient, wanted().gradient) < CLOSE
    assert {each.execution: each.mask for each in stats} == wanted().mask


def test_rows_that_mix_executions_in_any_order_give_the_same() -> None:
    shuffled = random.Random(5).sample(everything(), len(everything()))
    trainer = batch.trainer()
    trainer.micro_step(micro_step([shuffled[:5], shuffled[5:6], shuffled[6:]]))
    assert distance(trainer.gradient, wanted().gradient) < CLOSE


@pytest.mark.parametrize("cells", [1, 2, 3])
def test_any_number_of_cells_and_any_order_of_claims_give_the_same(cells: int) -> None:
    trainers = [batch.trainer() for _ in range(cells)]
    steps = split_steps(trainers)
    for order in (0, 1):
        claims = random.Random(order).sample(steps, len(steps))
        for each in trainers:
            each.zero()
        for number, enqueued in enumerate(claims):
            trainers[number % cells].micro_step(enqueued)
        total = torch.stack([each.gradient for each in trainers]).sum(0)
        assert distance(total, wanted().gradient) < CLOSE


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_gives_the_same_whether_an_execution_is_split_or_not(algorithm: Name) -> None:
    settings = Settings(algorithm)
    whole, split = batch.trainer(settings=settings), batch.trainer(settings=settings)
    whole.micro_step(micro_step([everything()]))
    for enqueued in split_steps([split], settings):
        split.micro_step(enqueued)
    assert whole.gradient.any()
    assert distance(split.gradient, whole.gradient.double().numpy()) < CLOSE


def test_measurements_of_parts_add_up_to_the_executions_ratio() -> None:
    trainer = batch.trainer()
    steps = split_steps([trainer])
    decided = {each.execution: each for step in steps for each in step.masks}
    for name in SPLIT:
        assert decided[name].ratio == pytest.approx(wanted().ratio[name], rel=1e-6)
        assert decided[name].mask == wanted().mask[name]
    assert not trainer.gradient.any()


@pytest.mark.parametrize("name", SPLIT)
def test_a_ratio_taken_per_micro_step_gives_another_gradient(name: str) -> None:
    """The same parts without the measured mask: each micro-step takes what it holds for the whole execution."""
    case = next(each for each in CASES if each.name == name)
    right, wrong = batch.trainer(), batch.trainer()
    measured = [right.micro_step(micro_step([[part]], kind="measure")).measured[0] for part in pieces()[name]]
    masks = batch.masks(measured)
    for part in pieces()[name]:
        right.micro_step(micro_step([[part]], masks=masks))
        wrong.micro_step(micro_step([[part]]))
    reference = batch.expected([case]).gradient
    scale = float(np.linalg.norm(wanted().gradient))
    assert float((right.gradient - torch.from_numpy(reference)).norm()) < CLOSE * scale
    assert float((wrong.gradient - torch.from_numpy(reference)).norm()) > 1e-3 * scale


def test_a_split_executions_stats_are_those_of_its_part_under_the_whole_ratio() -> None:
    trainer = batch.trainer()
    parts = [step for step in split_steps([trainer]) if step.masks]
    found: dict[str, list[ExecutionStats]] = {}
    for each in parts:
        (stats,) = trainer.micro_step(each).stats
        found.setdefault(stats.execution, []).append(stats)
    for name in SPLIT:
        assert {each.ratio for each in found[name]} == {found[name][0].ratio}
        assert sum(each.loss for each in found[name]) == pytest.approx(wanted().sums[name], rel=1e-5)


def test_the_same_input_gives_the_same_bits() -> None:
    first, second = batch.trainer(), batch.trainer()
    for each in (first, second):
        each.micro_step(micro_step([everything()[:4], everything()[4:]]))
    assert torch.equal(first.gradient, second.gradient)
