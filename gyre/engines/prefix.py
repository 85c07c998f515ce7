"""Keys and values of finished sequences, kept for calls that begin with the same tokens."""

from collections import OrderedDict
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

    A sequence of the same key that a new one extends is replaced by it; forks of a history stay side by side.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._kept: OrderedDict[int, Kept] = OrderedDict()  # least recently used first
        self._next = 0
        self.tokens = 0

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
        while self.tokens > self._budget:
            self._drop(next(iter(self._kept)))

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
        self.tokens = 0

    def _candidates(self, key: str) -> list[int]:
        recent = list(reversed(self._kept))
        own = [number for number in recent if self._kept[number].key == key]
        return own + list(islice((number for number in recent if self._kept[number].key != key), OTHERS))

    def _drop(self, number: int) -> None:
        self.tokens -= len(self._kept.pop(number).tokens)
