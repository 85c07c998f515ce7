"""A bound on what waits in memory: callers beyond it wait their turn."""

import asyncio
from collections import deque

_COMMITS = 4096
_BYTES = 64 << 20


class Budget:
    """At most so many commits and bytes at once (one oversized commit is let through alone)."""

    def __init__(self) -> None:
        """Begin with all of it free."""
        self._free_commits, self._free_bytes = _COMMITS, _BYTES
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, size: int) -> bool:
        """Take room for one commit, if there is room and nobody was first."""
        if self._waiting or not self._fits(size):
            return False
        self._take(size)
        return True

    async def take(self, size: int) -> None:
        """Wait for room, first come first served."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)
            raise

    def give(self, size: int) -> None:
        """Return what one commit took."""
        self._free_commits += 1
        self._free_bytes += size
        if self._waiting:
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._take(size)
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._free_commits > 0 and (self._free_bytes >= size or self._free_bytes == _BYTES)

    def _take(self, size: int) -> None:
        self._free_commits -= 1
        self._free_bytes -= size
