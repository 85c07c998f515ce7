"""Sums over gloo between reducers of one process, a thread each: real sockets, real time limits."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gyre.trainers.port import FencedOut, LedgerBroken, ReductionFailed
from gyre.trainers.reduction import Reducer, checked_sum
from schemas.training import Contribution, ReductionOpened

GRADIENTS = [torch.tensor([1.0, -2.0, 0.5]), torch.tensor([10.0, 20.0, 30.0]), torch.tensor([100.0, 0.0, 1.0])]


def opened(step: int, epoch: int, *members: int) -> ReductionOpened:
    names = tuple(f"instance{each}" for each in members)
    return ReductionOpened(step=step, epoch=epoch, members=members, instances=names, contributions=())


@pytest.fixture
def reducers(tmp_path: Path) -> Iterator[list[Reducer]]:
    made = [Reducer(tmp_path, each, f"instance{each}", timeout_seconds=2) for each in range(3)]
    yield made
    for each in made:
        each.close()


def together(reducers: list[Reducer], event: ReductionOpened, cells: list[int]) -> list[Future[Tensor]]:
    with ThreadPoolExecutor(len(cells)) as threads:
        return [threads.submit(reducers[each].sum, event, GRADIENTS[each]) for each in cells]


def test_every_member_gets_the_sum_and_keeps_its_own(reducers: list[Reducer]) -> None:
    before = [each.clone() for each in GRADIENTS]
    for each in together(reducers, opened(1, 1, 0, 1, 2), [0, 1, 2]):
        assert each.result().tolist() == [111.0, 18.0, 31.5]
    assert all(torch.equal(each, old) for each, old in zip(GRADIENTS, before, strict=True))


def test_a_member_alone_sums_by_itself_on_a_copy(reducers: list[Reducer]) -> None:
    total = reducers[1].sum(opened(1, 1, 1), GRADIENTS[1])
    assert torch.equal(total, GRADIENTS[1])
    assert total.data_ptr() != GRADIENTS[1].data_ptr()


def test_a_group_is_formed_once_for_a_membership(reducers: list[Reducer], tmp_path: Path) -> None:
    for step in (1, 2, 3):
        assert together(reducers, opened(step, 1, 0, 1), [0, 1])[0].result().tolist() == [11.0, 18.0, 30.5]
    assert [each.name.split("-")[:2] for each in (tmp_path / "reduction").iterdir()] == [["1", "1"]]


def test_a_member_that_does_not_come_fails_the_sum_and_a_new_epoch_goes_on_without_it(reducers: list[Reducer]) -> None:
    (alone,) = together(reducers, opened(1, 1, 0, 1), [0])
    with pytest.raises(ReductionFailed, match=r"step 1 epoch 1, members \(0, 1\).*under epoch 2"):
        alone.result()
    assert GRADIENTS[0].tolist() == [1.0, -2.0, 0.5]
    for each in together(reducers, opened(1, 2, 0, 2), [0, 2]):
        assert each.result().tolist() == [101.0, -2.0, 1.5]


def test_a_member_lost_after_the_group_was_formed_fails_the_sum_and_a_new_epoch_forms_another(
    reducers: list[Reducer], tmp_path: Path
) -> None:
    together(reducers, opened(1, 1, 0, 1), [0, 1])
    reducers[1].close()
    (alone,) = together(reducers, opened(2, 1, 0, 1), [0])
    with pytest.raises(ReductionFailed, match="step 2 epoch 1"):
        alone.result()
    reducers[1] = Reducer(tmp_path, 1, "instance1", timeout_seconds=2)
    for each in together(reducers, opened(2, 2, 0, 1), [0, 1]):
        assert each.result().tolist() == [11.0, 18.0, 30.5]


def test_who_is_not_named_with_its_instance_is_fenced_out(reducers: list[Reducer], tmp_path: Path) -> None:
    with pytest.raises(FencedOut, match="cell 2 as instance2 is not among"):
        reducers[2].sum(opened(1, 1, 0, 1), GRADIENTS[2])
    with pytest.raises(FencedOut, match="cell 1 as reborn is not among"):
        Reducer(tmp_path, 1, "reborn", timeout_seconds=2).sum(opened(1, 1, 0, 1), GRADIENTS[1])


def checked(reducers: list[Reducer], *held: dict[int, int]) -> list[Future[Tensor]]:
    """Cells 0 and 1 sum three frozen micro-steps, of which they say that they hold these, under these claims."""
    frozen = [(0, 0, 11), (1, 1, 12), (2, 0, 13)]
    contributions = tuple(Contribution(micro_step=place, cell=cell, claim=claim) for place, cell, claim in frozen)
    event = opened(1, 1, 0, 1).model_copy(update={"contributions": contributions})
    with ThreadPoolExecutor(2) as threads:
        return [threads.submit(checked_sum, reducers[each], event, GRADIENTS[each], held[each]) for each in (0, 1)]


def test_gradients_are_summed_once_the_members_hold_each_frozen_micro_step_once(reducers: list[Reducer]) -> None:
    for each in checked(reducers, {0: 11, 2: 13}, {1: 12}):
        assert each.result().tolist() == [11.0, 18.0, 30.5]


@pytest.mark.parametrize(
    ("first", "second", "wrong"),
    [
        ({0: 11}, {1: 12}, "micro-step 2 is in the members' gradients 0 times"),
        ({0: 11, 2: 13}, {1: 12, 2: 13}, "micro-step 2 is in the members' gradients 2 times"),
        ({0: 9, 2: 13}, {1: 12}, "micro-step 0 is in the members' gradients 0 times"),
        ({0: 11, 2: 13}, {1: 12, 5: 14}, "hold 1 micro-steps that the reduction does not name"),
    ],
)
def test_a_sum_of_anything_else_is_refused_at_every_member(
    reducers: list[Reducer], first: dict[int, int], second: dict[int, int], wrong: str
) -> None:
    for each in checked(reducers, first, second):
        with pytest.raises(LedgerBroken, match=f"step 1 epoch 1: .*{wrong}"):
            each.result()


def test_what_is_accumulated_after_the_account_is_in_no_sum_of_it(reducers: list[Reducer], tmp_path: Path) -> None:
    mine = GRADIENTS[0].clone()
    event = opened(1, 1, 0, 1)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(checked_sum, reducers[0], event, mine, {})
        while not list((tmp_path / "reduction").glob("*")):  # it waits for the other one there
            assert not first.done()
        mine += 1000.0  # as a cell does that gave up on this sum
        second = threads.submit(checked_sum, reducers[1], event, GRADIENTS[1], {})
        assert first.result().tolist() == second.result().tolist() == [11.0, 18.0, 30.5]
