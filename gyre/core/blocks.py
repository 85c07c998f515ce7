"""A map from whole numbers to values that is cheap to change without changing the old one.

State that is folded needs a new map for each event, and copying a dict costs its whole length. Here neighbouring keys
share a block: a change copies one block and the index of blocks, so it stays cheap for thousands of entries. A block
without entries is dropped: a window of keys that moves on for ever stays as small as the window.
"""

from typing import TypeAlias, TypeVar

Value = TypeVar("Value")
Blocks: TypeAlias = dict[int, dict[int, Value]]
"""Block number (key // 32) -> key -> value. Never changed in place."""

_BITS = 5


def get(blocks: Blocks[Value], key: int) -> Value | None:
    """The value under this key, if there is one."""
    block = blocks.get(key >> _BITS)
    return None if block is None else block.get(key)


def put(blocks: Blocks[Value], key: int, value: Value) -> Blocks[Value]:
    """The same map with this value under this key."""
    number = key >> _BITS
    block = blocks.get(number)
    new = {} if block is None else block.copy()
    new[key] = value
    changed = blocks.copy()
    changed[number] = new
    return changed


def drop(blocks: Blocks[Value], key: int) -> Blocks[Value]:
    """The same map without this key."""
    number = key >> _BITS
    block = blocks.get(number)
    if block is None or key not in block:
        return blocks
    new = {other: value for other, value in block.items() if other != key}
    if new:
        return {**blocks, number: new}
    return {other: kept for other, kept in blocks.items() if other != number}
