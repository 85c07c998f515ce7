"""The prefix tree of a set of sequences: told by an order, laid out once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gyre.rl.prefixes import prefixes, seats, separate

SEQUENCES = st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 70_000]), max_size=6), max_size=8)


def arrays(sequences: list[list[int]]) -> list[np.ndarray]:
    return [np.array(each, np.int32) for each in sequences]


def nodes(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(each[: stop + 1]) for each in sequences for stop in range(len(each))}


def test_neighbours_share_what_they_begin_with() -> None:
    found = prefixes(arrays([[1, 2, 3], [9], [1, 2, 4, 5], [1, 2]]))
    assert found.order == (3, 0, 2, 1)
    assert found.common == (0, 2, 2, 0)
    assert found.distinct([0, 1, 2, 3], [2, 3, 4, 1]) == 6
    assert found.distinct([3, 2], [2, 3, 4, 1]) == 5


def test_separate_sequences_share_nothing() -> None:
    found = separate(3)
    assert found.distinct([0, 1, 2], [4, 4, 2]) == 10
    placed, total = seats(found, [4, 4, 2])
    assert [each.tolist() for each in placed] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert total == 10


@given(SEQUENCES, st.data())
def test_distinct_counts_the_nodes_of_any_choice(sequences: list[list[int]], data: st.DataObject) -> None:
    found = prefixes(arrays(sequences))
    ranks = data.draw(st.lists(st.sampled_from(range(len(sequences))), unique=True)) if sequences else []
    lengths = [len(sequences[index]) for index in found.order]
    assert found.distinct(ranks, lengths) == len(nodes([sequences[found.order[each]] for each in ranks]))


@given(SEQUENCES)
def test_a_seat_belongs_to_one_token_in_one_context(sequences: list[list[int]]) -> None:
    placed, total = seats(prefixes(arrays(sequences)), [len(each) for each in sequences])
    taken: dict[int, tuple[int, ...]] = {}
    for ids, path in zip(sequences, placed, strict=True):
        assert path.tolist() == sorted(path.tolist())
        for depth, seat in enumerate(path.tolist()):
            assert taken.setdefault(seat, tuple(ids[: depth + 1])) == tuple(ids[: depth + 1])
    assert sorted(taken) == list(range(total))
    assert set(taken.values()) == nodes(sequences)
    assert len(taken) == len(nodes(sequences))
