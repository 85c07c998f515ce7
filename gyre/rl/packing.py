"""Turn admitted trajectories into rows and micro-steps (design §7, Packing).

Three nested bins: executions into micro-steps, so that an execution's ratio can be taken in one place; an execution
that fits into none over several micro-steps of its own; segments into rows. Where the trainer computes shared prefixes
once, a row's tokens are counted the same way, so that segments are drawn to those they share most with.
What is left out: filling a micro-step from two groups, which would make the stream wait for the second one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TypeVar

import numpy as np

from gyre.rl.prefixes import prefixes, separate
from schemas.training import ExpertSpan, Row, Segment, TrajectoriesAdmitted, Trajectory

_Item = TypeVar("_Item")
_TOKEN_BYTES = 4
Rows = tuple[Row, ...]
Members = tuple[int, ...]
"""Segments, by their index in the group."""
Bins = tuple[tuple[Members, ...], ...]
Size = Callable[[Sequence[Members]], int]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the numbers of a batch are; all counts."""

    groups: int
    """B: groups a batch."""
    group_size: int
    """N: executions a group, the excluded included."""
    row_tokens: int
    """Tokens a row holds; a longer trajectory gets a row of its own."""
    micro_step_tokens: int
    """Tokens a micro-step holds; a longer row gets a micro-step of its own."""
    share_prefixes: bool = False
    """Count a token once in a row, however many of its segments begin with the same ids up to there."""

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "row_tokens", "micro_step_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: give at least 1")
        if self.row_tokens > self.micro_step_tokens:
            found = f"row_tokens = {self.row_tokens} > micro_step_tokens = {self.micro_step_tokens}"
            raise ValueError(f"{found}: a row must fit into a micro-step")


@dataclass(frozen=True, slots=True)
class Split:
    """An execution whose targets do not fit into one micro-step."""

    execution: str
    parts: tuple[Rows, ...]
    """At least two micro-steps: measured first, then trained under one decided mask."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A group's micro-steps, in the order in which they are queued."""

    whole: tuple[Rows, ...]
    """Each holds all the targets of every execution in it."""
    split: tuple[Split, ...]


@lru_cache(maxsize=2)  # the packer asks again for each micro-step it queues
def pack(admitted: tuple[TrajectoriesAdmitted, ...], shape: Shape) -> Packed:
    """Pack one group's executions; those without targets take no space.

    Args:
        admitted: the group's executions that are to be trained.
        shape: sizes of batch, rows and micro-steps.
    Returns:
        Micro-steps in which every target of `admitted` lies exactly once, with weight 1 / (B N L_i), dimensionless.
    """
    pieces = [(each.execution, segments(each, shape)) for each in admitted if each.targets]
    packer = _Packer(tuple(chain.from_iterable(parts for _, parts in pieces)), shape)
    split: list[Split] = []
    fitting: list[Members] = []
    start = 0
    for execution, parts in pieces:
        members = tuple(range(start, start + len(parts)))
        start += len(parts)
        bins = packer.micro_steps([(each,) for each in members])
        if len(bins) > 1:
            split.append(Split(execution, tuple(map(packer.built, bins))))
        else:
            fitting.append(members)
    return Packed(tuple(map(packer.built, packer.micro_steps(fitting))), tuple(split))


