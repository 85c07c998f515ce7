"""Mixtures of experts on real ranks of megatron-core: the formulas' gradient, and routing replay."""

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gyre.core.diagnosis.training import ALIKE
from gyre.rl.algorithms.port import Settings
from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.layout import Layout, LayoutRefused
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import MicroStepRefused
from schemas.base import ints, pack_floats
from schemas.refs import BlobRef
from schemas.training import ExecutionStats, ExpertAgreement, ExpertSpan, Segment
from tests.backends.conftest import SHIMS
from tests.core.diagnosis.scene import Scene, at, findings
from tests.core.diagnosis.scenes_training import completed
from tests.trainers import batch
from tests.trainers.batch import CASES, TEMPERATURE, Expected, distance, micro_step
from tests.trainers.conftest import one_thread  # noqa: F401 - a fixture
from tests.trainers.test_replayed import Bodies, reference

pytestmark = pytest.mark.timeout(300)
CLOSE = 1e-5  # relative, float32
LAYOUTS = {
    "one rank": Ranks(1, 1, "gloo"),
    "data 2": Ranks(1, 1, "gloo", data=2),
    "data 2 x expert 2": Ranks(1, 1, "gloo", data=2, expert=2),
    "tensor 2 x expert 2, experts grouped": Ranks(2, 1, "gloo", expert=2, grouped=True),
    "tensor 2": Ranks(2, 1, "gloo"),
    "tensor 2 x expert 2": Ranks(2, 1, "gloo", expert=2),
    "context 2 x expert 2": Ranks(1, 1, "gloo", context=2, expert=2),
    "pipeline 2 x data 2 x expert 2": Ranks(1, 2, "gloo", data=2, expert=2),
}
BODIES: Bodies = {}


def read(wanted: BlobRef) -> bytes:
    return BODIES[wanted.digest]


@cache
def pieces() -> dict[str, list[Segment]]:
    return {each.name: batch.segments(each, batch.tiny_mixture) for each in CASES}


def everything() -> list[Segment]:
    return [segment for parts in pieces().values() for segment in parts]


@cache
def wanted() -> Expected:
    return batch.expected(CASES, batch.tiny_mixture)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mixture"
    batch.tiny_mixture().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _shims() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS, scope="module")
def megatron(request: pytest.FixtureRequest, model: Path) -> Iterator[MegatronTrainer]:
    made = MegatronTrainer(
        model, TEMPERATURE, Settings(), AdamSettings(learning_rate=1e-3), request.param, read_experts=read
    )
    yield made
    made.close()


@pytest.fixture
def trainer(megatron: MegatronTrainer, model: Path) -> MegatronTrainer:
    megatron.load(model / "model.safetensors")
    return megatron


@cache
def chosen(ids: tuple[int, ...]) -> Any:
    """(T, layers, top k) int16: what the routers of the model choose at each position."""
    found = batch.tiny_mixture()(torch.tensor([ids]), output_router_logits=True).router_logits
    return torch.stack([each.topk(2, dim=-1).indices for each in found], 1).numpy().astype("<i2")


def told(segments: Sequence[Segment], shift: int = 0) -> list[Segment]:
    """With the experts that an engine would have told, so many positions off."""
    made = []
    for each in segments:
        taken = np.roll(chosen(tuple(ints(each.ids))), shift, 0)
        body = np.concatenate((np.full_like(taken[:1], -1), taken[:-1])).tobytes()
        BODIES[reference(body).digest] = body
        span = ExpertSpan(tokens=len(each.target), body=reference(body), start=0)
        made.append(each.model_copy(update={"experts": (span,)}))
    return made


def agreement(stats: Sequence[ExecutionStats]) -> list[ExpertAgreement]:
    found = [each.experts for each in stats]
    assert all(found)
    return [each for each in found if each is not None]


def test_gradient_and_loss_are_those_of_the_formulas(trainer: MegatronTrainer) -> None:
    stats = trainer.micro_step(micro_step([everything()])).stats
    assert distance(trainer.gradient, wanted().gradient) < CLOSE
    weights = {each.execution: each.weight for each in everything()}
    assert sum(each.loss * weights[each.execution] for each in stats) == pytest.approx(wanted().loss, rel=1e-5)
    assert {each.execution: each.mask for each in stats} == wanted().mask
    assert all(each.experts is None for each in stats)  # nobody told any


def test_rows_of_one_segment_give_the_same(trainer: MegatronTrainer) -> None:
    stats = trainer.micro_step(micro_step([[each] for each in everything()])).stats
    assert distance(trainer.gradient, wanted().gradient) < CLOSE
    assert {each.execution: each.mask for each in stats} == wanted().mask


