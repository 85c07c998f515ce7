"""Packed contexts of an execution's calls: the latest are kept whole, and shared beginnings are found in them."""

from collections.abc import Callable

from gyre.core import tree as trees
from schemas.base import Int32s

WORTH_SHARING = 32
"""Fewest tokens for which a call hangs on to the middle of another's input: a few are the template's own words."""

_TOKEN_BYTES = 4
_KEPT = 4
_BLOCK = 1 << 12

Spot = tuple[str, int]
"""A call and a number of its path's tokens; the call is the one that holds the last of them itself."""


class Paths:
    """Where calls go on from each other, by token."""

    def __init__(self) -> None:
        """No call yet."""
        self._whole: dict[str, Int32s] = {}
        self._behind: dict[Spot, tuple[str, ...]] = {}

    def cut(self, tree: trees.Tree, call: str, tokens: int) -> Int32s:
        """The first `tokens` of a call's path, packed."""
        whole = self._whole.get(call)
        return trees.path_ids(tree, call, tokens) if whole is None else whole[: tokens * _TOKEN_BYTES]

    def add(self, tree: trees.Tree, node: trees.Node) -> None:
        """Take in a new node; a path that it extends to the end need not be kept beside it."""
        prefix = self.cut(tree, node.parent, node.prefix_tokens) if node.parent is not None else b""
        if node.parent is not None and node.prefix_tokens == tree.nodes[node.parent].length:
            self._whole.pop(node.parent, None)
        self._whole[node.call] = b"".join((prefix, node.input_ids, node.output_ids))
        while len(self._whole) > _KEPT:
            del self._whole[next(iter(self._whole))]
        spot = spot_of(tree, node.parent, node.prefix_tokens) if node.parent is not None else (node.system_digest, 0)
        self._behind[spot] = (*self._behind.get(spot, ()), node.call)

    def share(self, tree: trees.Tree, spot: Spot, ids: Int32s, fits: Callable[[str], bool]) -> Spot:
        """Go on along other calls' inputs for as long as they hold the same tokens: never along an output.

        `fits` says of a call whether its messages are those of the history as well: templates do not show all of them.
        """
        while True:
            own = tree.nodes.get(spot[0])
            ways = [(spot[0], spot[1] - own.prefix_tokens)] if own is not None else []
            ways += [(call, 0) for call in self._behind.get(spot, ())]
            found = [
                (_common(tree.nodes[call].input_ids[start * _TOKEN_BYTES :], ids), call)
                for call, start in ways
                if fits(call)
            ]
            most, call = max(found, default=(0, ""), key=lambda each: each[0])
            if most < WORTH_SHARING:
                return spot
            spot, ids = (call, spot[1] + most), ids[most * _TOKEN_BYTES :]


def spot_of(tree: trees.Tree, call: str, tokens: int) -> Spot:
    """The call on a path that holds its `tokens`-th token itself."""
    node = tree.nodes[call]
    while node.parent is not None and tokens <= node.prefix_tokens:
        node = tree.nodes[node.parent]
    return node.call, tokens


def _common(left: Int32s, right: Int32s) -> int:
    """How many tokens both begin with."""
    size = min(len(left), len(right))
    start = 0
    while start < size and left[start : start + _BLOCK] == right[start : start + _BLOCK]:
        start += _BLOCK
    if start >= size:
        return size // _TOKEN_BYTES
    for place in range(start, size, _TOKEN_BYTES):
        if left[place : place + _TOKEN_BYTES] != right[place : place + _TOKEN_BYTES]:
            return place // _TOKEN_BYTES
    return size // _TOKEN_BYTES
