"""Which part of each tensor a rank holds, and which rows of a micro-step it computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre.trainers.ranked import Shard


@dataclass(frozen=True, slots=True)
class Chunks:
    """Every tensor is cut along its first dimension, as FSDP2 does: n ranks get ceil(rows / n) each while there are."""

    ranks: int

    def shards(self, whole: Mapping[str, Tensor]) -> list[Shard]:
        """See `Spread`."""
        cut = {name: self._cut(each) for name, each in whole.items()}
        return [{name: parts[rank].clone() for name, parts in cut.items()} for rank in range(self.ranks)]

    def whole(self, shards: Sequence[Mapping[str, Tensor]], *, add_tied: bool = False) -> Shard:
        """See `Spread`; each element lies at one rank alone."""
        return {name: torch.cat([each[name] for each in shards]) for name in shards[0]}

    def rows(self, count: int, rank: int) -> range:
        """Which of a tensor's `count` rows a rank holds."""
        most = -(-count // self.ranks)
        return range(min(rank * most, count), min((rank + 1) * most, count))

    def _cut(self, tensor: Tensor) -> list[Tensor]:
        each = (self.rows(len(tensor), rank) for rank in range(self.ranks))
        return [tensor[rows.start : rows.stop] for rows in each]


def rounds(tokens: Sequence[int], ranks: int) -> list[list[int | None]]:
    """Who computes which row when: the longest rows first, each to the rank that has the least so far.

    Args:
        tokens: of each row.
        ranks: n.
    Returns:
        For each round the row's index at each rank; None where a rank has none left and only keeps the others company.
    """
    queues: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for row in sorted(range(len(tokens)), key=lambda each: (-tokens[each], each)):
        least = loads.index(min(loads))
        queues[least].append(row)
        loads[least] += tokens[row]
    longest = max(len(each) for each in queues)
    return [[each[turn] if turn < len(each) else None for each in queues] for turn in range(longest)]
