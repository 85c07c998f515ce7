"""What other trainers got wrong with many leaves, one test each."""

from collections import Counter

from gyre.core import tree as trees
from gyre.core.admission import draw, seed_of
from gyre.core.leaves import summaries
from gyre.core.tree import Tree, fold
from schemas.base import ints
from tests.core.test_tree import record


def bushy(leaves: int) -> Tree:
    """A root that answers 50 tokens, and so many sub-agents that go on from its prompt with 3 tokens each."""
    root = record(0, None, 0, [1, 2], list(range(50)))
    subs = [record(number, 0, 2, [3], [number] * 3, thread=f"s{number}") for number in range(1, leaves)]
    return fold("x", [root, *subs])


def test_forty_leaves_with_a_cap_of_five_train_five_the_main_one_among_them_and_each_token_once() -> None:
    tree = bushy(40)
    found = summaries(tree)
    assert Counter(leaf.role for leaf in found) == {"main": 1, "sub-agent": 39}
    drawn = draw(tree.nodes, found, j_max=5, seed=7)
    assert [each.role for each in drawn] == ["main", *["sub-agent"] * 4]
    assert len({each.leaf for each in drawn}) == 5
    assert [each.targets for each in drawn] == [50, 3, 3, 3, 3]


def test_over_many_executions_each_of_forty_leaves_has_its_turn() -> None:
    tree = bushy(40)
    found = summaries(tree)
    drawn = [draw(tree.nodes, found, j_max=5, seed=seed_of(1, f"x{place}")) for place in range(400)]
    turns = Counter(each.leaf for each_draw in drawn for each in each_draw)
    assert turns["c0"] == 400
    expected = 400 * 4 / 39
    assert (
        sum((turns[f"c{number}"] - expected) ** 2 / expected for number in range(1, 40)) < 70
    )  # 38 degrees, p = 0.001


def test_tokens_that_would_read_as_one_stay_two() -> None:
    """No text is made of a path anywhere between the record and the sample: `he`, `llo` are the ids that were drawn."""
    tree = fold("x", [record(0, None, 0, [1], [500, 501]), record(1, 0, 3, [9], [2])])
    assert ints(trees.path_ids(tree, "c1")) == [1, 500, 501, 9, 2]
    (only,) = draw(tree.nodes, summaries(tree), j_max=5, seed=0)
    assert (ints(only.ids), only.target) == ([1, 500, 501, 9, 2], bytes([0, 1, 1, 0, 1]))


def test_an_answer_generated_twice_trains_twice_and_a_shared_one_once() -> None:
    twice = fold("x", [record(0, None, 0, [1], [5, 6]), record(1, 0, 1, [], [5, 6])])
    assert [each.targets for each in draw(twice.nodes, summaries(twice), j_max=5, seed=0)] == [2, 2]
    shared = fold("x", [record(0, None, 0, [1], [5, 6]), record(1, 0, 3, [7], [8]), record(2, 0, 3, [9], [8])])
    assert [each.targets for each in draw(shared.nodes, summaries(shared), j_max=5, seed=0)] == [3, 1]
