"""Routes: sticky, standalone first, descending, within capacity."""

from hypothesis import given
from hypothesis import strategies as st

from gyre.core.routing import Destination, Move, assign, moves

CELLS = (Destination(0, 2), Destination(1, 2), Destination(2, 2))


def test_a_new_execution_goes_to_the_cell_that_trains_last() -> None:
    assert assign("a", {}, CELLS) == 2


def test_standalone_engines_come_before_any_cell() -> None:
    assert assign("a", {}, (*CELLS, Destination(1, 1, standalone=True))) == 1


def test_an_execution_stays_where_it_is_even_when_that_cell_is_full() -> None:
    assert assign("a", {"a": 0, "b": 0, "c": 0}, CELLS) == 0


def test_a_full_cell_is_passed_over_and_a_full_pool_makes_requests_wait() -> None:
    assert assign("a", {"b": 2, "c": 2}, CELLS) == 1
    assert assign("a", {"b": 2, "c": 2}, (Destination(2, 2),)) is None


def test_a_route_to_a_cell_that_admits_no_more_is_given_up() -> None:
    assert assign("a", {"a": 0}, CELLS[1:]) == 2


def test_a_leaving_cell_hands_its_executions_on_in_order_within_capacity() -> None:
    routes = {"a": 0, "b": 0, "c": 0, "d": 2}
    assert moves(0, routes, CELLS) == (Move("a", 0, 2), Move("b", 0, 1), Move("c", 0, 1))


def test_those_who_find_no_room_are_left_to_wait() -> None:
    routes = {"a": 0, "b": 0, "c": 2}
    assert moves(0, routes, (CELLS[0], CELLS[2])) == (Move("a", 0, 2),)


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 2)))
def test_moving_never_fills_a_cell_beyond_its_capacity(routes: dict[str, int]) -> None:
    before = {cell.cell: sum(at == cell.cell for at in routes.values()) for cell in CELLS}
    for move in moves(0, routes, CELLS):
        before[move.target] += 1
        assert before[move.target] <= 2
