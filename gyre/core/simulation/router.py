"""Which engine takes an execution: what the proxy's rules say (`gyre.core.routes`), without a pass over all cells."""

from collections import Counter
from heapq import heapify, heappop, heappush

from gyre.core.simulation.agenda import SimulationStuck

_NOBODY = "an execution needs an engine while no cell serves; keep one in rollout"
_SLACK = 8  # entries a cell in the heap before it is built anew


class Router:
    """Executions on each cell, and the cell that takes the next one."""

    def __init__(self) -> None:
        """No cell."""
        self._capacity: dict[int, int] = {}
        self._serving: set[int] = set()
        self._count: Counter[int] = Counter()
        self._heap: list[tuple[float, int, int]] = []
        """(load, -cell, count): void unless the count is still that of the cell."""
        self._roomy: list[int] = []
        """A heap of -cell: every serving cell that has room, and some that served or had room before."""
        self._listed: set[int] = set()
        """The cells in it."""

    def open(self, cell: int, capacity: int) -> None:
        """A cell begins to serve."""
        self._capacity[cell] = capacity
        self._serving.add(cell)
        self._enter(cell)

    def close(self, cell: int) -> None:
        """A cell admits no more."""
        self._serving.discard(cell)

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
        """The cell for an execution whose own serves no more: `routes.onward`. Raises as `choose` does."""
        while self._roomy:
            cell = -self._roomy[0]
            if cell in self._serving and self._count[cell] < self._capacity[cell]:
                return cell
            heappop(self._roomy)
            self._listed.remove(cell)
        return self.choose()

    def _enter(self, cell: int) -> None:
        if cell not in self._listed and self._count[cell] < self._capacity[cell]:
            self._listed.add(cell)
            heappush(self._roomy, -cell)
        if len(self._heap) > _SLACK * len(self._capacity):
            self._heap = [self._entry(each) for each in self._serving]
            heapify(self._heap)
        else:
            heappush(self._heap, self._entry(cell))

    def _entry(self, cell: int) -> tuple[float, int, int]:
        count = self._count[cell]
        return (count / self._capacity[cell], -cell, count)
