"""A tree as people can read it: calls that go on from one another without a fork are one chain.

Where a chain forks, the largest branch goes on at the same level and the others hang beside it, so that a tree of n
calls is never deeper than log2(n) levels, however often it forks.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a node decides where it is drawn."""

    call: str
    index: int
    parent: str | None
    prefix: int
    """Tokens of its parent's path that it keeps."""
    length: int
    """Tokens of its whole path."""
    sort: tuple[object, ...]
    """Calls of one chain are of one sort (thread, kind, delivered)."""
    ends: bool = False
    """Whether it is a leaf: a chain ends there, also where an abandoned call went on from it."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls of one sort, each going on from the whole path of the one before."""

    calls: tuple[str, ...]
    sides: tuple["Spine", ...] = ()
    """Branches that leave from the last call, in order of arrival; what goes on is the spine's next chain."""


Spine = tuple[Chain, ...]
"""Chains end to end, each forking from the last call of the one before."""


def spines(shapes: Sequence[Shape]) -> tuple[Spine, ...]:
    """One spine for each root; nodes in order of arrival, parents before their children."""
    nodes = {shape.call: shape for shape in shapes}
    children: dict[str | None, list[str]] = defaultdict(list)
    for shape in shapes:
        children[shape.parent].append(shape.call)
    sizes: dict[str, int] = {}
    for call in reversed(nodes):
        sizes[call] = 1 + sum(sizes[child] for child in children[call])
    return tuple(_spine(nodes, children, sizes.__getitem__, root) for root in children[None])


def _spine(
    nodes: Mapping[str, Shape], children: Mapping[str | None, Sequence[str]], size: Callable[[str], int], root: str
) -> Spine:
    chains: list[Chain] = []
    following: str | None = root
    while following is not None:
        calls = _chain(nodes, children, following)
        branches = children[calls[-1]]
        following = max(branches, key=lambda call: (size(call), nodes[call].index), default=None)
        beside = (_spine(nodes, children, size, call) for call in branches if call != following)
        chains.append(Chain(calls, tuple(beside)))
    return tuple(chains)


def _chain(nodes: Mapping[str, Shape], children: Mapping[str | None, Sequence[str]], first: str) -> tuple[str, ...]:
    calls = [first]
    while len(branches := children[calls[-1]]) == 1 and _goes_on(nodes[calls[-1]], nodes[branches[0]]):
        calls.append(branches[0])
    return tuple(calls)


def _goes_on(node: Shape, child: Shape) -> bool:
    return not node.ends and child.sort == node.sort and child.prefix == node.length
