"""Executions that share an engine."""

import pytest

from gyre.core.simulation.agenda import Agenda
from gyre.core.simulation.engines import Engines

CELL = 3


class Bench:
    """Engines whose ends are written down."""

    def __init__(self, relief: float, capacity: int = 2) -> None:
        self.agenda = Agenda()
        self.ends: list[tuple[str, float]] = []
        self.engines = Engines(self.agenda, relief, self._ended)
        self.engines.open(CELL, capacity)
        self.engines.open(CELL + 1, capacity)

    def _ended(self, execution: str, cell: int) -> None:
        self.ends.append((execution, self.agenda.now))

    def at(self, seconds: float, execution: str, work: float) -> None:
        self.agenda.after(seconds, self.engines.place, CELL, execution, work)

    def run(self) -> list[tuple[str, float]]:
        while self.agenda.proceed():
            self.engines.settle()
        return self.ends


def test_on_a_full_engine_work_takes_its_own_time() -> None:
    bench = Bench(relief=0.4)
    bench.at(0, "a", 10)
    bench.at(0, "b", 10)
    assert bench.run() == [("a", 10), ("b", 10)]


def test_an_execution_alone_on_an_engine_of_two_is_faster_by_half_the_relief() -> None:
    bench = Bench(relief=0.4)
    bench.at(0, "a", 10)
    assert bench.run() == [("a", pytest.approx(10 * 0.8))]


def test_what_joins_slows_down_from_then_on_and_what_ends_speeds_up() -> None:
    """a alone for 4 s does 5 of its 10; both do 5 more in 5 s; b then has 5 left, alone: 4 s."""
    bench = Bench(relief=0.4)
    bench.at(0, "a", 10)
    bench.at(4, "b", 10)
    assert bench.run() == [("a", pytest.approx(9)), ("b", pytest.approx(13))]


def test_what_moves_takes_along_what_is_left_of_its_work() -> None:
    bench = Bench(relief=0.0)
    bench.at(0, "a", 10)

    def move() -> None:
        bench.engines.place(CELL + 1, "a", bench.engines.take("a"))

    bench.agenda.after(4, move)
    assert bench.run() == [("a", pytest.approx(10))]


def test_what_leaves_never_ends_there() -> None:
    bench = Bench(relief=0.0)
    bench.at(0, "a", 10)
    bench.at(0, "b", 12)
    bench.agenda.after(4, bench.engines.take, "a")
    assert bench.run() == [("b", pytest.approx(12))]


def test_those_on_a_cell_are_told_in_the_order_of_their_ends() -> None:
    bench = Bench(relief=0.0, capacity=4)
    for place, work in enumerate((5, 3, 4)):
        bench.at(0, f"x{place}", work)
    found: list[list[str]] = []
    bench.agenda.after(1, lambda: found.append(bench.engines.on(CELL)))
    bench.run()
    assert found == [["x1", "x2", "x0"]]
