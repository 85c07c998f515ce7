"""Which rows each rank of a replica computes. Imports no megatron.

Ranks that stand side by side in the data dimension take every D-th row, those of the context dimension each a part of
each row. Experts are spread over them, so that all have
to take part in every row's exchange of tokens: who has fewer rows computes fillers, which have no targets.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gyre.trainers.batches import RowTensors
from gyre.trainers.megatron.context import part_of
from gyre.trainers.megatron.grid import Grid, Place
from gyre.trainers.replayed import UNKNOWN


def own_rows(given: Sequence[RowTensors], grid: Grid, place: Place, *, sequence: bool) -> list[RowTensors]:
    """This rank's rows, as many at each rank.

    Args:
        given: the micro-step's.
        grid: the ranks.
        place: of this one.
        sequence: rows are cut among the ranks of a layer, and have to be of a length that they can share.
    """
    mine = list(given[place.data :: grid.data])
    if len(mine) < -(-len(given) // grid.data):
        mine.append(_filler(given[0]))
    ways = grid.context * (grid.tensor if sequence else 1)
    rows = [_padded(each, ways if grid.context == 1 else math.lcm(ways, 2 * grid.context)) for each in mine]
    return rows if grid.context == 1 else [part_of(each, place.context, grid.context) for each in rows]


def made_up(tokens: int, grid: Grid, place: Place, *, sequence: bool) -> RowTensors:
    """This rank's part of rows of so many tokens, or a few more, at each rank; without a target."""
    ids, positions = torch.zeros(1, tokens, dtype=torch.int64), torch.arange(tokens)[None]
    (row,) = own_rows([_without_targets(ids, positions)] * grid.data, grid, place, sequence=sequence)
    return row


def _filler(row: RowTensors) -> RowTensors:
    """A row's first token, without a target."""
    return _without_targets(row.ids[:, :1], row.positions[:, :1])


def _without_targets(ids: Tensor, positions: Tensor) -> RowTensors:
    none = torch.zeros(0, dtype=torch.int64)
    nothing = torch.zeros(0, dtype=torch.float64)
    return RowTensors(
        ids=ids,
        positions=positions,
        runs=(),
        sources=none,
        tokens=none,
        distinct=none,
        log_roll=nothing,
        owner=none,
        weight=nothing,
    )


def _padded(row: RowTensors, multiple: int) -> RowTensors:
    """With a segment behind it that nobody looks at, up to a multiple of that many tokens."""
    missing = -row.ids.numel() % multiple
    if not missing:
        return row
    more = torch.arange(missing)[None]
    longer = replace(row, ids=torch.cat((row.ids, more * 0), 1), positions=torch.cat((row.positions, more), 1))
    if row.experts is None or row.holders is None:
        return longer
    unknown = row.experts.new_full((missing, *row.experts.shape[1:]), UNKNOWN)
    nobody = row.holders.new_full((missing,), UNKNOWN)
    return replace(longer, experts=torch.cat((row.experts, unknown)), holders=torch.cat((row.holders, nobody)))
