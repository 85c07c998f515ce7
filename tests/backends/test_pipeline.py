"""A pipeline of real megatron-core ranks that stays filled from one micro-step to the next."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gyre.rl.algorithms.port import Settings
from gyre.trainers.megatron.trainer import MegatronTrainer, Ranks
from gyre.trainers.optimizer import AdamSettings
from gyre.trainers.port import AccumulatorSpoilt, Finished, MicroStepRefused, TrainerError
from gyre.trainers.ranks import RankLost
from gyre.trainers.stream import Ended
from schemas.training import MicroStepEnqueued, Passage, Segment
from tests import tiny
from tests.backends.conftest import SHIMS
from tests.trainers import batch
from tests.trainers.batch import TEMPERATURE, distance, micro_step
from tests.trainers.conftest import one_thread  # noqa: F401 - a fixture
from tests.trainers.test_gradient import everything

pytestmark = pytest.mark.timeout(300)
LAYOUTS = [(1, 2), (2, 2), (1, 4)]
BAD = batch.VOCABULARY - 1
"""Token whose embedding is made not finite; it is in no segment of the batch."""


def deep_model() -> Any:
    """Four layers, so that there are up to four stages, and a head of its own."""
    return tiny.llama(11, num_hidden_layers=4, initializer_range=0.2, tie_word_embeddings=False)


def clean(segment: Segment) -> Segment:
    """Without the bad token."""
    ids = np.frombuffer(segment.ids, "<i4") % BAD
    return segment.model_copy(update={"ids": ids.astype("<i4").tobytes()})


def stepwise() -> list[MicroStepEnqueued]:
    """The batch in micro-steps of one or two rows; one of them has an execution in two rows."""
    parts = [clean(each) for each in everything()]
    by_name: dict[str, list[Segment]] = {}
    for each in parts:
        by_name.setdefault(each.execution, []).append(each)
    rows = [[group] for group in by_name.values()]
    rows[-1] = [rows[-1][0], *rows.pop(0)]
    rows[2] = [[each] for each in rows[2][0]]
    return [micro_step(each, number) for number, each in enumerate(rows)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "deep"
    deep_model().save_pretrained(folder)
    return folder


def start(model: Path, tensor: int, pipeline: int) -> MegatronTrainer:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SHIMS), os.environ.get("PYTHONPATH", "")])
    ranks = Ranks(tensor, pipeline, "gloo")
    return MegatronTrainer(model, TEMPERATURE, Settings(), AdamSettings(learning_rate=1e-3), ranks)


@pytest.fixture(params=LAYOUTS, ids=lambda each: "tensor {} x pipeline {}".format(*each), scope="module")
def megatron(request: pytest.FixtureRequest, model: Path) -> Iterator[MegatronTrainer]:
    made = start(model, *request.param)
    yield made
    made.close()


@pytest.fixture
def trainer(megatron: MegatronTrainer, model: Path) -> MegatronTrainer:
    megatron.load(model / "model.safetensors")
    return megatron


def one_by_one(steps: Sequence[MicroStepEnqueued]) -> tuple[torch.Tensor, list[Finished]]:
    """What the torch trainer makes of them."""
    torch_trainer = batch.trainer(model=deep_model())
    found = [torch_trainer.micro_step(each) for each in steps]
    return torch_trainer.gradient, found


def rest(trainer: MegatronTrainer) -> list[Ended]:
    """Until everything that is left in hand wants more input."""
    ended: list[Ended] = []
    while trainer.moving:
        ended += trainer.advance()
    return ended


def filled(trainer: MegatronTrainer, steps: Sequence[MicroStepEnqueued]) -> list[Ended]:
    """All of them begun, then drained."""
    for each in steps:
        trainer.begin(each)
    return list(trainer.drain())


def masks(found: Sequence[Finished]) -> list[dict[str, int]]:
    return [{each.execution: each.mask for each in one.stats} for one in found]


def test_a_filled_pipeline_gives_what_one_micro_step_at_a_time_gives(trainer: MegatronTrainer) -> None:
    steps, ended = stepwise(), list[Ended]()
    for each in steps:
        trainer.begin(each)
    ended += rest(trainer)
    ended += trainer.drain()
    gathered = trainer.gradient
    assert [each.micro_step for each in ended] == [each.micro_step for each in steps]
    assert trainer.passage == Passage(startups=1, drains=1, pauses=0, rows=sum(len(each.rows) for each in steps))

    trainer.zero()
    apart = [trainer.micro_step(each) for each in steps]
    assert trainer.passage is not None
    assert trainer.passage.startups == trainer.passage.drains == len(steps)
    assert distance(gathered, trainer.gradient.double().numpy()) < 1e-6
    gradient, found = one_by_one(steps)
    assert distance(gathered, gradient.double().numpy()) < 1e-5
    assert masks([each.found for each in ended]) == masks(apart) == masks(found)
    for mine, theirs in zip(ended, found, strict=True):
        for one, other in zip(mine.found.stats, theirs.stats, strict=True):
            assert one.loss == pytest.approx(other.loss, rel=1e-5)


def test_a_queue_that_runs_empty_pauses_the_pipeline_which_goes_on_with_one_start_up_and_one_drain(
    trainer: MegatronTrainer,
) -> None:
    steps, ended = stepwise(), list[Ended]()
    halt = (1, 3, 4)  # after so many micro-steps the queue is empty
    for number, each in enumerate(steps):
        trainer.begin(each)
        if number + 1 in halt:
            ended += rest(trainer)
            assert len(ended) < number + 1  # the last one is still in the pipeline,
            assert not trainer.moving  # where it stays
            with pytest.raises(TrainerError, match=r"micro-steps are in hand.*drain\(\) first"):
                trainer.gradient  # noqa: B018
    ended += trainer.drain()
    assert [each.micro_step for each in ended] == [each.micro_step for each in steps]
    assert trainer.passage == Passage(
        startups=1, drains=1, pauses=len(halt), rows=sum(len(each.rows) for each in steps)
    )
    assert distance(trainer.gradient, one_by_one(steps)[0].double().numpy()) < 1e-5


def test_measurements_cross_a_pipeline_that_rests(trainer: MegatronTrainer) -> None:
    steps = stepwise()
    measuring = micro_step([[each] for each in map(clean, everything())], 50, kind="measure")
    alone = trainer.micro_step(measuring).measured
    trainer.begin(steps[0])
    ended = rest(trainer)
    trainer.begin(measuring)
    crossed = rest(trainer)
    ended += filled(trainer, steps[1:])
    assert [(each.micro_step, each.found.measured) for each in crossed] == [(50, alone)]
    assert [each.micro_step for each in ended] == [each.micro_step for each in steps]
    assert trainer.passage is not None
    assert (trainer.passage.startups, trainer.passage.drains) == (1, 1)
    assert distance(trainer.gradient, one_by_one(steps)[0].double().numpy()) < 1e-5


def test_one_of_several_in_hand_that_is_not_finite_spoils_them_all_until_zero(
    trainer: MegatronTrainer, model: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][BAD] = float("nan")
    save_file(weights, tmp_path / "bad.safetensors")
    trainer.load(tmp_path / "bad.safetensors")
    steps, good = stepwise(), clean(everything()[0])
    spoilt = good.model_copy(update={"ids": np.full(len(good.target), BAD, "<i4").tobytes()})
    trainer.begin(steps[0])
    trainer.begin(micro_step([[spoilt]], 60))
    trainer.begin(steps[1])
    with pytest.raises(AccumulatorSpoilt, match="not finite under these weights"):
        trainer.drain()
    with pytest.raises(AccumulatorSpoilt, match=r"zero\(\) the accumulator"):
        trainer.begin(steps[2])
    with pytest.raises(AccumulatorSpoilt, match=r"zero\(\) the accumulator"):
        trainer.gradient  # noqa: B018
    trainer.zero()
    with pytest.raises(MicroStepRefused, match="not finite under these weights"):
        trainer.micro_step(micro_step([[spoilt]], 61, kind="measure"))
    assert len(filled(trainer, steps)) == len(steps)
    assert distance(trainer.gradient, one_by_one(steps)[0].double().numpy()) < 1e-5


def test_what_is_refused_leaves_what_is_in_hand(trainer: MegatronTrainer) -> None:
    steps, segment = stepwise(), everything()[0]
    wrong = segment.model_copy(update={"ids": np.full(len(segment.target), 9999, "<i4").tobytes()})
    trainer.begin(steps[0])
    with pytest.raises(MicroStepRefused, match="ids from 9999"):
        trainer.begin(micro_step([[wrong]], 70))
    with pytest.raises(TrainerError, match="others are in hand"):
        trainer.micro_step(steps[1])
    assert [each.micro_step for each in filled(trainer, steps[1:])] == [each.micro_step for each in steps]
    assert distance(trainer.gradient, one_by_one(steps)[0].double().numpy()) < 1e-5


@pytest.mark.parametrize("how", ["zero", "load", "release"])
def test_what_is_in_the_pipeline_can_be_dropped_at_any_time(trainer: MegatronTrainer, model: Path, how: str) -> None:
    steps = stepwise()
    for each in steps[:3]:
        trainer.begin(each)
    if how == "zero":
        trainer.zero()
    elif how == "release":
        trainer.release()
    if how != "zero":
        trainer.load(model / "model.safetensors")
    assert not trainer.moving
    assert trainer.drain() == ()
    assert not trainer.gradient.any()
    filled(trainer, steps)
    assert distance(trainer.gradient, one_by_one(steps)[0].double().numpy()) < 1e-5


def test_a_rank_that_dies_with_micro_steps_in_hand_is_told(model: Path) -> None:
    trainer = start(model, 1, 2)
    try:
        trainer.load(model / "model.safetensors")
        steps = stepwise()
        trainer.begin(steps[0])
        rest(trainer)
        os.kill(trainer.processes[1], signal.SIGKILL)
        with pytest.raises(RankLost, match=r"rank \d ended with"):
            filled(trainer, steps[1:])
    finally:
        trainer.close()


def test_one_stage_is_no_pipeline(model: Path) -> None:
    trainer = start(model, 1, 1)
    try:
        trainer.load(model / "model.safetensors")
        assert trainer.depth == 1
        steps, ended = stepwise(), list[Ended]()
        for each in steps:
            trainer.begin(each)
            ended += trainer.advance()
        assert trainer.passage is None
        assert [each.micro_step for each in ended] == [each.micro_step for each in steps]
        assert trainer.drain() == ()
        assert distance(trainer.gradient, one_by_one(steps)[0].double().numpy()) < 1e-5
    finally:
        trainer.close()
