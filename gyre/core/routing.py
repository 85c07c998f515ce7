"""Which cell answers an execution's model calls (design §6; paper §4.3).

Routes are sticky: an execution stays where its cache is. A new route goes to the cell that will stay in rollout
longest: standalone engines first, then rollout cells in descending index, each up to its capacity. An execution that
finds no place waits; it is never refused.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Destination:
    """A cell that admits requests now."""

    cell: int
    capacity: int
    """Concurrent executions it takes (C_e)."""
    standalone: bool = False
    """It never trains."""


@dataclass(frozen=True, slots=True)
class Move:
    """A route that leaves a cell."""

    execution: str
    source: int
    target: int


def order(destinations: Iterable[Destination]) -> list[Destination]:
    """Standalone engines first, then rollout cells in descending index: later ones train later."""
    return sorted(destinations, key=lambda place: (not place.standalone, -place.cell))


def assign(execution: str, routes: Mapping[str, int], destinations: Iterable[Destination]) -> int | None:
    """The cell for an execution's next call: where it is, as long as that one admits; None: wait for room."""
    places = order(destinations)
    at = routes.get(execution)
    if any(place.cell == at for place in places):
        return at
    load = Counter(routes.values())
    return next((place.cell for place in places if load[place.cell] < place.capacity), None)


def moves(source: int, routes: Mapping[str, int], destinations: Iterable[Destination]) -> tuple[Move, ...]:
    """Where the executions of a leaving cell go, in order of name, each place reserved as it is given.

    Those for whom there is no room are left out: their requests wait until `assign` finds one.
    """
    after, moved = dict(routes), []
    places = [place for place in destinations if place.cell != source]
    for execution in sorted(name for name, cell in routes.items() if cell == source):
        target = assign(execution, after, places)
        if target is None:
            break
        after[execution] = target
        moved.append(Move(execution, source, target))
    return tuple(moved)
