"""Which engine takes an execution, by the proxy's rules (`gyre.core.routes`), over counts that are kept up to date."""

from collections import Counter
from heapq import heapify, heappop, heappush

from gyre.core.routes import Cell, onward
from gyre.core.simulation.agenda import SimulationStuck

_NOBODY = "an execution needs an engine while no cell serves; keep one in rollout"
_SLACK = 8  # entries a cell in the heap before it is built anew


class Router:
    """Executions on each cell, and the cell that takes the next one."""

    def __init__(self) -> None:
        """No cell."""
        self._cells: dict[int, Cell] = {}
        self._serving: dict[int, Cell] = {}
        self._count: Counter[int] = Counter()
        self._heap: list[tuple[float, int, int]] = []
        """(load, -cell, count): void unless the count is still that of the cell."""

    def open(self, cell: int, capacity: int) -> None:
        """A cell begins to serve."""
        self._cells[cell] = self._serving[cell] = Cell(instance="", url="", capacity=capacity)
        self._enter(cell)

    def close(self, cell: int) -> None:
        """A cell admits no more."""
        self._serving.pop(cell, None)

    def add(self, cell: int, change: int) -> None:
        """So many executions more on a cell."""
        self._count[cell] += change
        if cell in self._serving:
            self._enter(cell)

    def choose(self) -> int:
        """The least loaded cell, for a new execution: `routes.choose`. Raises `SimulationStuck` while none serves."""
        heap = self._heap
        while heap:
            _, negative, count = heap[0]
            if -negative in self._serving and self._count[-negative] == count:
                return -negative
            heappop(heap)
        raise SimulationStuck(_NOBODY)

    def onward(self) -> int:
        """The cell for an execution whose own serves no more. Raises `SimulationStuck` while none serves."""
        found = onward(self._serving, self._count)
        if found is None:
            raise SimulationStuck(_NOBODY)
        return found

    def _enter(self, cell: int) -> None:
        if len(self._heap) > _SLACK * len(self._cells):
            self._heap = [self._entry(each) for each in self._serving]
            heapify(self._heap)
        else:
            heappush(self._heap, self._entry(cell))

    def _entry(self, cell: int) -> tuple[float, int, int]:
        count = self._count[cell]
        return (count / self._cells[cell].capacity, -cell, count)
