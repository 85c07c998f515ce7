"""The rules over plain numbers, and cells one event at a time."""

import pytest

from gyre.core.roles import Cells, evolve_cells, next_to_return, next_to_train, request, satellites_home
from gyre.core.waterlevel import may_retain, may_train, supply
from schemas.envelope import Event
from schemas.roles import CellLost
from tests.core.world import completed, failed, registered


@pytest.mark.parametrize(("waterlevel", "allowed"), [(16, True), (17, False), (0, True)])
def test_a_cell_may_train_when_the_others_cover_the_waterlevel(waterlevel: int, allowed: bool) -> None:
    assert may_train(waterlevel, capacity=24, leaving=8) is allowed


@pytest.mark.parametrize(("waterlevel", "kept"), [(4, True), (5, False)])
def test_the_core_is_kept_when_the_others_cover_the_next_dispatch_too(waterlevel: int, kept: bool) -> None:
    assert may_retain(waterlevel, pending=12, capacity_without_core=16) is kept


def test_supply_is_capped_by_what_the_batch_still_needs() -> None:
    assert supply(ready=9, assigned=3, batch=4, core_trains=True) == 1
    assert supply(ready=0, assigned=0, batch=4, core_trains=True) == 0


def test_what_the_batch_holds_is_supply_while_nobody_trains() -> None:
    assert supply(ready=0, assigned=4, batch=4, core_trains=False) == 4
    assert supply(ready=9, assigned=3, batch=4, core_trains=False) == 4


def _cells(*events: Event) -> Cells:
    cells = Cells()
    for event in events:
        cells = evolve_cells(cells, event)  # type: ignore[arg-type]
    return cells


THREE = _cells(*(registered(index, f"i{index}") for index in range(3)))


def _train(cells: Cells, index: int) -> Cells:
    asked = request(cells, next(cell for cell in cells.members if cell.index == index), "train")
    return evolve_cells(evolve_cells(cells, asked), completed(asked))


def test_cells_train_in_order_one_at_a_time() -> None:
    order = []
    cells = THREE
    while (cell := next_to_train(cells, 3)) is not None:
        asked = request(cells, cell, "train")
        order.append(cell.index)
        moving = evolve_cells(cells, asked)
        assert next_to_train(moving, 3) is None
        cells = evolve_cells(moving, completed(asked))
    assert order == [0, 1, 2]
    assert cells.capacity == 0


def test_standalone_engines_never_train() -> None:
    assert next_to_train(_train(THREE, 0), 1) is None


def test_a_dead_cell_keeps_those_behind_it_from_training() -> None:
    dead = evolve_cells(THREE, CellLost(cell=0, instance="i0", reason="silent"))
    assert next_to_train(dead, 3) is None


def test_the_core_may_publish_once_no_living_satellite_trains_or_moves() -> None:
    cells = _train(_train(THREE, 0), 1)
    assert not satellites_home(cells, 3)
    satellite = next_to_return(cells, 3)
    assert satellite is not None
    asked = request(cells, satellite, "rollout")
    moving = evolve_cells(cells, asked)
    assert not satellites_home(moving, 3)
    assert satellites_home(evolve_cells(moving, completed(asked)), 3)
    assert satellites_home(evolve_cells(moving, CellLost(cell=1, instance="i1", reason="silent")), 3)
    assert next_to_return(_train(THREE, 0), 3) is None  # the core is no satellite


def test_a_cell_that_registers_twice_keeps_its_role() -> None:
    cells = _train(THREE, 0)
    assert evolve_cells(cells, registered(0, "i0")) == cells
    assert evolve_cells(cells, registered(0, "other")).capacity == 12


def test_no_cell_leaves_for_training_while_another_comes_back() -> None:
    cells = _train(_train(THREE, 0), 1)
    satellite = next_to_return(cells, 3)
    assert satellite is not None
    coming_back = evolve_cells(cells, request(cells, satellite, "rollout"))
    assert next_to_train(cells, 3) is not None
    assert next_to_train(coming_back, 3) is None


def test_a_transition_ends_once() -> None:
    asked = request(THREE, THREE.members[0], "train")
    cells = _cells(*(registered(index, f"i{index}") for index in range(3)), asked, completed(asked))
    assert evolve_cells(cells, failed(asked)) == cells
    assert evolve_cells(cells, completed(asked)) == cells
