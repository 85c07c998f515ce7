"""What is told of each leaf after a draw is what the draw did; chains hold every call once."""

from hypothesis import given
from hypothesis import strategies as st

from gyre.core.admission import PRIORITY, draw
from gyre.core.chains import Chain, Shape, Spine, spines
from gyre.core.fates import fates, words
from gyre.core.leaves import summaries
from gyre.core.samples import difference, pieces
from gyre.core.tree import fold, sampled
from schemas.base import floats
from schemas.calls import ModelCallRecorded
from schemas.rewards import LeafSummary
from schemas.training import TrajectoriesAdmitted
from tests.core.test_admission import FORKED, Tree, expanded, leaf, targets, trees
from tests.core.test_admission import sampled as candidate
from tests.core.test_tree import growths

Grown = tuple[Tree, list[LeafSummary]]


def test_a_leaf_that_was_left_out_says_through_which_leaf_its_tokens_are_trained() -> None:
    leaves = [leaf("a"), leaf("b"), leaf("c")]
    found = {each.leaf: each for each in fates(FORKED, leaves, ["b", "a"], j_max=2, standing="drawn")}
    assert (found["b"].order, found["b"].left, found["b"].masked) == (1, 5, ())
    assert (found["a"].order, found["a"].left, found["a"].masked) == (2, 1, (("b", 2),))
    assert (found["c"].reason, found["c"].left, found["c"].masked) == ("j_max", 2, (("b", 1),))
    assert words(found["c"], 2) == "not trained on: J_max = 2 reached, 2 targets left; 1 more through b (1)"


def test_a_leaf_whose_every_token_was_trained_is_masked() -> None:
    tree = FORKED | {"b": FORKED["b"].__class__(2, 1, 0, "r", 4)}
    found = fates(tree, [leaf("a"), leaf("b")], ["a"], j_max=5, standing="drawn")[1]
    assert words(found, 5) == "not trained on: masked, its 2 tokens are trained through a (2)"


def test_what_is_no_candidate_stays_so_whatever_the_execution_waits_for() -> None:
    leaves = [leaf("a", "auxiliary"), leaf("b", "abandoned"), leaf("c")]
    found = fates(FORKED, leaves, [], j_max=5, standing="unscored")
    assert [each.reason for each in found] == ["auxiliary", "abandoned", "unscored"]


@given(trees(), st.integers(0, 2**53), st.integers(1, 4))
def test_fates_account_for_every_candidate_of_every_leaf(grown: Grown, seed: int, j_max: int) -> None:
    tree, leaves = grown
    drawn = draw(tree, leaves, j_max=j_max, seed=seed)
    trained = {token for each in drawn for token in targets(each)}
    found = fates(tree, leaves, [each.leaf for each in drawn], j_max=j_max, standing="drawn")
    for fate, end in zip(found, leaves, strict=True):
        path = [token for token in expanded(tree, end.leaf) if candidate(tree, token)]
        if end.role not in PRIORITY:
            assert fate.reason in ("auxiliary", "abandoned", "not delivered")
            continue
        assert fate.candidates == len(path)
        assert fate.left + sum(count for _, count in fate.masked) == fate.candidates
        own = next((each.targets for each in drawn if each.leaf == fate.leaf), None)
        missing = len([token for token in path if token not in trained])
        assert fate.left == (missing if own is None else own)
        expected = "no targets" if not path else "masked" if not missing else "j_max"
        assert fate.reason == ("admitted" if own is not None else expected)


@given(growths(), st.integers(0, 2**53))
def test_pieces_tell_where_each_token_of_any_sample_comes_from(records: list[ModelCallRecorded], seed: int) -> None:
    tree = fold("x", records)
    drawn = draw(tree.nodes, summaries(tree), j_max=3, seed=seed)
    for sample in drawn:
        marks, place = sampled(tree, sample.leaf), 0
        for piece in pieces(tree, sample):
            assert piece.start == place < piece.stop
            place = piece.stop
            count = piece.stop - piece.start
            assert marks[piece.start : piece.stop] == bytes([piece.source == "sampled"]) * count
            assert sample.target[piece.start : piece.stop] == bytes([piece.target]) * count
            assert floats(piece.logprobs) == ([-0.5] * count if piece.source == "sampled" else [])
            assert piece.version == (1 if piece.source == "sampled" else None)
        assert place == len(sample.target)
    event = TrajectoriesAdmitted(
        execution="x",
        group="g",
        version=0,
        advantage=1.0,
        targets=sum(each.targets for each in drawn),
        seed=seed,
        trajectories=drawn,
    )
    assert difference(tree, summaries(tree), event, j_max=3) is None


@given(trees())
def test_spines_hold_every_call_once_and_are_never_deep(grown: Grown) -> None:
    tree, leaves = grown
    ends = {each.leaf for each in leaves}
    shapes = [
        Shape(name, call.number, call.parent, call.prefix_tokens, len(expanded(tree, name)), (call.kind,), name in ends)
        for name, call in tree.items()
    ]
    found = spines(shapes)
    assert sorted(call for spine in found for chain in _chains(spine) for call in chain.calls) == sorted(tree)
    assert max(map(_depth, found)) <= len(tree).bit_length()
    for chain in (chain for spine in found for chain in _chains(spine)):
        assert not ends.intersection(chain.calls[:-1])


def _chains(spine: Spine) -> list[Chain]:
    return [each for chain in spine for each in (chain, *(below for side in chain.sides for below in _chains(side)))]


def _depth(spine: Spine) -> int:
    return 1 + max((_depth(side) for chain in spine for side in chain.sides), default=0)
