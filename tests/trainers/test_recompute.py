"""How many layers keep their activations follows the budget, and the gradient does not."""

from typing import Any

import pytest
import torch

from gyre.trainers.recompute import Recompute
from schemas.training import Segment
from tests.trainers import batch
from tests.trainers.batch import CASES, distance, micro_step


@pytest.fixture(scope="module")
def parts() -> list[Segment]:
    return [segment for each in CASES for segment in batch.segments(each)]


def saved_bytes(model: Any, tokens: int) -> int:
    """What autograd keeps of a pass over so many tokens, weights and what is kept twice included."""
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        output = model.base_model(input_ids=torch.zeros(1, tokens, dtype=torch.int64), use_cache=False)
    assert output is not None
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in kept}
    return sum(size for pointer, size in storages.items() if pointer not in weights)


def test_more_tokens_leave_room_for_fewer_layers() -> None:
    model = batch.tiny_model()
    recompute = Recompute(model, saved_bytes(model, 100) + 1000)
    assert [recompute.prepare(each) for each in (50, 100, 120, 190, 210, 10_000)] == [2, 2, 1, 1, 0, 0]


def test_what_is_kept_is_what_the_budget_allows() -> None:
    model = batch.tiny_model()
    whole = saved_bytes(model, 200)
    recompute = Recompute(model, int(0.6 * whole))
    assert recompute.prepare(200) == 1
    assert 0.45 * whole < saved_bytes(model, 200) < 0.6 * whole


@pytest.mark.parametrize(("budget", "layers"), [(0, 0), (500_000, 1), (1 << 30, 2)])
def test_the_gradient_is_that_of_the_formulas_under_any_budget(budget: int, layers: int, parts: list[Segment]) -> None:
    trainer = batch.trainer(activation_bytes=budget)
    trainer.micro_step(micro_step([parts]))
    assert distance(trainer.gradient, batch.expected().gradient) < 1e-5
    assert sum(not each.training for each in trainer._model.model.layers) == layers
