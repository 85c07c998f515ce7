"""Rows and micro-steps: every target once, at its weight, as few bins as first-fit decreasing gives."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.rl.packing import Packed, Rows, Shape, fill, pack
from schemas.base import floats, ints, pack_floats, pack_ints
from schemas.training import TrajectoriesAdmitted, Trajectory

SHAPE = Shape(groups=2, group_size=4, row_tokens=8, micro_step_tokens=16)


def trajectory(leaf: str, target: bytes) -> Trajectory:
    size = len(target)
    return Trajectory(
        leaf=leaf,
        role="main",
        ids=pack_ints(range(size)),
        target=target,
        logprobs=pack_floats(-place / 4 if flag else 0.0 for place, flag in enumerate(target)),
        targets=target.count(1),
    )


def admitted(execution: str, *targets: bytes) -> TrajectoriesAdmitted:
    drawn = tuple(trajectory(f"{execution}-{place}", target) for place, target in enumerate(targets))
    total = sum(each.targets for each in drawn)
    return TrajectoriesAdmitted(
        execution=execution, group="g", version=0, advantage=0.5, targets=total, seed=0, trajectories=drawn
    )


def micro_steps(packed: Packed) -> list[Rows]:
    return [*packed.whole, *(part for split in packed.split for part in split.parts)]


def lengths(rows: Rows) -> list[list[int]]:
    return [[len(segment.target) for segment in row.segments] for row in rows]


def test_the_largest_first_each_in_the_first_bin_with_room() -> None:
    assert fill([8, 7, 5, 4, 3, 2, 1], sum, 10) == ((8, 2), (7, 3), (5, 4, 1))


def test_what_is_larger_than_a_bin_gets_one_of_its_own() -> None:
    assert fill([12, 4, 3], sum, 10) == ((12,), (4, 3))


def test_an_item_goes_where_it_adds_least() -> None:
    assert fill(["abc", "xyz", "xya"], lambda words: len(set("".join(words))), 5) == (("abc",), ("xyz", "xya"))


def test_each_target_weighs_one_over_batch_times_group_times_its_executions_targets() -> None:
    packed = pack((admitted("a", b"\0\1\1", b"\0\1"),), SHAPE)
    segments = [segment for rows in micro_steps(packed) for row in rows for segment in row.segments]
    assert [segment.weight for segment in segments] == [1 / (2 * 4 * 3)] * 2
    assert [segment.advantage for segment in segments] == [0.5, 0.5]


def test_a_segment_ends_with_its_last_target() -> None:
    ((row,),) = pack((admitted("a", b"\0\1\0\1\0\0"),), SHAPE).whole
    (segment,) = row.segments
    assert segment.target == b"\0\1\0\1"
    assert ints(segment.ids) == [0, 1, 2, 3]
    assert floats(segment.logprobs) == [0, -0.25, 0, -0.75]


def test_executions_share_a_micro_step_and_trajectories_a_row() -> None:
    packed = pack(
        (admitted("a", b"\0" * 4 + b"\1", b"\0\1"), admitted("b", b"\0\0\1"), admitted("c", b"\0\1\1\1")), SHAPE
    )
    (rows,) = packed.whole
    assert sorted(lengths(rows)) == [[4, 2], [5, 3]]
    assert packed.split == ()


def test_an_execution_that_fits_into_no_micro_step_is_split() -> None:
    packed = pack((admitted("a", b"\0" * 9 + b"\1", b"\0" * 8 + b"\1", b"\0\1"), admitted("b", b"\1")), SHAPE)
    (split,) = packed.split
    assert split.execution == "a"
    assert [lengths(part) for part in split.parts] == [[[10], [2]], [[9]]]
    assert [lengths(rows) for rows in packed.whole] == [[[1]]]


def test_one_overlong_trajectory_keeps_its_targets_together() -> None:
    packed = pack((admitted("a", b"\0" * 20 + b"\1"),), SHAPE)
    assert [lengths(rows) for rows in packed.whole] == [[[21]]]
    assert packed.split == ()


def test_an_execution_without_targets_takes_no_space() -> None:
    assert pack((admitted("a"),), SHAPE) == Packed((), ())


@pytest.mark.parametrize(
    ("field", "value"), [("groups", 0), ("group_size", 0), ("row_tokens", 0), ("micro_step_tokens", 7)]
)
def test_a_shape_that_cannot_be_filled_is_refused_by_name(field: str, value: int) -> None:
    given_ = {"groups": 2, "group_size": 4, "row_tokens": 8, "micro_step_tokens": 16} | {field: value}
    with pytest.raises(ValueError, match=f"{field} = {value}"):
        Shape(**given_)


def spelled(execution: str, *paths: str) -> TrajectoriesAdmitted:
    """One trajectory a word, a token a letter; the last two letters are targets."""
    drawn = tuple(
        trajectory(f"{execution}-{place}", b"\0" * (len(path) - 2) + b"\1\1").model_copy(
            update={"ids": pack_ints(map(ord, path))}
        )
        for place, path in enumerate(paths)
    )
    return admitted(execution).model_copy(update={"targets": 2 * len(drawn), "trajectories": drawn})


def words(rows: Rows) -> list[set[str]]:
    return [{"".join(map(chr, ints(segment.ids))) for segment in row.segments} for row in rows]


SHARED = Shape(groups=2, group_size=4, row_tokens=8, micro_step_tokens=16, share_prefixes=True)


def test_a_shared_prefix_takes_room_once() -> None:
    group = (spelled("a", "prefixab"), spelled("b", "prefixa"), spelled("c", "prefix"))
    assert [words(rows) for rows in pack(group, SHARED).whole] == [[{"prefixab", "prefixa", "prefix"}]]
    assert len(pack(group, SHAPE).whole) == 2


def test_segments_are_drawn_to_those_they_share_most_with() -> None:
    group = (spelled("a", "aaaa12", "bbbb12"), spelled("b", "aaaa34", "bbbb34"))
    (rows,) = pack(group, SHARED).whole
    assert sorted(words(rows), key=min) == [{"aaaa12", "aaaa34"}, {"bbbb12", "bbbb34"}]


def test_executions_meet_in_the_micro_step_where_they_share_most() -> None:
    group = (spelled("a", "aaaaaa123"), spelled("b", "bbbbbb123"), spelled("c", "aaaaaa45"), spelled("d", "bbbbbb456"))
    wide = Shape(groups=2, group_size=4, row_tokens=12, micro_step_tokens=12, share_prefixes=True)
    found = [words(rows) for rows in pack(group, wide).whole]
    assert sorted(found, key=str) == [[{"aaaaaa123", "aaaaaa45"}], [{"bbbbbb123", "bbbbbb456"}]]


def test_an_execution_that_fits_by_what_its_branches_share_is_not_split() -> None:
    group = (spelled("a", "aaaaaa1", "aaaaaa23", "aaaaaa4"),)
    narrow = {"groups": 2, "group_size": 4, "row_tokens": 10, "micro_step_tokens": 10}
    assert pack(group, Shape(**narrow, share_prefixes=True)).split == ()
    assert len(pack(group, Shape(**narrow)).split[0].parts) == 3


def test_neither_the_order_of_equals_nor_a_second_call_changes_what_is_packed() -> None:
    group = (spelled("a", "same12", "same12"), spelled("b", "same12"), spelled("c", "same34"))
    first = pack(group, SHARED)
    pack.cache_clear()
    assert pack(group, SHARED) == first


MASKS = st.lists(st.booleans(), min_size=1, max_size=24).map(bytes).filter(any)
GROUPS = st.lists(st.lists(MASKS, max_size=4), max_size=6)


@pytest.mark.parametrize("shape", [SHAPE, SHARED])
@given(GROUPS)
def test_every_target_lies_in_exactly_one_place(shape: Shape, group: list[list[bytes]]) -> None:
    executions = tuple(admitted(f"x{place}", *masks) for place, masks in enumerate(group))
    found = Counter(
        (segment.leaf, place)
        for rows in micro_steps(pack(executions, shape))
        for row in rows
        for segment in row.segments
        for place, flag in enumerate(segment.target)
        if flag
    )
    expected = {
        (each.leaf, place)
        for execution in executions
        for each in execution.trajectories
        for place, flag in enumerate(each.target)
        if flag
    }
    assert found == Counter(expected)


@given(GROUPS)
def test_rows_and_micro_steps_keep_to_their_sizes_and_executions_together(group: list[list[bytes]]) -> None:
    packed = pack(tuple(admitted(f"x{place}", *masks) for place, masks in enumerate(group)), SHAPE)
    for rows in micro_steps(packed):
        sizes = lengths(rows)
        assert all(sum(row) <= SHAPE.row_tokens or len(row) == 1 for row in sizes)
        held = sum(map(sum, sizes))
        assert held <= SHAPE.micro_step_tokens or sum(map(len, sizes)) == 1
    where = [{segment.execution for row in rows for segment in row.segments} for rows in packed.whole]
    assert all(one.isdisjoint(other) for place, one in enumerate(where) for other in where[:place])
    assert all(len(split.parts) > 1 for split in packed.split)


@given(GROUPS)
def test_an_executions_weights_sum_to_its_share_of_the_batch(group: list[list[bytes]]) -> None:
    packed = pack(tuple(admitted(f"x{place}", *masks) for place, masks in enumerate(group)), SHAPE)
    sums: Counter[str] = Counter()
    for rows in micro_steps(packed):
        for row in rows:
            for segment in row.segments:
                sums[segment.execution] += segment.weight * segment.target.count(1)  # type: ignore[assignment]
    assert all(share == pytest.approx(1 / 8) for share in sums.values())


PATHS = st.lists(st.lists(st.text("ab", min_size=2, max_size=10), max_size=4), max_size=5)


@given(PATHS)
def test_shared_rows_and_micro_steps_keep_to_their_sizes_in_distinct_tokens(group: list[list[str]]) -> None:
    packed = pack(tuple(spelled(f"x{place}", *paths) for place, paths in enumerate(group)), SHARED)
    for rows in micro_steps(packed):
        sizes = [len({word[: stop + 1] for word in row for stop in range(len(word))}) for row in words(rows)]
        assert all(size <= SHARED.row_tokens or len(row.segments) == 1 for size, row in zip(sizes, rows, strict=True))
        assert sum(sizes) <= SHARED.micro_step_tokens or sum(len(row.segments) for row in rows) == 1
