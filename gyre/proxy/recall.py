"""Items of a list that a client sends again and again, read once.

A conversation comes whole with every request; all but its end was read before. Items are compared with those at the
same places of the list kept from before, which is much cheaper than reading them, and what was made of an equal one
is given again, the very same object: whoever kept it finds it again by identity.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import orjson

T = TypeVar("T")
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
        raw, made = raw[: len(items)], made[: len(items)]
        for index, item in enumerate(items):
            if index >= len(raw):
                raw.append(item)
                made.append(self._read(item, index))
            elif raw[index] != item:
                raw[index], made[index] = item, self._read(item, index)
        if len(items) >= _HEAD:
            self._lists[head] = raw, made
            while len(self._lists) > self._most:
                del self._lists[next(iter(self._lists))]
        return list(made)


def _head(items: Sequence[Any]) -> bytes:
    try:
        return orjson.dumps(items[:_HEAD])
    except TypeError:
        return b""
