"""One forward, one backward (1F1B): what each stage of a pipeline does in what order, for any number of rows. Pure.

Stage p of P is w = P - 1 - p rows ahead of its backward passes: in its n-th turn it takes row n forward and row n - w
backward. All stages take the same turns. What one of them sends in a turn its neighbour receives in the same turn, but
for the gradient of its input, which waits for the next turn's input to cross it. So between turns nothing is under way:
the pipeline can rest there for as long as input is wanting, keeping what it holds, and go on without a new start-up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Exchange:
    """With one neighbour, both ways at once: neither waits for the other to be the first."""

    neighbour: Literal[-1, 1]
    """-1: the stage before, which gets gradients of inputs and gives inputs; 1: the stage behind."""
    sends: int | None
    """Row whose tensor goes there."""
    receives: int | None
    """Row whose tensor comes from there."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A row through the layers of the stage."""

    row: int
    way: Literal["forward", "backward"]


Step = Exchange | Pass


def turn(stage: int, stages: int, row: int) -> Iterator[Step]:
    """A stage's turn with the row-th row since the start-up, from 0."""
    ahead = stages - 1 - stage
    due, owed = row - ahead, row - 1 - ahead  # the row to go back, and that of the turn before
    if stage > 0:
        yield Exchange(-1, owed if owed >= 0 else None, row)
    yield Pass(row, "forward")
    if ahead:
        yield Exchange(1, row, due if due >= 0 else None)
    if due >= 0:
        yield Pass(due, "backward")


def drain(stage: int, stages: int, rows: int) -> Iterator[Step]:
    """What is left to a stage after so many turns since the start-up, at least one."""
    ahead = stages - 1 - stage
    if stage > 0 and rows > ahead:
        yield Exchange(-1, rows - 1 - ahead, None)
    for row in range(max(0, rows - ahead), rows):
        yield Exchange(1, None, row)
        yield Pass(row, "backward")
        if stage > 0:
            yield Exchange(-1, row, None)


def crossing(stage: int, stages: int, row: int) -> Iterator[Step]:
    """A row that goes forward only; between turns it crosses a filled pipeline without touching what that holds."""
    if stage > 0:
        yield Exchange(-1, None, row)
    yield Pass(row, "forward")
    if stage < stages - 1:
        yield Exchange(1, row, None)
