"""The part of a row that each of C ranks computes (context parallelism). Imports no megatron.

A row is cut into 2 C chunks, of which rank c has chunks c and 2 C - 1 - c, as Megatron's rotary embedding takes it:
what comes late in a row sees more of it, and so all ranks have as much to attend to. Each keeps the targets that its
own tokens predict.
"""

from dataclasses import replace

import torch
from torch import Tensor

from gyre.trainers.batches import RowTensors


def part_of(row: RowTensors, rank: int, ranks: int) -> RowTensors:
    """Rank c's part of a row, of a length that 2 C divides; its `distinct` targets and all their repetitions."""
    own = places(row.ids.numel(), rank, ranks)
    local = torch.full((row.ids.numel(),), -1)
    local[own] = torch.arange(len(own))
    here = (local[row.sources] >= 0).nonzero()[:, 0]
    mine = torch.isin(row.distinct, here)
    number = torch.zeros(len(row.sources), dtype=torch.int64)
    number[here] = torch.arange(len(here))
    return replace(
        row,
        ids=row.ids[:, own],
        positions=row.positions[:, own],
        sources=local[row.sources[here]],
        tokens=row.tokens[here],
        distinct=number[row.distinct[mine]],
        log_roll=row.log_roll[mine],
        owner=row.owner[mine],
        weight=row.weight[mine],
        experts=None if row.experts is None else row.experts[own],
        holders=None if row.holders is None else row.holders[own],
        unseen=hidden(row.positions[0])[own][:, order(row.ids.numel(), ranks)],
    )


def places(tokens: int, rank: int, ranks: int) -> Tensor:
    """(tokens / C,) int64: where in the row the tokens of rank c lie, ascending."""
    chunks = torch.arange(tokens).chunk(2 * ranks)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]))


def order(tokens: int, ranks: int) -> Tensor:
    """(tokens,) int64: where in the row the tokens of all ranks lie, one rank's after the other's."""
    return torch.cat([places(tokens, rank, ranks) for rank in range(ranks)])


def hidden(positions: Tensor) -> Tensor:
    """(T, T), True where a place is not seen: what comes later, and what lies in another segment."""
    segment = (positions == 0).cumsum(0)
    number = torch.arange(len(positions))
    return ~((segment[:, None] == segment[None]) & (number[:, None] >= number[None]))
