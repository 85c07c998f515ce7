"""Turn admitted trajectories into rows and micro-steps (design §7, Packing).

Three nested bins, each filled first-fit decreasing: executions into micro-steps, so that an execution's ratio can be
taken in one place; an execution that fits into none over several micro-steps of its own; segments into rows.
What is left out: filling a micro-step from two groups, which would make the stream wait for the second one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from schemas.training import Row, Segment, TrajectoriesAdmitted, Trajectory

_Item = TypeVar("_Item")
_TOKEN_BYTES = 4
Rows = tuple[Row, ...]


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
    split: list[Split] = []
    fitting: list[tuple[Segment, ...]] = []
    for execution, parts in pieces:
        bins = first_fit_decreasing(parts, _length, shape.micro_step_tokens)
        if len(bins) > 1:
            split.append(Split(execution, tuple(_rows(each, shape) for each in bins)))
        else:
            fitting.append(parts)
    shared = first_fit_decreasing(fitting, lambda parts: sum(map(_length, parts)), shape.micro_step_tokens)
    whole = tuple(_rows([segment for parts in each for segment in parts], shape) for each in shared)
    return Packed(whole, tuple(split))


def segments(admitted: TrajectoriesAdmitted, shape: Shape) -> tuple[Segment, ...]:
    """One segment a trajectory, cut after its last target: what follows conditions no target of it.

    Each target weighs 1 / (B N L_i), so that the sum over a batch is the mean over its B N original executions of
    each one's mean over its targets (design §7, Objective).
    """
    weight = 1.0 / (shape.groups * shape.group_size * admitted.targets)
    with_targets = (each for each in admitted.trajectories if each.targets)
    return tuple(_segment(each, admitted, weight) for each in with_targets)


def first_fit_decreasing(
    items: Sequence[_Item], size: Callable[[_Item], int], capacity: int
) -> tuple[tuple[_Item, ...], ...]:
    """Put the largest first, each into the first bin with room; one larger than a bin gets one of its own.

    Equal sizes keep their order, so the same items always land in the same bins. At most 11/9 of the fewest bins
    possible, plus one.
    """
    bins: list[list[_Item]] = []
    free: list[int] = []
    for item in sorted(items, key=size, reverse=True):
        needed = size(item)
        place = next((index for index, room in enumerate(free) if room >= needed), None)
        if place is None:
            bins.append([item])
            free.append(capacity - needed)
        else:
            bins[place].append(item)
            free[place] -= needed
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
    )


def _rows(parts: Sequence[Segment], shape: Shape) -> Rows:
    bins = first_fit_decreasing(parts, _length, shape.row_tokens)
    return tuple(Row(segments=each) for each in bins)


def _length(segment: Segment) -> int:
    return len(segment.target)
