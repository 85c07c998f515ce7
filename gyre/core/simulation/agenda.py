"""Virtual time: what happens next, and when."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from gyre.errors import GyreError


class SimulationStuck(GyreError):
    """Nothing can happen any more, and the run is not over."""


class Agenda:
    """Deeds in order of their time; those of the same time in the order in which they were entered."""

    __slots__ = ("_count", "_heap", "now")

    def __init__(self) -> None:
        """Time 0, nothing planned."""
        self.now = 0.0
        """Virtual seconds since the run began."""
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, seconds: float, deed: Callable[..., object], *args: Any) -> None:
        """Plan a deed; a time in the past counts as now."""
        self._count += 1
        heappush(self._heap, (self.now + max(seconds, 0.0), self._count, deed, args))

    def proceed(self) -> bool:
        """Go on to the next deed and do it; False: there is none."""
        if not self._heap:
            return False
        self.now, _, deed, args = heappop(self._heap)
        deed(*args)
        return True
