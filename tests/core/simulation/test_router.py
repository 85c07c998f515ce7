"""The cell that takes one more execution."""

import random

import pytest

from gyre.core.routes import Cell, onward
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


def test_what_leaves_its_cell_goes_where_the_proxys_rule_sends_it() -> None:
    """Cells come and go and fill up; each choice is compared with a whole count by `gyre.core.routes`."""
    chance = random.Random(2)
    router = Router()
    serving: dict[int, Cell] = {}
    counts = dict.fromkeys(range(6), 0)
    for turn in range(3000):
        cell = chance.choice(list(counts))
        if turn < 6 or chance.random() < 0.2:
            cell = turn if turn < 6 else cell
            serving[cell] = Cell("", "", cell % 3 + 1)
            router.open(cell, cell % 3 + 1)
        elif chance.random() < 0.3 and len(serving) > 1:
            serving.pop(cell, None)
            router.close(cell)
        else:
            change = chance.choice((1, 1, -1)) if counts[cell] else 1
            counts[cell] += change
            router.add(cell, change)
        assert router.onward() == onward(serving, counts)
