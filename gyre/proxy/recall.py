"""Items of a list that a client sends again and again, read once.

A conversation comes whole with every request; all but its end was read before. Items are compared with those at the
same places of the list kept from before, which is much cheaper than reading them, and what was made of an equal one
is given again, the very same object: whoever kept it finds it again by identity.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import orjson

from gyre.proxy.errors import BadRequest

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
        self._lists: dict[bytes, tuple[list[bytes], list[T]]] = {}

    def __call__(self, items: Sequence[Any]) -> list[T]:
        """What `read` makes of each item. Raises BadRequest for one that is nested too deeply to be written again."""
        head = _written(items[:_HEAD])
        blocks, made = self._lists.pop(head, ([], []))
        del blocks[-(-len(items) // _BLOCK) :], made[len(items) :]
        for place, start in enumerate(range(0, len(items), _BLOCK)):
            block = items[start : start + _BLOCK]
            text = _written(block)
            if blocks[place : place + 1] != [text]:
                known = orjson.loads(blocks[place]) if place < len(blocks) else []
                made[start : start + _BLOCK] = self._reread(known, made[start : start + _BLOCK], block, start)
                blocks[place : place + 1] = [text]
        if len(items) >= _HEAD:
            self._lists[head] = blocks, made
            while len(self._lists) > self._most:
                del self._lists[next(iter(self._lists))]
        return list(made)

    def _reread(self, known: list[Any], made: list[T], block: Sequence[Any], start: int) -> list[T]:
        """What a block is, read again where it is new."""
        kept = [_written(each) for each in known[: len(made)]]
        return [
            made[place] if place < len(kept) and kept[place] == _written(item) else self._read(item, start + place)
            for place, item in enumerate(block)
        ]


def _written(value: object) -> bytes:
    """JSON: what Python takes for equal (`1`, `1.0`, `true`) is not."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise BadRequest(f"body: cannot be read: {error}; nest less deeply") from error
