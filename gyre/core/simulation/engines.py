"""Engines: executions that share one and slow each other down.

Each engine has a clock of its own that runs at 1 / latency(load): an execution of so much work ends when that clock has
advanced by it, however the load changed meanwhile. A change costs the logarithm of what runs there, never a pass over
cells or executions.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from gyre.core.simulation.agenda import Agenda
from gyre.core.simulation.setting import latency


class _Engine:
    """One cell's engine."""

    __slots__ = ("capacity", "clock", "count", "ends", "rate", "since", "stamp")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.clock = 0.0
        self.since = 0.0
        self.rate = 1.0
        self.stamp = 0
        """Of the latest appointment with `_due`: older ones are void."""
        self.ends: list[tuple[float, str]] = []
        """(own clock at its end, execution); one that left stays in it until it comes up."""

    def advance(self, now: float) -> None:
        self.clock += (now - self.since) * self.rate
        self.since = now


class Engines:
    """All engines of a run."""

    def __init__(self, agenda: Agenda, relief: float, ended: Callable[[str, int], None]) -> None:
        """`ended` is told of each execution that has done its work, and of its cell."""
        self._agenda, self._relief, self._ended = agenda, relief, ended
        self._engines: dict[int, _Engine] = {}
        self._at: dict[str, tuple[int, float]] = {}
        """Execution -> (cell, own clock of that cell at its end)."""
        self._touched: set[int] = set()

    def open(self, cell: int, capacity: int) -> None:
        """An engine of so many places."""
        self._engines[cell] = _Engine(capacity)

    def place(self, cell: int, execution: str, work: float) -> None:
        """An execution begins or goes on here; `work` is in seconds on a full engine."""
        engine = self._engines[cell]
        engine.advance(self._agenda.now)
        engine.count += 1
        end = engine.clock + work
        heappush(engine.ends, (end, execution))
        self._at[execution] = (cell, end)
        self._touched.add(cell)

    def take(self, execution: str) -> float:
        """It leaves before its end; what is left of its work, seconds on a full engine."""
        cell, end = self._at.pop(execution)
        engine = self._engines[cell]
        engine.advance(self._agenda.now)
        engine.count -= 1
        self._touched.add(cell)
        return max(0.0, end - engine.clock)

    def cell_of(self, execution: str) -> int:
        """Where it runs."""
        return self._at[execution][0]

    def on(self, cell: int) -> list[str]:
        """The executions on a cell, those that end first in front."""
        return [
            execution for end, execution in sorted(self._engines[cell].ends) if self._at.get(execution) == (cell, end)
        ]

    def settle(self) -> None:
        """Appoint the next end on each engine whose load has changed."""
        for cell in self._touched:
            engine = self._engines[cell]
            engine.rate = 1.0 / latency(engine.count / engine.capacity, self._relief)
            engine.stamp += 1
            while engine.ends and self._at.get(engine.ends[0][1]) != (cell, engine.ends[0][0]):
                heappop(engine.ends)
            if engine.ends:
                wait = (engine.ends[0][0] - engine.clock) / engine.rate
                self._agenda.after(wait, self._due, cell, engine.stamp)
        self._touched.clear()

    def _due(self, cell: int, stamp: int) -> None:
        engine = self._engines[cell]
        if stamp != engine.stamp:
            return
        engine.clock, execution = engine.ends[0]
        engine.since = self._agenda.now
        self.take(execution)
        self._ended(execution, cell)
