"""Cells, their roles and their transitions (design §6; paper §4.1, §4.3).

Cells have a fixed order: the core is cell 0, satellites follow, standalone engines (which never train) come last. A
cell leaves C_R when its transition is requested and comes back when it is completed; a lost cell counts nowhere until
it registers again, in rollout, under a new instance.
"""

from dataclasses import dataclass, replace
from typing import Literal

from schemas.roles import (
    CellLost,
    CellRegistered,
    CellRole,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import TimerFired, TimerSet

CORE = 0
RETRY = "retry-"
RETRY_SECONDS = 2.0
"""Pause before a failed transition is asked for again: long enough that a cell that cannot move does not spin."""

Standing = Literal["settled", "moving", "failed", "resting"]
RoleEvent = (
    CellRegistered
    | CellLost
    | RoleTransitionRequested
    | RoleTransitionCompleted
    | RoleTransitionFailed
    | TimerSet
    | TimerFired
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell as the log has it."""

    index: int
    instance: str
    capacity: int
    """Concurrent executions its engine takes (C_e)."""
    alive: bool = True
    role: CellRole = "rollout"
    """The role it has, or had before the transition it is in."""
    standing: Standing = "settled"
    """failed: its last transition was rolled back; resting: a timer runs until it may be asked again."""
    transition: str = ""
    """Id of its latest transition."""

    @property
    def serves(self) -> bool:
        """Whether it counts in C_R."""
        return self.alive and self.role == "rollout" and self.standing != "moving"

    @property
    def trains(self) -> bool:
        """Whether it counts in k, settled or about to leave."""
        return self.alive and self.role == "train"

    @property
    def free(self) -> bool:
        """Whether a transition may be asked of it."""
        return self.alive and self.standing == "settled"


@dataclass(frozen=True, slots=True)
class Cells:
    """All cells that ever registered, by index."""

    members: tuple[Cell, ...] = ()
    requested: int = 0
    """Transitions requested so far, over the whole run."""

    @property
    def capacity(self) -> int:
        """C_R = C_s + (K - k) C_e, over the cells that are there."""
        return sum(cell.capacity for cell in self.members if cell.serves)

    @property
    def moving(self) -> bool:
        """Whether any transition is under way."""
        return any(cell.alive and cell.standing == "moving" for cell in self.members)

    def at(self, index: int) -> Cell | None:
        """The cell with this index, if it ever registered."""
        return next((cell for cell in self.members if cell.index == index), None)


def evolve_cells(cells: Cells, event: RoleEvent) -> Cells:
    """Fold one event; what concerns another instance or another transition changes nothing."""
    match event:
        case CellRegistered():
            return _registered(cells, event)
        case CellLost(cell=index, instance=instance):
            return _change(cells, index, instance, alive=False, standing="settled")
        case RoleTransitionRequested(cell=index, instance=instance, transition=transition):
            asked = replace(cells, requested=cells.requested + 1)
            return _change(asked, index, instance, standing="moving", transition=transition)
        case RoleTransitionCompleted(cell=index, instance=instance, transition=transition, to=role):
            return _ended(cells, index, instance, transition, standing="settled", role=role)
        case RoleTransitionFailed(cell=index, instance=instance, transition=transition):
            return _ended(cells, index, instance, transition, standing="failed")
        case TimerSet(timer=timer):
            return _timer(cells, timer, "failed", "resting")
        case TimerFired(timer=timer):
            return _timer(cells, timer, "resting", "settled")


def request(cells: Cells, cell: Cell, to: CellRole) -> RoleTransitionRequested:
    """The next transition, under an id of its own."""
    return RoleTransitionRequested(transition=f"t{cells.requested + 1}", cell=cell.index, instance=cell.instance, to=to)


def next_to_train(cells: Cells, count: int) -> Cell | None:
    """The one cell that may go to training next: the first of the K that does not train, so that trainers are a prefix.

    None while it cannot be asked, or while any other transition is under way: they are serial.
    """
    if cells.moving:
        return None
    for index in range(count):
        cell = cells.at(index)
        if cell is None or not cell.trains:
            return cell if cell is not None and cell.free else None
    return None


def next_to_return(cells: Cells, count: int) -> Cell | None:
    """The next training satellite to send back to rollout at a burst's end."""
    satellites = (cell for cell in cells.members if CORE < cell.index < count)
    return next((cell for cell in satellites if cell.trains and cell.free), None)


def last_to_train(cells: Cells, count: int) -> Cell | None:
    """The training satellite of the highest index: the first to give up its place in training."""
    satellites = [cell for cell in cells.members if CORE < cell.index < count and cell.trains and cell.free]
    return max(satellites, key=lambda cell: cell.index, default=None)


def satellites_home(cells: Cells, count: int) -> bool:
    """Whether no satellite trains or moves: from then on the core may publish."""
    satellites = (cell for cell in cells.members if CORE < cell.index < count)
    return not any(cell.alive and (cell.role == "train" or cell.standing == "moving") for cell in satellites)


def retry_due(cells: Cells) -> TimerSet | None:
    """The pause to begin for a cell whose transition was rolled back."""
    failed = next((cell for cell in cells.members if cell.alive and cell.standing == "failed"), None)
    return TimerSet(timer=f"{RETRY}{failed.transition}", seconds=RETRY_SECONDS) if failed else None


def _registered(cells: Cells, event: CellRegistered) -> Cells:
    known = cells.at(event.cell)
    if known is not None and known.alive and known.instance == event.instance:
        return cells
    others = [cell for cell in cells.members if cell.index != event.cell]
    new = Cell(index=event.cell, instance=event.instance, capacity=event.capacity)
    return replace(cells, members=tuple(sorted((*others, new), key=lambda cell: cell.index)))


def _ended(
    cells: Cells, index: int, instance: str, transition: str, standing: Standing, role: CellRole | None = None
) -> Cells:
    cell = cells.at(index)
    if cell is None or cell.transition != transition or cell.standing != "moving":
        return cells
    return _change(cells, index, instance, standing=standing, role=role)


def _change(  # the cell with this index, if this very instance lives
    cells: Cells,
    index: int,
    instance: str,
    *,
    standing: Standing,
    alive: bool = True,
    role: CellRole | None = None,
    transition: str | None = None,
) -> Cells:
    def changed(cell: Cell) -> Cell:
        if cell.index != index or cell.instance != instance or not cell.alive:
            return cell
        return replace(
            cell,
            alive=alive,
            standing=standing,
            role=role or cell.role,
            transition=cell.transition if transition is None else transition,
        )

    return replace(cells, members=tuple(changed(cell) for cell in cells.members))


def _timer(cells: Cells, timer: str, before: Standing, after: Standing) -> Cells:
    if not timer.startswith(RETRY):
        return cells
    transition = timer.removeprefix(RETRY)
    members = tuple(
        replace(cell, standing=after) if (cell.transition, cell.standing) == (transition, before) else cell
        for cell in cells.members
    )
    return replace(cells, members=members)
