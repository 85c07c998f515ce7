"""Draws over trees made by chance: whatever the tree, the odds are the counts', and arrival does not enter."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.core.admission import PRIORITY, draw, seed_of
from schemas.base import ints
from schemas.rewards import LeafSummary, Role
from schemas.training import Trajectory
from tests.core.test_admission import Call, Tree, expanded, leaf, sampled, targets

Grown = tuple[Tree, list[LeafSummary]]
ROLES: list[Role] = [*PRIORITY, "main", "sub-agent", "auxiliary", "abandoned"]


def arrived_otherwise(grown: Grown, chance: random.Random) -> Grown:
    """The same calls in another order that puts parents first, under other names, cut from each other elsewhere."""
    tree, leaves = grown
    waiting, order = list(tree), list[str]()
    while waiting:
        free = [name for name in waiting if tree[name].parent is None or tree[name].parent in order]
        order.append(chance.choice(free))
        waiting.remove(order[-1])
    names = {name: f"c{place}" for place, name in enumerate(order)}
    roles = {each.leaf: each.role for each in leaves}
    moved = {names[name]: _named(_higher(tree, tree[name], chance), names) for name in order}
    return moved, [leaf(names[name], roles[name]) for name in order if name in roles]


def _higher(tree: Tree, call: Call, chance: random.Random) -> Call:
    """What a call takes of its parent that is its grandparent's may as well be taken of that one."""
    parent = tree[call.parent] if call.parent else None
    inside = parent is not None and call.prefix_tokens <= parent.prefix_tokens
    return replace(call, parent=parent.parent) if parent and inside and chance.random() < 0.5 else call


def _named(call: Call, names: dict[str, str]) -> Call:
    return replace(call, parent=names[call.parent] if call.parent else None)


def content(drawn: Sequence[Trajectory]) -> list[tuple[str, bytes, bytes, bytes]]:
    return [(each.role, each.ids, each.target, each.logprobs) for each in drawn]


def grow(chance: random.Random) -> Grown:
    """Any tree of up to a dozen calls, any fork inside a parent's path, any roles."""
    tree: Tree = {}
    lengths: dict[str, int] = {}
    for number in range(chance.randint(1, 12)):
        parent = chance.choice([None, *tree])
        prefix = chance.randint(0, lengths[parent]) if parent else 0
        inputs, outputs = chance.randint(0, 3), chance.randint(0, 4)
        kind = chance.choice(["turn", "turn", "compaction", "auxiliary"])
        name = f"c{number}"
        tree[name] = Call(number, inputs, outputs, parent, prefix, kind, delivered=chance.random() < 0.8)
        lengths[name] = prefix + inputs + outputs
    parents = {call.parent for call in tree.values()}
    return tree, [leaf(name, chance.choice(ROLES)) for name in tree if name not in parents]


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_the_order_in_which_calls_arrive_does_not_change_what_is_drawn(chance_seed: int) -> None:
    chance = random.Random(chance_seed)
    for _ in range(10):
        tree, leaves = grown = grow(chance)
        other, others = arrived_otherwise(grown, chance)
        seed, j_max = chance.getrandbits(53), chance.randint(1, 5)
        assert content(draw(tree, leaves, j_max=j_max, seed=seed)) == content(
            draw(other, others, j_max=j_max, seed=seed)
        )


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_each_draw_is_of_the_highest_class_and_takes_what_no_draw_before_it_took(chance_seed: int) -> None:
    chance = random.Random(chance_seed)
    for _ in range(10):
        tree, leaves = grow(chance)
        j_max, gone = chance.randint(1, 5), set[int]()
        drawn = draw(tree, leaves, j_max=j_max, seed=chance.getrandbits(53))
        for each in drawn:
            left = remaining(tree, leaves, gone)
            assert left[each.leaf] == set(targets(each))
            assert each.targets == len(left[each.leaf])
            assert ints(each.ids) == expanded(tree, each.leaf)
            assert PRIORITY.index(each.role) == min(PRIORITY.index(one.role) for one in leaves if left.get(one.leaf))
            gone |= set(ints(each.ids))
        assert len(drawn) == j_max or (len(drawn) < j_max and not any(remaining(tree, leaves, gone).values()))


def remaining(tree: Tree, leaves: Sequence[LeafSummary], gone: set[int]) -> dict[str, set[int]]:
    """By the definition, token by token: what each candidate could still train."""
    candidates = [each.leaf for each in leaves if each.role in PRIORITY]
    return {name: {t for t in expanded(tree, name) if sampled(tree, t)} - gone for name in candidates}


@pytest.mark.parametrize("number", range(10))
def test_within_a_class_the_draws_follow_the_counts_that_are_left(number: int) -> None:
    tree, grown = grow(random.Random(number))
    leaves = [in_one_class(each) for each in grown]
    seen: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for place in range(1000):
        so_far: tuple[str, ...] = ()
        for each in draw(tree, leaves, j_max=3, seed=seed_of(3, f"x{place}")):
            seen[so_far][each.leaf] += 1
            so_far = (*so_far, each.leaf)
    for so_far, found in seen.items():
        gone = {token for name in so_far for token in expanded(tree, name)}
        left = {name: len(tokens) for name, tokens in remaining(tree, leaves, gone).items() if tokens}
        assert set(found) <= set(left)
        expected = {name: found.total() * count / sum(left.values()) for name, count in left.items()}
        if min(expected.values()) >= 5:
            chi_square = sum((found[name] - count) ** 2 / count for name, count in expected.items())
            assert chi_square <= critical(len(left) - 1)


def in_one_class(one: LeafSummary) -> LeafSummary:
    """All in one class, but for those that are in none."""
    return leaf(one.leaf, "main" if one.role in PRIORITY else one.role)


def critical(degrees: int) -> float:
    """Chi-square that is passed once in about 30,000 (Wilson and Hilferty's cube, four deviations)."""
    return degrees * (1 - 2 / (9 * degrees) + 4 * sqrt(2 / (9 * degrees))) ** 3 if degrees else 0.0
