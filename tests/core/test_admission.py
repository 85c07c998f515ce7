"""The seeded draw: disjoint targets, exact contexts, honest odds (design §7, Admission)."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.core.admission import PRIORITY, Span, draw, path, seed_of
from schemas.base import floats, ints, pack_floats, pack_ints
from schemas.refs import BlobRef
from schemas.rewards import LeafSummary, Role
from schemas.training import Trajectory


@dataclass(frozen=True)
class Call:
    """A node that keeps its tokens readable: token `100 * number + offset` is its own at `offset`."""

    number: int
    inputs: int
    outputs: int
    parent: str | None = None
    prefix_tokens: int = 0
    kind: str = "turn"
    delivered: bool = True
    experts: BlobRef | None = None

    @property
    def own(self) -> list[int]:
        return [100 * self.number + offset for offset in range(self.inputs + self.outputs)]

    @property
    def input_ids(self) -> bytes:
        return pack_ints(self.own[: self.inputs])

    @property
    def output_ids(self) -> bytes:
        return pack_ints(self.own[self.inputs :])

    @property
    def logprobs(self) -> bytes:
        return pack_floats(-token / 1024 for token in self.own[self.inputs :])


Tree = dict[str, Call]


def leaf(name: str, role: Role = "main") -> LeafSummary:
    return LeafSummary(leaf=name, role=role, tokens=0, targets=0)


def targets(trajectory: Trajectory) -> list[int]:
    return [token for token, flag in zip(ints(trajectory.ids), trajectory.target, strict=True) if flag]


# r: 2 in, 2 out; a and b extend its whole path; c forks after r's first output token.
FORKED: Tree = {
    "r": Call(0, 2, 2),
    "a": Call(1, 1, 1, "r", 4),
    "b": Call(2, 1, 3, "r", 4),
    "c": Call(3, 1, 2, "r", 3),
}


def test_a_path_is_the_parents_cut_to_the_prefix_and_then_the_calls_own_tokens() -> None:
    assert path(FORKED, "a") == (Span("r", 0, 4), Span("a", 0, 2))
    assert path(FORKED, "c") == (Span("r", 0, 3), Span("c", 0, 3))


def test_a_fork_above_the_parents_own_tokens_leaves_the_parent_out() -> None:
    tree = FORKED | {"d": Call(4, 1, 1, "a", 3)}
    assert path(tree, "d") == (Span("r", 0, 3), Span("d", 0, 2))


def test_the_first_draw_takes_the_shared_tokens_and_later_ones_only_what_is_left() -> None:
    drawn = draw(FORKED, [leaf("a"), leaf("b"), leaf("c")], j_max=5, seed=3)
    assert sorted(token for each in drawn for token in targets(each)) == [2, 3, 101, 201, 202, 203, 301, 302]
    assert {2}.issubset(targets(drawn[0]))
    assert all(ints(each.ids)[:3] == [0, 1, 2] for each in drawn)


def test_behaviour_log_probabilities_come_back_bit_for_bit_and_zero_elsewhere() -> None:
    (first,) = draw(FORKED, [leaf("b")], j_max=5, seed=0)
    assert ints(first.ids) == [0, 1, 2, 3, 200, 201, 202, 203]
    assert first.target == bytes([0, 0, 1, 1, 0, 1, 1, 1])
    assert floats(first.logprobs) == [0, 0, -2 / 1024, -3 / 1024, 0, -201 / 1024, -202 / 1024, -203 / 1024]
    assert first.targets == 5


def test_a_class_is_emptied_before_the_next_one_is_drawn_from() -> None:
    tree: Tree = {name: Call(number, 1, 1 + number) for number, name in enumerate("abcdefgh")}
    roles = [*PRIORITY, *PRIORITY]
    leaves = [leaf(name, role) for name, role in zip("abcdefgh", reversed(roles), strict=True)]
    drawn = [each.role for each in draw(tree, leaves, j_max=8, seed=1)]
    assert drawn == sorted(roles, key=PRIORITY.index)


def test_no_more_than_j_max_are_drawn() -> None:
    tree: Tree = {name: Call(number, 1, 2) for number, name in enumerate("abcdefg")}
    assert len(draw(tree, [leaf(name) for name in tree], j_max=5, seed=0)) == 5


@pytest.mark.parametrize("role", ["auxiliary", "abandoned"])
def test_auxiliary_and_abandoned_leaves_are_never_drawn(role: Role) -> None:
    drawn = draw(FORKED, [leaf("a", role), leaf("b")], j_max=5, seed=0)
    assert [each.leaf for each in drawn] == ["b"]


def test_what_no_client_received_is_context_but_no_target() -> None:
    tree: Tree = {"r": Call(0, 1, 2, delivered=False), "a": Call(1, 1, 1, "r", 3)}
    (only,) = draw(tree, [leaf("a")], j_max=5, seed=0)
    assert ints(only.ids) == [0, 1, 2, 100, 101]
    assert targets(only) == [101]


def test_an_auxiliary_calls_output_is_no_target_on_anyones_path() -> None:
    tree: Tree = {"r": Call(0, 1, 2, kind="auxiliary"), "a": Call(1, 1, 1, "r", 3)}
    (only,) = draw(tree, [leaf("a")], j_max=5, seed=0)
    assert targets(only) == [101]


def test_a_tree_without_targets_gives_no_trajectory() -> None:
    assert draw({"r": Call(0, 3, 0)}, [leaf("r")], j_max=5, seed=0) == ()
    assert draw({}, [], j_max=5, seed=0) == ()


def test_leaves_are_drawn_in_proportion_to_their_unmasked_targets() -> None:
    tree: Tree = {"a": Call(0, 1, 1), "b": Call(1, 1, 2), "c": Call(2, 1, 5)}
    leaves = [leaf(name) for name in tree]
    draws = 4000
    seeds = (seed_of(11, f"x{place}") for place in range(draws))
    found = Counter(draw(tree, leaves, j_max=1, seed=seed)[0].leaf for seed in seeds)
    expected = {"a": draws / 8, "b": draws / 4, "c": draws * 5 / 8}
    chi_square = sum((found[name] - count) ** 2 / count for name, count in expected.items())
    assert chi_square < 13.8  # 2 degrees of freedom, p = 0.001; the seeds are fixed, so this either holds or not


def test_the_second_draw_follows_the_lowered_counts() -> None:
    # After b (r's 6 shared tokens and 1), a has 1 left and c 3: a second draw takes c three times in four.
    tree: Tree = {
        "r": Call(0, 1, 6),
        "a": Call(1, 1, 1, "r", 7),
        "b": Call(2, 1, 1, "r", 7),
        "c": Call(3, 1, 3),
    }
    leaves = [leaf("a"), leaf("b"), leaf("c")]
    runs = [draw(tree, leaves, j_max=2, seed=seed_of(5, str(place))) for place in range(4000)]
    after_b = Counter(second.leaf for first, second in runs if first.leaf == "b")
    count = after_b.total()
    chi_square = (after_b["a"] - count / 4) ** 2 / (count / 4) + (after_b["c"] - count * 3 / 4) ** 2 / (count * 3 / 4)
    assert count > 1000
    assert chi_square < 10.9  # 1 degree of freedom, p = 0.001


def test_the_draw_of_a_seed_never_changes() -> None:
    """A new version of this code must draw the same from an old log, or no old run can be verified."""
    tree: Tree = {name: Call(number, 1, 2) for number, name in enumerate("abcdefgh")}
    leaves = [leaf(name) for name in tree]
    assert seed_of(0, "x0-0") == 3879963283429323
    assert ["".join(each.leaf for each in draw(tree, leaves, j_max=8, seed=seed)) for seed in range(3)] == [
        "feadbchg",
        "degbhfca",
        "begdahfc",
    ]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": Call(0, 1, 1, "gone", 1)}, "call gone is not in the tree"),
        ({"a": Call(0, 1, 1, None, 1)}, "call a: prefix_tokens = 1 > 0 of its parent"),
        ({"r": Call(0, 1, 1), "a": Call(1, 1, 1, "r", 3)}, "call a: prefix_tokens = 3 > 2 of its parent"),
        ({}, "call a is not in the tree"),
    ],
)
def test_a_broken_tree_is_refused_by_the_name_of_the_call(tree: Tree, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(tree, [leaf("a")], j_max=5, seed=0)


def test_an_output_without_its_log_probabilities_is_refused() -> None:
    class Bare(Call):
        @property
        def logprobs(self) -> bytes:
            return b""

    with pytest.raises(ValueError, match="call a: 0 logprobs for 2 output tokens"):
        draw({"a": Bare(0, 1, 2)}, [leaf("a")], j_max=5, seed=0)


@st.composite
def trees(draw_: st.DrawFn) -> tuple[Tree, list[LeafSummary]]:
    """Any tree, any fork inside a parent's path, any roles."""
    tree: Tree = {}
    lengths: dict[str, int] = {}
    for number in range(draw_(st.integers(1, 10))):
        parent = draw_(st.none() | st.sampled_from(sorted(tree))) if tree else None
        prefix = draw_(st.integers(0, lengths[parent])) if parent else 0
        inputs, outputs = draw_(st.integers(0, 3)), draw_(st.integers(0, 4))
        kind = draw_(st.sampled_from(["turn", "turn", "compaction", "auxiliary"]))
        name = f"c{number}"
        tree[name] = Call(number, inputs, outputs, parent, prefix, kind, draw_(st.booleans()))
        lengths[name] = prefix + inputs + outputs
    parents = {call.parent for call in tree.values()}
    roles: list[Role] = [*PRIORITY, "auxiliary", "abandoned"]
    return tree, [leaf(name, draw_(st.sampled_from(roles))) for name in tree if name not in parents]