def test_log_probabilities_are_those_of_hugging_face(trainer: MegatronTrainer) -> None:
    same = batch.segments(batch.Case("same", 1.0, (0.0, 0.0, 0.0)), batch.tiny_mixture)
    (stats,) = trainer.micro_step(micro_step([same])).stats
    assert stats.max_delta_log_p < 1e-4


def test_replay_of_what_the_routers_choose_changes_nothing_and_agrees(trainer: MegatronTrainer) -> None:
    for rows in ([told(everything())], [[each] for each in told(everything())]):
        trainer.zero()
        stats = trainer.micro_step(micro_step(rows)).stats
        assert distance(trainer.gradient, wanted().gradient) < CLOSE
        for each in agreement(stats):
            assert (each.overlap, each.top) == (1.0, 1.0)
        positions = {each.execution: 0 for each in everything()}
        for each in everything():
            positions[each.execution] += len(each.target) - 1
        assert {each.execution: each.experts.choices for each in stats if each.experts} == {
            name: 2 * count for name, count in positions.items()
        }


def test_an_offset_of_one_position_is_seen(trainer: MegatronTrainer) -> None:
    stats = trainer.micro_step(micro_step([told(everything(), shift=1)])).stats
    assert max(each.overlap for each in agreement(stats)) < ALIKE
    doctor = findings(Scene(at(0, completed(1, 0, *stats))))
    assert [each.name for each in doctor] == ["experts-misplaced"]
    assert distance(trainer.gradient, wanted().gradient) > 0.1


def test_other_experts_are_taken_where_they_are_told(trainer: MegatronTrainer, model: Path) -> None:
    """Those that the engine took count, with the weights that the router gives them now."""
    (segment, *_) = batch.segments(batch.Case("same", 1.0, (0.0,)), batch.tiny_mixture)
    (moved,) = told([segment], shift=3)
    expected = replayed_log_probs(tuple(ints(segment.ids)), np.roll(chosen(tuple(ints(segment.ids))), 3, 0))
    marked = np.frombuffer(segment.target, np.uint8).astype(bool)
    other = moved.model_copy(update={"logprobs": pack_floats(np.where(marked, expected, 0.0).tolist())})
    (stats,) = trainer.micro_step(micro_step([[other]])).stats
    assert stats.max_delta_log_p < 1e-4


def replayed_log_probs(ids: tuple[int, ...], taken: Any) -> Any:
    """(T,) log-probability of each token, with these experts at all positions but the last."""
    model = batch.tiny_mixture()
    own = chosen(ids)
    taken = np.concatenate((taken[:-1], own[-1:]))  # of the last one nothing depends
    for layer, block in enumerate(model.model.layers):
        fixed = torch.from_numpy(taken[:, layer].astype(np.int64))

        def gate(hidden: Any, block: Any = block, fixed: Any = fixed) -> Any:
            logits = torch.nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), block.mlp.gate.weight)
            weights = logits.gather(1, fixed).softmax(1)
            return logits, weights, fixed

        block.mlp.gate.forward = gate
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1] / TEMPERATURE
    found = logits.log_softmax(1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return np.concatenate([[0.0], found.numpy()])


def test_a_qwen3_without_experts_is_laid_out_too(tmp_path: Path) -> None:
    batch.tiny_qwen().save_pretrained(tmp_path / "qwen")
    made = MegatronTrainer(tmp_path / "qwen", TEMPERATURE, Settings(), AdamSettings(), Ranks(2, 1, "gloo"))
    made.load(tmp_path / "qwen" / "model.safetensors")
    rows = [segment for case in CASES for segment in batch.segments(case, batch.tiny_qwen)]
    made.micro_step(micro_step([rows]))
    assert distance(made.gradient, batch.expected(CASES, batch.tiny_qwen).gradient) < CLOSE
    made.close()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"moe_intermediate_size": 18}, "moe_intermediate_size = 18: grouped experts need a multiple of 4"),
        ({"num_experts": 0, "num_local_experts": 0}, "grouped_experts = true: this model has no experts"),
    ],
)
def test_a_model_whose_experts_cannot_be_grouped_is_refused(changed: dict[str, int], said: str) -> None:
    config = batch.tiny_mixture().config.to_dict() | changed
    with pytest.raises(LayoutRefused, match=said):
        Layout.of(config, Grid(), grouped=True)


def test_experts_that_are_none_of_the_rows_are_refused_and_nothing_is_spoilt(trainer: MegatronTrainer) -> None:
    (first, *rest) = told(everything())
    short = first.model_copy(update={"experts": (first.experts[0].model_copy(update={"tokens": 3}),)})
    with pytest.raises(MicroStepRefused, match="experts of 3 tokens, the segment has"):
        trainer.micro_step(micro_step([[short, *rest]]))
    trainer.micro_step(micro_step([everything()]))
    assert distance(trainer.gradient, wanted().gradient) < CLOSE