class _Packer:
    """One group's segments, by index, and what they cost together."""

    def __init__(self, parts: tuple[Segment, ...], shape: Shape) -> None:
        ids = [np.frombuffer(each.ids, "<i4") for each in parts]
        self._parts = parts
        self._shape = shape
        self._tree = prefixes(ids) if shape.share_prefixes else separate(len(parts))
        self._ranks = {index: rank for rank, index in enumerate(self._tree.order)}
        self._lengths = [len(ids[index]) for index in self._tree.order]

    def micro_steps(self, items: Sequence[Members]) -> tuple[Members, ...]:
        """Bins of whole items: executions, or the segments of one that is too large."""
        bins = self._best(items, self._micro_step_tokens, self._shape.micro_step_tokens)
        return tuple(tuple(chain.from_iterable(each)) for each in bins)

    def built(self, members: Members) -> Rows:
        """A micro-step."""
        return tuple(Row(segments=tuple(self._parts[each] for each in row)) for row in self._rows(members))

    def _rows(self, members: Members) -> tuple[Members, ...]:
        bins = self._best([(each,) for each in members], self._row_tokens, self._shape.row_tokens)
        return tuple(tuple(chain.from_iterable(each)) for each in bins)

    def _best(self, items: Sequence[Members], size: Size, capacity: int) -> Bins:
        """Large items first pack tightly, neighbours in the prefix tree share most: take what computes least."""
        orders = [sorted(items, key=lambda each: sum(map(self._length, each)), reverse=True)]
        if self._shape.share_prefixes:
            orders.append(sorted(items, key=lambda each: min(map(self._ranks.__getitem__, each))))
        return min((fill(each, size, capacity) for each in orders), key=lambda bins: (sum(map(size, bins)), len(bins)))

    def _row_tokens(self, items: Sequence[Members]) -> int:
        return self._tree.distinct((self._ranks[each] for each in chain.from_iterable(items)), self._lengths)

    def _micro_step_tokens(self, items: Sequence[Members]) -> int:
        return sum(self._row_tokens([row]) for row in self._rows(tuple(chain.from_iterable(items))))

    def _length(self, index: int) -> int:
        return self._lengths[self._ranks[index]]


def segments(admitted: TrajectoriesAdmitted, shape: Shape) -> tuple[Segment, ...]:
    """One segment a trajectory, cut after its last target: what follows conditions no target of it.

    Each target weighs 1 / (B N L_i), so that the sum over a batch is the mean over its B N original executions of
    each one's mean over its targets (design §7, Objective).
    """
    weight = 1.0 / (shape.groups * shape.group_size * admitted.targets)
    with_targets = (each for each in admitted.trajectories if each.targets)
    return tuple(_segment(each, admitted, weight) for each in with_targets)


def fill(
    items: Sequence[_Item], size: Callable[[Sequence[_Item]], int], capacity: int
) -> tuple[tuple[_Item, ...], ...]:
    """Put each item, in turn, into the bin that grows least by it, the first of equals, or into a new one.

    One larger than a bin gets one of its own. Where nothing is shared and the largest come first, this is first-fit
    decreasing: at most 11/9 of the fewest bins possible, plus one.

    Args:
        items: in the order in which they are placed.
        size: of items together.
        capacity: largest size of a bin of several items.
    """
    bins: list[list[_Item]] = []
    sizes: list[int] = []
    for item in items:
        grown = [size([*each, item]) for each in bins]
        fitting = [place for place, total in enumerate(grown) if total <= capacity]
        if fitting:
            place = min(fitting, key=lambda each: grown[each] - sizes[each])
            bins[place].append(item)
            sizes[place] = grown[place]
        else:
            bins.append([item])
            sizes.append(size([item]))
    return tuple(tuple(each) for each in bins)


def _segment(trajectory: Trajectory, admitted: TrajectoriesAdmitted, weight: float) -> Segment:
    stop = trajectory.target.rindex(1) + 1
    return Segment(
        execution=admitted.execution,
        leaf=trajectory.leaf,
        ids=trajectory.ids[: stop * _TOKEN_BYTES],
        target=trajectory.target[:stop],
        logprobs=trajectory.logprobs[: stop * _TOKEN_BYTES],
        advantage=admitted.advantage,
        weight=weight,
        experts=leading(trajectory.experts, stop),
    )


def leading(spans: Sequence[ExpertSpan], tokens: int) -> tuple[ExpertSpan, ...]:
    """Those of the first tokens; () stays ()."""
    kept: list[ExpertSpan] = []
    for span in spans:
        if taken := min(span.tokens, tokens):
            kept.append(span if taken == span.tokens else span.model_copy(update={"tokens": taken}))
        tokens -= taken
    return tuple(kept)
