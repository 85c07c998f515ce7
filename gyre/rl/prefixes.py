"""What the token sequences of a set share: their prefix tree, told by an order and a number for each neighbouring pair.

Among sorted sequences, those with a common prefix are neighbours. So the tree needs no nodes: walking the sequences in
order, each adds what it does not share with the one before, which is the tree's depth-first order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Prefixes:
    """S sequences and what they share; both tuples have one entry a sequence."""

    order: tuple[int, ...]
    """Indices of the sequences, sorted."""
    common: tuple[int, ...]
    """`common[k]`: tokens that sequence `order[k]` shares with `order[k - 1]`, from the first on; 0 for k = 0."""

    def distinct(self, ranks: Iterable[int], lengths: Sequence[int]) -> int:
        """Nodes of the prefix tree of some of the sequences.

        Args:
            ranks: places in `order`, each once.
            lengths: (S,) tokens of the sequence at each place in `order`.
        """
        chosen = sorted(ranks)
        shared = (min(self.common[one + 1 : other + 1]) for one, other in pairwise(chosen))
        return sum(lengths[each] for each in chosen) - sum(shared)


def prefixes(sequences: Sequence[Ids]) -> Prefixes:
    """Sort S sequences and compare neighbours; equal ones keep their order."""
    # Bytes sort otherwise than numbers do; all that counts is that those with a common prefix become neighbours.
    keys = [np.ascontiguousarray(each, "<i4").tobytes() for each in sequences]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    common = (_common(sequences[one], sequences[other]) for one, other in pairwise(order))
    return Prefixes(tuple(order), (0, *common)[: len(order)])


def separate(count: int) -> Prefixes:
    """The same for sequences that are to share nothing: in their own order."""
    return Prefixes(tuple(range(count)), (0,) * count)


def seats(found: Prefixes, lengths: Sequence[int]) -> tuple[list[NDArray[np.int64]], int]:
    """Lay the nodes of the tree out once, depth-first.

    Args:
        found: the tree of S sequences.
        lengths: (S,) tokens of each, in the sequences' own order.
    Returns:
        Where each sequence's tokens lie, in the sequences' own order: (length,) int64, ascending. And the number of
        nodes.
    """
    placed = [np.zeros(0, np.int64)] * len(lengths)
    path, stop = np.zeros(0, np.int64), 0
    for index, common in zip(found.order, found.common, strict=True):
        start, stop = stop, stop + lengths[index] - common
        placed[index] = path = np.concatenate([path[:common], np.arange(start, stop)])
    return placed, stop


def _common(one: Ids, other: Ids) -> int:
    shortest = min(len(one), len(other))
    differ = np.flatnonzero(one[:shortest] != other[:shortest])
    return int(differ[0]) if len(differ) else shortest
