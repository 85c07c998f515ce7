"""The tree is what the records say, however they come; roles and provenance follow from it alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gyre.core import tree as trees
from gyre.core.admission import draw
from gyre.core.leaves import leaves, summaries
from gyre.core.tree import Tree, digest, evolve, fold, from_bytes, path_ids, sampled, to_bytes
from schemas.base import ints, pack_floats, pack_ints
from schemas.calls import DeliveryCorrected, ModelCallRecorded, SamplingRecord, VersionSpan


def record(
    index: int, parent: int | None, prefix: int, inputs: list[int], outputs: list[int], **more: Any
) -> ModelCallRecorded:
    fields: dict[str, Any] = {
        "execution": "x",
        "call": f"c{index}",
        "index": index,
        "thread": "main",
        "kind": "turn",
        "parent": None if parent is None else f"c{parent}",
        "prefix_tokens": prefix,
        "prefix_messages": 0,
        "input_ids": pack_ints(inputs),
        "output_ids": pack_ints(outputs),
        "logprobs": pack_floats([-0.5] * len(outputs)),
        "versions": (VersionSpan(version=1, tokens=len(outputs)),) if outputs else (),
        "finish": "stop",
        "sampling": SamplingRecord(temperature=1.0, top_p=1.0, top_k=0, max_tokens=9, seed=1),
        "messages": "[]",
        "reply": "[]",
        "system_digest": "0" * 64,
        "cells": (0,),
        "cached_tokens": 0,
        "queue_seconds": 0.0,
        "engine_seconds": 0.0,
        "total_seconds": 0.0,
        "delivered": True,
    }
    return ModelCallRecorded(**(fields | more))


# c0: [1 2 | 3 4]; c1 goes on from all of it; c2 forks behind the first input token; c3 asks c1's context again
RECORDS = (
    record(0, None, 0, [1, 2], [3, 4]),
    record(1, 0, 4, [5], [6, 7]),
    record(2, 0, 1, [8], [9, 9]),
    record(3, 1, 5, [], [6, 7]),
)
TREE = fold("x", RECORDS)


def test_a_path_is_the_exact_input_and_output_of_its_call() -> None:
    paths = {call: ints(path_ids(TREE, call)) for call in TREE.nodes}
    assert paths == {"c0": [1, 2, 3, 4], "c1": [1, 2, 3, 4, 5, 6, 7], "c2": [1, 8, 9, 9], "c3": [1, 2, 3, 4, 5, 6, 7]}
    assert ints(trees.context_ids(TREE, "c3")) == [1, 2, 3, 4, 5]


def test_provenance_is_by_position() -> None:
    assert sampled(TREE, "c1") == bytes([0, 0, 1, 1, 0, 1, 1])
    assert sampled(TREE, "c2") == bytes([0, 0, 1, 1])


def test_leaves_are_paths_that_nothing_goes_on_from() -> None:
    assert leaves(TREE) == ("c1", "c2", "c3")
    assert [(leaf.leaf, leaf.tokens, leaf.targets, leaf.final_main) for leaf in summaries(TREE)] == [
        ("c1", 7, 4, False),
        ("c2", 4, 2, False),
        ("c3", 7, 4, True),
    ]


@pytest.mark.parametrize(
    ("thread", "kind", "delivered", "role"),
    [
        ("main", "turn", True, "main"),
        ("main", "compaction", True, "main-summary"),
        ("other", "turn", True, "sub-agent"),
        ("other", "compaction", True, "sub-agent-summary"),
        ("main", "auxiliary", True, "auxiliary"),
        ("main", "turn", False, "abandoned"),
    ],
)
def test_a_leafs_role_is_its_threads_and_kinds(thread: str, kind: str, delivered: bool, role: str) -> None:
    one = record(0, None, 0, [1], [2], thread=thread, kind=kind, delivered=delivered)
    assert [leaf.role for leaf in summaries(fold("x", [one]))] == [role]


def test_an_answer_cut_by_length_and_asked_for_again_is_abandoned_and_a_whole_one_is_not() -> None:
    again = record(1, 0, 2, [], [5, 6])
    cut = record(0, None, 0, [1, 2], [3, 4], finish="length")
    assert [leaf.role for leaf in summaries(fold("x", [cut, again]))] == ["abandoned", "main"]
    assert [leaf.role for leaf in summaries(fold("x", [RECORDS[0], again]))] == ["main", "main"]


def test_what_a_client_received_is_not_abandoned_with_what_it_did_not() -> None:
    lost = record(1, 0, 4, [5], [6], delivered=False)
    assert [(leaf.leaf, leaf.role) for leaf in summaries(fold("x", [RECORDS[0], lost]))] == [
        ("c0", "main"),
        ("c1", "abandoned"),
    ]
    forked = record(2, 1, 5, [7], [8])
    assert [(leaf.leaf, leaf.role) for leaf in summaries(fold("x", [RECORDS[0], lost, forked]))] == [
        ("c1", "abandoned"),
        ("c2", "main"),
    ]


def test_an_answer_that_only_calls_beside_the_work_go_on_from_is_a_leaf() -> None:
    title = record(1, 0, 4, [5], [6], kind="auxiliary")
    probe = record(2, 1, 6, [7], [8], kind="auxiliary")
    lost = record(3, 2, 8, [9], [1], delivered=False)
    for more in ([title], [title, probe], [title, probe, lost]):
        tree = fold("x", [RECORDS[0], *more])
        found = {leaf.leaf: leaf for leaf in summaries(tree)}
        assert found["c0"].role == "main"
        assert found["c0"].final_main
        assert [call for call, leaf in found.items() if leaf.role == "auxiliary"] == [f"c{min(len(more), 2)}"]
        assert [each.leaf for each in draw(tree.nodes, summaries(tree), j_max=5, seed=1)] == ["c0"]
    on = record(4, 1, 6, [7], [8])
    tree = fold("x", [RECORDS[0], title, on])
    assert [(leaf.leaf, leaf.role) for leaf in summaries(tree)] == [("c4", "main")]


def test_a_record_twice_and_a_record_of_another_execution_change_nothing() -> None:
    assert fold("x", [*RECORDS, *RECORDS, record(9, None, 0, [1], [2], execution="y")]) == TREE


def test_records_that_do_not_fit_are_kept_as_rejected() -> None:
    tree = fold("x", [*RECORDS, record(4, 7, 1, [1], [2]), record(5, 0, 5, [1], [2]), record(6, None, 1, [1], [2])])
    assert tree.rejected == ("c4", "c5", "c6")
    assert tree.nodes == TREE.nodes


def test_the_digest_depends_on_content_and_not_on_the_order_of_arrival() -> None:
    swapped = fold("x", [RECORDS[0], RECORDS[2], RECORDS[1], RECORDS[3]])
    assert digest(swapped) == digest(TREE)
    other = fold("x", [*RECORDS[:3], record(3, 1, 5, [], [6, 8])])
    assert digest(other) != digest(TREE)


def test_a_body_that_is_no_tree_is_refused() -> None:
    with pytest.raises(ValidationError):
        from_bytes(to_bytes(TREE).replace(b'"v":1', b'"v":2'))
    with pytest.raises(ValidationError):
        from_bytes(b"[]")


def test_admission_draws_from_a_tree_as_it_comes_from_its_body() -> None:
    drawn = draw(from_bytes(to_bytes(TREE)).nodes, summaries(TREE), j_max=5, seed=1)
    assert sum(trajectory.targets for trajectory in drawn) == sum(len(ints(each.output_ids)) for each in RECORDS)


@st.composite
def growths(draw: st.DrawFn) -> list[ModelCallRecorded]:
    records: list[ModelCallRecorded] = []
    for index in range(draw(st.integers(0, 8))):
        parent = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        length = fold("x", records).nodes[f"c{parent}"].length if parent is not None else 0
        tokens = st.lists(st.integers(0, 50), max_size=4)
        records.append(record(index, parent, draw(st.integers(0, length)), draw(tokens), draw(tokens)))
    return records


@given(growths())
def test_any_tree_survives_its_body_and_every_output_lies_on_a_leafs_path(records: list[ModelCallRecorded]) -> None:
    tree = fold("x", records)
    assert from_bytes(to_bytes(tree)) == tree
    assert from_bytes(to_bytes(tree)).rejected == ()
    ends = leaves(tree)
    for call, node in tree.nodes.items():
        assert len(path_ids(tree, call)) == 4 * node.length == 4 * len(sampled(tree, call))
        assert any(_stands_on(tree, call, end) for end in ends)


def _stands_on(tree: Tree, call: str, end: str) -> bool:
    node = tree.nodes[call]
    while end != call:
        if tree.nodes[end].parent is None or (
            tree.nodes[end].parent == call and tree.nodes[end].prefix_tokens < node.length
        ):
            return False
        end = str(tree.nodes[end].parent)
    return True


def test_evolving_never_changes_the_tree_it_is_given() -> None:
    before = to_bytes(TREE)
    evolve(TREE, record(9, 1, 7, [1], [2]))
    assert to_bytes(TREE) == before


def test_which_answer_was_thrown_away_does_not_depend_on_which_came_first() -> None:
    cut, longer = record(0, None, 0, [1, 2], [3], finish="length"), record(1, 0, 2, [], [5, 6], finish="length")
    assert [leaf.role for leaf in summaries(fold("x", [cut, longer]))] == ["abandoned", "main"]
    first, second = record(0, None, 0, [1, 2], [5, 6], finish="length"), record(1, 0, 2, [], [3], finish="length")
    assert [leaf.role for leaf in summaries(fold("x", [first, second]))] == ["main", "abandoned"]
    whole = record(0, None, 0, [1, 2], [7, 8])
    assert [leaf.role for leaf in summaries(fold("x", [whole, longer]))] == ["main", "abandoned"]


def test_a_cut_answer_of_another_thread_or_one_with_no_better_that_was_received_is_kept() -> None:
    cut = record(0, None, 0, [1, 2], [3, 4], finish="length", thread="a")
    other = record(1, 0, 2, [], [5, 6], thread="b")
    assert [leaf.role for leaf in summaries(fold("x", [cut, other]))] == ["sub-agent", "sub-agent"]
    lost = record(1, 0, 2, [], [5, 6], thread="a", delivered=False)
    assert [leaf.role for leaf in summaries(fold("x", [cut, lost]))] == ["sub-agent", "abandoned"]


def test_the_last_word_about_an_answer_counts_and_one_about_an_unknown_call_does_not() -> None:
    def became(call: str, delivered: bool, execution: str = "x") -> DeliveryCorrected:
        return DeliveryCorrected(execution=execution, call=call, delivered=delivered)

    whole, on = record(0, None, 0, [1, 2], [7, 8]), record(1, 0, 4, [9], [5])
    lost = fold("x", [whole, on, became("c1", delivered=False)])
    assert [(leaf.leaf, leaf.role) for leaf in summaries(lost)] == [("c0", "main"), ("c1", "abandoned")]
    (trajectory,) = draw(lost.nodes, summaries(lost), j_max=5, seed=0)
    assert trajectory.leaf == "c0"
    found = fold("x", [whole, on, became("c1", delivered=False), became("c1", delivered=True)])
    assert to_bytes(found) == to_bytes(fold("x", [whole, on]))
    assert evolve(found, became("c7", delivered=False)) is found
    assert evolve(found, became("c1", delivered=False, execution="y")) is found
