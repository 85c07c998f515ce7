"""From request records to the rows of micro-steps, over any tree: each token trains once, as it was sampled."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.core.admission import PRIORITY, draw
from gyre.core.batch_state import Params
from gyre.rl.algorithms.port import Settings
from gyre.rl.objective import decide
from gyre.rl.packing import Shape, pack
from schemas.base import floats, ints
from schemas.training import ExecutionMasked, Segment, TrajectoriesAdmitted
from tests.core.test_admission import Call, Tree, expanded, sampled
from tests.core.test_admission_by_chance import Grown, grow
from tests.core.test_batches import LONG, Packer, group, measured, training


def admitted(name: str, grown: Grown, j_max: int, seed: int) -> TrajectoriesAdmitted:
    drawn = draw(*grown, j_max=j_max, seed=seed)
    total = sum(each.targets for each in drawn)
    return TrajectoriesAdmitted(
        execution=name, group="g", version=0, advantage=1.0, targets=total, seed=seed, trajectories=drawn
    )


def shape(chance: random.Random) -> Shape:
    """From rows of one token to rows that hold everything, in batches of one group and groups of one."""
    row = chance.choice([1, 2, 5, 13, 1000])
    most = row * chance.choice([1, 2, 3])
    return Shape(chance.randint(1, 3), chance.randint(1, 4), row, most, share_prefixes=chance.random() < 0.5)


def trained(segment: Segment) -> list[int]:
    """Places of a segment's targets."""
    return [place for place, flag in enumerate(segment.target) if flag]


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_what_was_sampled_is_trained_once_in_its_context_under_its_own_log_probability(chance_seed: int) -> None:
    chance = random.Random(chance_seed)
    forests = {f"x{place}": grow(chance) for place in range(chance.randint(1, 4))}
    made = {
        name: admitted(name, grown, chance.randint(1, 5), place) for place, (name, grown) in enumerate(forests.items())
    }
    cut = shape(chance)
    packed = pack(tuple(made.values()), cut)
    steps = [*packed.whole, *(part for split in packed.split for part in split.parts)]
    found: Counter[tuple[str, int]] = Counter()
    for segment in (each for rows in steps for row in rows for each in row.segments):
        tree, ids, logprobs = forests[segment.execution][0], ints(segment.ids), floats(segment.logprobs)
        path = expanded(tree, segment.leaf)
        assert ids == path[: len(ids)]  # positions restart at 0: the context is all that came before, and only that
        assert trained(segment)[-1] == len(ids) - 1
        for place in trained(segment):
            assert sampled(tree, ids[place])
            assert logprobs[place] == logprob(tree, ids[place])
            found[segment.execution, ids[place]] += 1
        assert segment.weight == 1 / (cut.groups * cut.group_size * made[segment.execution].targets)
    assert set(found.values()) <= {1}
    assert Counter(name for name, _ in found) == {name: each.targets for name, each in made.items() if each.targets}


def logprob(tree: Tree, token: int) -> float:
    """What the record says of a token: exact in float32."""
    call = owner(tree, token)
    return floats(call.logprobs)[token - call.own[call.inputs]]


def owner(tree: Tree, token: int) -> Call:
    return next(call for call in tree.values() if token in call.own)


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_limit_that_is_never_reached_trains_all_that_candidates_hold(chance_seed: int) -> None:
    tree, leaves = grown = grow(random.Random(chance_seed))
    packed = pack((admitted("x", grown, 100, 1),), Shape(1, 1, 3, 9))
    steps = [*packed.whole, *(part for split in packed.split for part in split.parts)]
    segments = [each for rows in steps for row in rows for each in row.segments]
    candidates = {each.leaf for each in leaves if each.role in PRIORITY}
    every = {token for leaf in candidates for token in expanded(tree, leaf) if sampled(tree, token)}
    assert {ints(each.ids)[place] for each in segments for place in trained(each)} == every


NATS = st.floats(-2000, 2000) | st.sampled_from([0.0, 0.0898, 0.0897, -0.0903, -0.0902, 1e-9])


@given(NATS, NATS, st.sampled_from([1.0, -1.0, 1e-9, -22.0]))
def test_the_packer_decides_of_a_split_execution_as_the_objective(one: float, other: float, advantage: float) -> None:
    """Its rule stands in the core, which knows no tensors; the trainer's stands beside the losses."""
    packer = Packer(Params(groups=1, steps=1, burst=1)).when(*training(), *group(0, LONG, (), advantage=advantage))
    packer.said()
    masked = packer.when(measured(0, one, 10), measured(1, other, 8)).story.due()[0]
    assert isinstance(masked, ExecutionMasked)
    expected = decide(one + other, 18, advantage, Settings())
    assert masked.ratio == pytest.approx(expected.ratio, rel=1e-12)
    assert masked.mask == expected.mask
