"""The cell that takes one more execution."""

import random

import pytest

from gyre.core.simulation.agenda import SimulationStuck
from gyre.core.simulation.router import Router


def test_a_new_execution_goes_where_the_load_is_least_and_ties_to_the_highest_index() -> None:
    router = Router()
    router.open(0, 2)
    router.open(1, 4)
    chosen = []
    for _ in range(6):
        chosen.append(router.choose())
        router.add(chosen[-1], 1)
    assert chosen == [1, 0, 1, 1, 0, 1]


def test_a_cell_that_admits_no_more_is_not_chosen_until_it_serves_again() -> None:
    router = Router()
    router.open(0, 2)
    router.open(1, 2)
    router.close(1)
    assert router.choose() == 0
    router.open(1, 2)
    assert router.choose() == 1


def test_without_a_serving_cell_it_says_so() -> None:
    with pytest.raises(SimulationStuck, match="no cell serves"):
        Router().choose()


def test_after_many_changes_the_choice_is_still_that_of_a_whole_count() -> None:
    chance = random.Random(1)
    router, counts = Router(), dict.fromkeys(range(5), 0)
    for cell in counts:
        router.open(cell, cell + 1)
    for _ in range(2000):
        cell = chance.choice(list(counts))
        change = 1 if counts[cell] == 0 else chance.choice((-1, 1))
        counts[cell] += change
        router.add(cell, change)
        assert router.choose() == min(counts, key=lambda each: (counts[each] / (each + 1), -each))
