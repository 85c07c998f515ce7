"""Which sequences are kept, found and dropped."""

import numpy as np
import torch

from gyre.engines.kv import Segment
from gyre.engines.prefix import Kept, PrefixStore, common_prefix


def kept(key: str, *tokens: int) -> Kept:
    block = torch.zeros(1, len(tokens), 2)
    return Kept(key, np.array(tokens), Segment((block,), (block,)))


def found(store: PrefixStore, key: str, *tokens: int) -> int:
    return store.find(key, np.array(tokens))[0]


def test_a_common_prefix_ends_at_the_first_difference_or_the_shorter_end() -> None:
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4, 3])) == 2
    assert common_prefix(np.array([1, 2]), np.array([1, 2, 3])) == 2
    assert common_prefix(np.array([], dtype=np.int64), np.array([1])) == 0


def test_the_longest_prefix_wins_whoever_kept_it() -> None:
    store = PrefixStore(100)
    store.add(kept("a", 1, 2, 9))
    store.add(kept("b", 1, 2, 3, 4))
    assert found(store, "a", 1, 2, 3, 5) == 3
    assert found(store, "a", 1, 2, 9, 5) == 3
    assert store.find("a", np.array([7])) == (0, None)


def test_a_longer_sequence_replaces_the_one_it_extends_but_no_fork_and_no_other_key() -> None:
    store = PrefixStore(100)
    for sequence in (kept("a", 1, 2), kept("a", 1, 5, 6), kept("b", 1, 2), kept("a", 1, 2, 3)):
        store.add(sequence)
    assert store.tokens == 3 + 2 + 3
    assert found(store, "a", 1, 5, 6, 7) == 3


def test_beyond_the_budget_the_least_recently_used_goes_first() -> None:
    store = PrefixStore(6)
    store.add(kept("a", 1, 1, 1))
    store.add(kept("b", 2, 2, 2))
    found(store, "a", 1, 1, 1, 1)
    store.add(kept("c", 3, 3, 3))
    assert [found(store, key, *([n] * 3)) for key, n in (("a", 1), ("b", 2), ("c", 3))] == [3, 0, 3]
    assert store.tokens == 6


def test_a_sequence_longer_than_the_budget_is_not_kept_and_drives_nothing_out() -> None:
    store = PrefixStore(3)
    store.add(kept("a", 1, 1))
    store.add(kept("b", 2, 2, 2, 2))
    assert (found(store, "a", 1, 1), found(store, "b", 2, 2)) == (2, 0)
