"""A row over several ranks: each token and each target at one of them, each seeing what it would see in one piece."""

import numpy as np
import pytest
import torch

from gyre.trainers.batches import RowTensors, row_tensors
from gyre.trainers.megatron.context import hidden, order, places
from gyre.trainers.megatron.grid import Grid
from gyre.trainers.megatron.sharing import own_rows
from schemas.training import Row
from tests.trainers import batch
from tests.trainers.batch import VOCABULARY
from tests.trainers.test_gradient import everything

GRID = Grid(context=2)


def whole() -> RowTensors:
    """A row of all hard cases, with experts that name their places."""
    segments = everything()
    owners = {each.name: index for index, each in enumerate(batch.CASES)}
    start, experts = 0, []
    for each in segments:
        count = len(each.target)
        experts.append(np.arange(start, start + count, dtype=np.int16).reshape(-1, 1, 1))
        start += count
    return row_tensors(Row(segments=tuple(segments)), owners, VOCABULARY, share_prefixes=False, experts=experts)


def parts(ranks: int) -> tuple[RowTensors, list[RowTensors]]:
    grid = Grid(context=ranks)
    row = whole()
    made = [own_rows([row], grid, grid.place(rank), sequence=False)[0] for rank in range(ranks)]
    return row, made


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_target_is_counted_once_with_the_token_before_it(ranks: int) -> None:
    row, made = parts(ranks)
    wanted = sorted(_targets(row, row.ids[0]))
    assert sorted(each for part in made for each in _targets(part, part.ids[0])) == wanted
    assert len({part.ids.numel() for part in made}) == 1


def _targets(row: RowTensors, ids: torch.Tensor) -> list[tuple[int, int, float, int, float]]:
    return [
        (int(ids[row.sources[each]]), int(row.tokens[each]), float(roll), int(owner), float(weight))
        for each, roll, owner, weight in zip(row.distinct.tolist(), row.log_roll, row.owner, row.weight, strict=True)
    ]


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_has_an_early_and_a_late_chunk(ranks: int) -> None:
    tokens = 4 * ranks
    found = [places(tokens, rank, ranks).tolist() for rank in range(ranks)]
    assert found[0] == [0, 1, tokens - 2, tokens - 1]
    assert sorted(place for each in found for place in each) == list(range(tokens))
    assert order(tokens, ranks).tolist() == [place for each in found for place in each]


def test_a_token_sees_at_its_rank_what_it_sees_in_the_whole_row() -> None:
    row = own_rows([whole()], Grid(), Grid().place(0), sequence=False)[0]
    missing = -row.ids.numel() % 4
    positions = torch.cat((row.positions[0], torch.arange(missing)))
    seen = ~hidden(positions)
    for rank in range(2):
        padded = own_rows([row], GRID, GRID.place(rank), sequence=False)[0]
        assert padded.unseen is not None
        back = torch.zeros_like(seen[: len(padded.unseen)])
        back[:, order(len(positions), 2)] = ~padded.unseen
        assert torch.equal(back, seen[places(len(positions), rank, 2)])


def test_experts_go_with_their_tokens() -> None:
    row, made = parts(2)
    assert row.experts is not None
    taken = {
        int(token): int(expert) for token, expert in zip(range(row.ids.numel()), row.experts[:, 0, 0], strict=True)
    }
    for rank, part in enumerate(made):
        here = places(2 * part.ids.numel(), rank, 2).tolist()
        assert part.experts is not None
        assert part.experts[:, 0, 0].tolist() == [taken.get(place, -1) for place in here]


def test_parts_are_of_a_length_that_the_ranks_of_a_layer_share() -> None:
    grid = Grid(tensor=2, context=2)
    lengths = {own_rows([whole()], grid, grid.place(rank), sequence=True)[0].ids.numel() for rank in range(4)}
    assert len(lengths) == 1
    assert lengths.pop() % 2 == 0
