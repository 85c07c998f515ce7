"""Items of a list that a client sends again and again, read once.

A conversation comes whole with every request; all but its end was read before. Items are compared with those at the
same places of the list kept from before, which is much cheaper than reading them, and what was made of an equal one
is given again, the very same object: whoever kept it finds it again by identity.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import orjson

from gyre.proxy.errors import BadRequest, PromptTooLong

T = TypeVar("T")
MOST = 1 << 20
"""Items of a list at most, where nobody says how many tokens a context may have."""
_KEPT_BYTES = 1 << 27
_ITEM_BYTES = 512
"""What is made of an item, about, beside its text."""
_INNER = 2
"""Parts of items for each token that there may be: what is wrapped around a text can be several."""
_BLOCK = 64
"""Items compared at once."""
_HEAD = 4
"""Items by which a list is told from others: by the fourth, an answer with ids of its own has been given."""


class Recall(Generic[T]):
    """A reader of lists that remembers the latest ones."""

    def __init__(self, read: Callable[[object, int], T], kept_bytes: int = _KEPT_BYTES) -> None:
        """`read` makes something of an item and its index and may raise; `kept_bytes`: of all lists remembered."""
        self._read, self._most = read, kept_bytes
        self._lists: dict[bytes, tuple[list[bytes], list[T]]] = {}
        self._held = 0

    def __call__(self, items: Sequence[Any], most: int = MOST) -> list[T]:
        """What `read` makes of each item.

        Raises:
            PromptTooLong: more than `most` items, or parts of new ones beyond any proportion to it.
            BadRequest: one is nested too deeply to be written again.
        """
        refuse_crowd(items, most)
        head = _written(items[:_HEAD])
        blocks, made = self._taken(head)
        del blocks[-(-len(items) // _BLOCK) :], made[len(items) :]
        room = _INNER * most
        for place, start in enumerate(range(0, len(items), _BLOCK)):
            block = items[start : start + _BLOCK]
            text = _written(block)
            known = blocks[place] if place < len(blocks) else b"[]"
            if known == text:
                continue
            kept = _kept(known, made[start : start + _BLOCK], block, text)
            room -= _parts([item for item, old in zip(block, kept, strict=True) if not old], room)
            if room < 0:
                raise PromptTooLong(_INNER * most - room, most)
            made[start : start + _BLOCK] = [
                old[0] if old else self._read(item, start + index)
                for index, (item, old) in enumerate(zip(block, kept, strict=True))
            ]
            blocks[place : place + 1] = [text]
        if len(items) >= _HEAD:
            self._keep(head, blocks, made)
        return list(made)

    def _taken(self, head: bytes) -> tuple[list[bytes], list[T]]:
        """The list kept from before; it is kept no more."""
        blocks, made = self._lists.pop(head, ([], []))
        if blocks:
            self._held -= _size(head, blocks, made)
        return blocks, made

    def _keep(self, head: bytes, blocks: list[bytes], made: list[T]) -> None:
        """Remember a list, and let the oldest ones go for it."""
        size = _size(head, blocks, made)
        if size > self._most:
            return
        while self._held + size > self._most:
            oldest = next(iter(self._lists))
            self._held -= _size(oldest, *self._lists.pop(oldest))
        self._lists[head] = blocks, made
        self._held += size


def refuse_crowd(items: object, most: int) -> None:
    """Raises PromptTooLong for a list of more items than there may be tokens: each is at least one."""
    if isinstance(items, list) and len(items) > most:
        raise PromptTooLong(len(items), most)


def _kept(known: bytes, made: Sequence[T], block: Sequence[Any], text: bytes) -> list[tuple[T, ...]]:
    """For each item of a block: what was made of it before, or nothing where it is new.

    Args:
        known: the block as it was written before.
        made: what was made of that.
        block: the items now.
        text: those, written.
    """
    if text.startswith(known[:-1]) and text[len(known) - 1 : len(known)] == b",":  # it grew, and that is all
        before: list[tuple[T, ...]] = [(each,) for each in made]
        return before + [()] * (len(block) - len(made))
    old = [_written(each) for each in orjson.loads(known)[: len(made)]]
    return [(made[at],) if at < len(old) and old[at] == _written(item) else () for at, item in enumerate(block)]


def _size(head: bytes, blocks: Sequence[bytes], made: Sequence[object]) -> int:
    return len(head) + sum(map(len, blocks)) + _ITEM_BYTES * len(made)


def _parts(value: object, room: int) -> int:
    """Values inside a JSON value, counted until they are more than there is room for."""
    count, inside = 0, [value]
    while inside and count <= room:
        each = inside.pop()
        values = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        count += len(values)
        inside += [inner for inner in values if isinstance(inner, dict | list)]
    return count


def _written(value: object) -> bytes:
    """JSON: what Python takes for equal (`1`, `1.0`, `true`) is not."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise BadRequest(f"body: cannot be read: {error}; nest less deeply") from error
