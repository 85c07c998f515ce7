"""Items of a list that a client sends again and again, read once.

A conversation comes whole with every request; all but its end was read before. Items are compared with those at the
same places of the list kept from before, which is much cheaper than reading them, and what was made of an equal one
is given again, the very same object: whoever kept it finds it again by identity.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import orjson

T = TypeVar("T")
_BLOCK = 64
"""Items compared at once."""
_HEAD = 4
"""Items by which a list is told from others: by the fourth, an answer with ids of its own has been given."""


class Recall(Generic[T]):
    """A reader of lists that remembers the latest ones."""

    def __init__(self, read: Callable[[object, int], T], kept: int = 256) -> None:
        """`read` makes something of an item and its index and may raise; `kept`: lists remembered at most."""
        self._read, self._most = read, kept
        self._lists: dict[bytes, tuple[list[Any], list[T]]] = {}

    def __call__(self, items: Sequence[Any]) -> list[T]:
        """What `read` makes of each item."""
        head = _head(items)
        raw, made = self._lists.pop(head, ([], []))
        for start in range(0, len(items), _BLOCK):
            if raw[start : start + _BLOCK] != items[start : start + _BLOCK]:
                self._reread(raw, made, items, start)
        del raw[len(items) :], made[len(items) :]
        if len(items) >= _HEAD:
            self._lists[head] = raw, made
            while len(self._lists) > self._most:
                del self._lists[next(iter(self._lists))]
        return list(made)

    def _reread(self, raw: list[Any], made: list[T], items: Sequence[Any], start: int) -> None:
        """Read again what is new in the block at `start`."""
        for index in range(start, min(start + _BLOCK, len(items))):
            if index >= len(raw):
                raw.append(items[index])
                made.append(self._read(items[index], index))
            elif raw[index] != items[index]:
                raw[index], made[index] = items[index], self._read(items[index], index)


def _head(items: Sequence[Any]) -> bytes:
    try:
        return orjson.dumps(items[:_HEAD])
    except TypeError:
        return b""