def expanded(tree: Tree, name: str) -> list[int]:
    """The path by the definition, token by token."""
    call = tree[name]
    return (expanded(tree, call.parent)[: call.prefix_tokens] if call.parent else []) + call.own


def sampled(tree: Tree, token: int) -> bool:
    call = tree[f"c{token // 100}"]
    return call.delivered and call.kind != "auxiliary" and token % 100 >= call.inputs


@given(trees(), st.integers(0, 2**53), st.integers(1, 5))
def test_targets_are_disjoint_and_every_path_exact(
    grown: tuple[Tree, list[LeafSummary]], seed: int, j_max: int
) -> None:
    tree, leaves = grown
    drawn = draw(tree, leaves, j_max=j_max, seed=seed)
    assert len(drawn) <= j_max
    found = [token for each in drawn for token in targets(each)]
    assert len(found) == len(set(found))
    assert all(sampled(tree, token) for token in found)
    assert all(ints(each.ids) == expanded(tree, each.leaf) for each in drawn)
    assert all(each.targets == each.target.count(1) > 0 for each in drawn)
    assert drawn == draw(tree, leaves, j_max=j_max, seed=seed)


@given(trees(), st.integers(0, 2**53))
def test_without_a_limit_nothing_that_may_be_trained_is_left_out(
    grown: tuple[Tree, list[LeafSummary]], seed: int
) -> None:
    tree, leaves = grown
    found = {token for each in draw(tree, leaves, j_max=100, seed=seed) for token in targets(each)}
    candidates = [each.leaf for each in leaves if each.role in PRIORITY]
    assert found == {token for name in candidates for token in expanded(tree, name) if sampled(tree, token)}
