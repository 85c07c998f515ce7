"""The experts of a record, through the draw and the packing, at the positions of a row: each beside its own token."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.core.admission import draw
from gyre.rl.packing import Shape as Sizes
from gyre.rl.packing import pack
from gyre.trainers.batches import row_tensors
from gyre.trainers.port import MicroStepRefused
from gyre.trainers.replayed import UNKNOWN, Shape, experts_of
from schemas.base import ints
from schemas.refs import BlobRef
from schemas.rewards import LeafSummary
from schemas.training import MicroStepEnqueued, TrajectoriesAdmitted
from tests.core.test_admission import Call, Tree, leaf, trees

LAYERS, TOP_K = 2, 3
SHAPE = Shape(LAYERS, TOP_K, 5000)
SIZES = Sizes(groups=1, group_size=1, row_tokens=16, micro_step_tokens=10_000)
Bodies = dict[str, bytes]


def reference(body: bytes) -> BlobRef:
    digest = sha256(body).hexdigest()
    return BlobRef(digest=digest, size=len(body), address=f"blob:{digest}")


def told(tree: Tree, silent: set[str]) -> tuple[Tree, Bodies]:
    """Each record, where it is not silent, names its own tokens as experts: a row shows whose it is."""
    bodies: Bodies = {}
    speaking: Tree = dict(tree)
    for name, call in tree.items():
        if name not in silent and call.own:
            rows = np.repeat(np.array(call.own, "<i2"), LAYERS * TOP_K).tobytes()
            bodies[reference(rows).digest] = rows
            speaking[name] = replace(call, experts=reference(rows))
    return speaking, bodies


def packed(tree: Tree, leaves: list[LeafSummary]) -> MicroStepEnqueued | None:
    drawn = draw(tree, leaves, j_max=10, seed=1)
    if not drawn:
        return None
    event = TrajectoriesAdmitted(
        execution="x",
        group="g",
        version=0,
        advantage=1.0,
        targets=sum(each.targets for each in drawn),
        seed=1,
        trajectories=drawn,
    )
    (rows,) = pack((event,), SIZES).whole
    return MicroStepEnqueued(step=1, micro_step=0, kind="train", rows=rows, tokens=0)


@given(trees(), st.sets(st.sampled_from([f"c{each}" for each in range(10)])))
def test_each_position_has_the_experts_recorded_with_the_token_behind_it(
    grown: tuple[Tree, list[LeafSummary]], silent: set[str]
) -> None:
    tree, bodies = told(grown[0], silent)
    enqueued = packed(tree, grown[1])
    if enqueued is None:
        return
    found = experts_of(enqueued, SHAPE, lambda each: bodies[each.digest])
    for row, experts in zip(enqueued.rows, found, strict=True):
        for segment, taken in zip(row.segments, experts, strict=True):
            ids = ints(segment.ids)
            expected = [*(each if f"c{each // 100}" not in silent else UNKNOWN for each in ids[1:]), UNKNOWN]
            if taken is None:
                assert all(f"c{each // 100}" in silent for each in ids)
            else:
                assert taken[:, 0, 0].tolist() == expected
                assert (taken == taken[:, :1, :1]).all()


@given(trees())
def test_a_row_lays_experts_where_it_lays_their_tokens(grown: tuple[Tree, list[LeafSummary]]) -> None:
    tree, bodies = told(grown[0], set())
    enqueued = packed(tree, grown[1])
    if enqueued is None or any(target[0] for row in enqueued.rows for target in (each.target for each in row.segments)):
        return
    found = experts_of(enqueued, SHAPE, lambda each: bodies[each.digest])
    for row, experts in zip(enqueued.rows, found, strict=True):
        laid = row_tensors(row, {"x": 0}, 5000, share_prefixes=False, experts=experts)
        assert laid.experts is not None
        assert laid.holders is not None
        assert laid.holders.tolist() == [0] * laid.ids.numel()
        last = [*(laid.positions[0, 1:] == 0).tolist(), True]
        behind = [*laid.ids[0, 1:].tolist(), UNKNOWN]
        expected = [UNKNOWN if ends else each for ends, each in zip(last, behind, strict=True)]
        assert laid.experts[:, 1, 2].tolist() == expected


def test_experts_of_another_model_or_of_other_tokens_are_refused() -> None:
    tree, bodies = told({"c0": Call(0, 2, 2)}, set())
    enqueued = packed(tree, [leaf("c0")])
    assert enqueued is not None
    with pytest.raises(MicroStepRefused, match="another model's or tokens'"):
        experts_of(enqueued, SHAPE, lambda each: bodies[each.digest][: 2 * LAYERS * TOP_K])
    with pytest.raises(MicroStepRefused, match="are recorded, of 4 tokens x 3 layers x 7"):
        experts_of(enqueued, Shape(3, 7, 5000), lambda each: bodies[each.digest])
    with pytest.raises(MicroStepRefused, match="expert 3: the model has 3 a layer"):
        experts_of(enqueued, Shape(LAYERS, TOP_K, 3), lambda each: bodies[each.digest])
