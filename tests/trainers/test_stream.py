"""What a cell may rely on, whatever trains: micro-steps end once, in order, and all of them when it is drained."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainers.stream import OneByOne, Stream, stream_of
from gyre.trainers.torch import TorchTrainer
from schemas.training import MicroStepEnqueued
from tests.trainers import batch
from tests.trainers.batch import distance, micro_step
from tests.trainers.lagging import lagging
from tests.trainers.test_gradient import pieces, wanted

Deeds = list[str]


TRAINERS: dict[str, TorchTrainer] = {"one by one": batch.trainer()} | {
    f"{stages} stages": lagging(stages) for stages in (2, 3, 4)
}


def work() -> list[MicroStepEnqueued]:
    """Each execution in a micro-step of its own."""
    return [micro_step([parts], number) for number, parts in enumerate(pieces().values())]


@pytest.mark.parametrize("kind", TRAINERS)
@settings(max_examples=15, deadline=None)
@given(deeds=st.lists(st.sampled_from(["begin", "begin", "advance", "rest", "measure"]), max_size=12))
def test_all_that_is_begun_ends_once_and_in_order(kind: str, deeds: Deeds) -> None:
    trainer = TRAINERS[kind]
    trainer.zero()
    stream, left, ended, begun, measured = stream_of(trainer), work(), list[int](), 0, 0
    for deed in deeds:
        if deed == "begin" and left:
            stream.begin(left.pop(0))
            begun += 1
            while begun + measured - len(ended) >= stream.depth:  # full: something has to be on its way out
                assert stream.moving
                ended += [each.micro_step for each in stream.advance()]
        elif deed == "measure":
            stream.begin(micro_step([pieces()["plain"]], 1000 + measured, kind="measure"))
            measured += 1
            ended += rested(stream)
        elif deed == "advance":
            ended += [each.micro_step for each in stream.advance()]
        elif deed == "rest":
            ended += rested(stream)
    begun += len(left)
    for each in left:
        stream.begin(each)
    ended += [each.micro_step for each in stream.drain()]
    assert not stream.moving
    assert stream.drain() == ()
    assert [each for each in ended if each < 1000] == list(range(begun))
    assert [each for each in ended if each >= 1000] == [1000 + each for each in range(measured)]
    assert distance(trainer.gradient, wanted().gradient) < 1e-5


def rested(stream: Stream) -> list[int]:
    """Until what is left wants more input."""
    ended: list[int] = []
    while stream.moving:
        ended += [each.micro_step for each in stream.advance()]
    return ended


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_pipeline_that_rests_in_the_middle_starts_up_and_drains_once(stages: int) -> None:
    stream = lagging(stages)
    for number, each in enumerate(work()):
        stream.begin(each)
        if number in (0, 3):
            assert len(rested(stream)) < number + 1
    stream.drain()
    passage = stream.passage
    assert (passage.startups, passage.drains, passage.pauses, passage.rows) == (1, 1, 2, len(work()))


MAKERS: tuple[Callable[[], Stream], ...] = (lambda: OneByOne(batch.trainer()), lambda: lagging(3))


@pytest.mark.parametrize("make", MAKERS)
def test_a_trainer_that_is_a_stream_is_taken_as_one(make: Callable[[], Stream]) -> None:
    assert isinstance(make(), Stream)
    assert isinstance(stream_of(batch.trainer()), OneByOne)
    mine = lagging(2)
    assert stream_of(mine) is mine
