"""Keys and values of finished sequences, kept for calls that begin with the same tokens."""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gyre.engines.kv import Segment

Ids = NDArray[np.int64]
OTHERS = 64
"""How many of the most recently used sequences of other keys a look-up tries."""


def common_prefix(left: Ids, right: Ids) -> int:
    """How many leading tokens two sequences share."""
    size = min(len(left), len(right))
    differs = np.flatnonzero(left[:size] != right[:size])
    return int(differs[0]) if len(differs) else size


@dataclass(frozen=True, slots=True)
class Kept:
    """One retained sequence of an execution; the segment holds len(tokens) tokens."""

    key: str
    tokens: Ids
    segment: Segment


class PrefixStore:
    """An LRU of sequences within a budget of tokens.

    A sequence of the same key that a new one extends is replaced by it; forks of a history stay side by side. Those of
    a pinned key are never dropped for want of room: they wait to be handed over.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._kept: OrderedDict[int, Kept] = OrderedDict()  # least recently used first
        self._next = 0
        self._pinned: set[str] = set()
        self.tokens = 0

    @property
    def keys(self) -> set[str]:
        """Keys under which anything is kept."""
        return {kept.key for kept in self._kept.values()}

    def pin(self, keys: Collection[str]) -> None:
        """Drop none of what is or will be kept under these keys, until it is released or forgotten."""
        self._pinned |= set(keys)

    def of(self, key: str) -> list[Kept]:
        """All that is kept under a key, least recently used first."""
        return [kept for kept in self._kept.values() if kept.key == key]

    def release(self, key: str) -> None:
        """Forget what is kept under a key, pinned or not."""
        self._pinned.discard(key)
        for number in [number for number, kept in self._kept.items() if kept.key == key]:
            self._drop(number)

    def add(self, kept: Kept) -> None:
        """Retain a sequence and drop the least recently used beyond the budget; one longer than that is not kept."""
        if len(kept.tokens) > self._budget:
            return
        for number, other in list(self._kept.items()):
            if other.key == kept.key and common_prefix(other.tokens, kept.tokens) == len(other.tokens):
                self._drop(number)
        self._kept[self._next] = kept
        self._next += 1
        self.tokens += len(kept.tokens)
        while self.tokens > self._budget and (oldest := self._oldest()) is not None:
            self._drop(oldest)

    def find(self, key: str, tokens: Ids) -> tuple[int, Segment | None]:
        """The longest shared prefix, in tokens, and the segment that begins with it.

        All sequences of the key are tried, and the `OTHERS` most recently used of other keys (a shared system prompt).
        """
        best, where = 0, -1
        for number in self._candidates(key):
            shared = common_prefix(self._kept[number].tokens, tokens)
            if shared > best:
                best, where = shared, number
        if where < 0:
            return 0, None
        self._kept.move_to_end(where)
        return best, self._kept[where].segment

    def clear(self) -> None:
        """Forget everything: the weights changed."""
        self._kept.clear()
        self._pinned.clear()
        self.tokens = 0

    def _oldest(self) -> int | None:
        """The least recently used that nobody waits for."""
        return next((number for number, kept in self._kept.items() if kept.key not in self._pinned), None)

    def _candidates(self, key: str) -> list[int]:
        recent = list(reversed(self._kept))
        own = [number for number in recent if self._kept[number].key == key]
        return own + list(islice((number for number in recent if self._kept[number].key != key), OTHERS))

    def _drop(self, number: int) -> None:
        self.tokens -= len(self._kept.pop(number).tokens)
