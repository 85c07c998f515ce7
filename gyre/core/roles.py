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
    """All cells that ever registered, and sets of them: bit i stands for cell i."""

    members: tuple[Cell, ...] = ()
    """In order of their index."""
    requested: int = 0
    """Transitions requested so far, over the whole run."""
    trainers: int = 0
    """Cells 0..trainers-1 train for good: they never count in C_R."""
    capacity: int = 0
    """C_R = C_s + (K - k) C_e, over the cells that are there."""
    known: int = 0
    """Registered once."""
    idle: int = 0
    """In rollout and free to be asked to train."""
    training: int = 0
    """Counted in k, settled or about to leave."""
    settled: int = 0
    """Of `training`, those free to be asked back."""
    moving: int = 0
    """With a transition under way."""
    failed: int = 0
    """Whose last transition was rolled back."""

    def at(self, index: int) -> Cell | None:
        """The cell with this index, if it ever registered."""
        if not self.known >> index & 1:
            return None
        return self.members[(self.known & ((1 << index) - 1)).bit_count()]


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
    first = ~cells.training & (cells.training + 1)  # the lowest bit that is not set
    return None if cells.moving or first >= 1 << count else _lowest(cells, cells.idle & first)


def next_to_return(cells: Cells, count: int) -> Cell | None:
    """The next training satellite to send back to rollout at a burst's end."""
    return _lowest(cells, cells.settled & _satellites(count))


def last_to_train(cells: Cells, count: int) -> Cell | None:
    """The training satellite of the highest index: the first to give up its place in training."""
    satellites = cells.settled & _satellites(count)
    return cells.at(satellites.bit_length() - 1) if satellites else None


def next_idle(cells: Cells, count: int) -> Cell | None:
    """The first of the cells 0..count-1 that is in rollout and may be asked to train, whatever the others do."""
    return _lowest(cells, cells.idle & ((1 << count) - 1))


def satellites_home(cells: Cells, count: int) -> bool:
    """Whether no satellite trains or moves: from then on the core may publish."""
    return not (cells.training | cells.moving) & _satellites(count)


def retry_due(cells: Cells) -> TimerSet | None:
    """The pause to begin for a cell whose transition was rolled back."""
    failed = _lowest(cells, cells.failed)
    return TimerSet(timer=f"{RETRY}{failed.transition}", seconds=RETRY_SECONDS) if failed else None


def _satellites(count: int) -> int:
    return (1 << count) - 2  # all of the K but the core


def _lowest(cells: Cells, chosen: int) -> Cell | None:
    return cells.at((chosen & -chosen).bit_length() - 1) if chosen else None


def _registered(cells: Cells, event: CellRegistered) -> Cells:
    known = cells.at(event.cell)
    if known is not None and known.alive and known.instance == event.instance:
        return cells
    return _put(cells, Cell(index=event.cell, instance=event.instance, capacity=event.capacity))


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
    cell = cells.at(index)
    if cell is None or cell.instance != instance or not cell.alive:
        return cells
    changed = replace(
        cell,
        alive=alive,
        standing=standing,
        role=role or cell.role,
        transition=cell.transition if transition is None else transition,
    )
    return _put(cells, changed)


def _timer(cells: Cells, timer: str, before: Standing, after: Standing) -> Cells:
    if not timer.startswith(RETRY):
        return cells
    transition = timer.removeprefix(RETRY)
    for cell in cells.members:
        if (cell.transition, cell.standing) == (transition, before):
            cells = _put(cells, replace(cell, standing=after))
    return cells


def _put(cells: Cells, cell: Cell) -> Cells:
    """The cell as it is now, and the sets that it is in."""
    old, bit = cells.at(cell.index), 1 << cell.index
    place = (cells.known & (bit - 1)).bit_count()
    gained = _share(cells, cell) - (_share(cells, old) if old is not None else 0)

    def kept(members: int, belongs: bool) -> int:
        return members | bit if belongs else members & ~bit

    return replace(
        cells,
        members=(*cells.members[:place], cell, *cells.members[place + (old is not None) :]),
        capacity=cells.capacity + gained,
        known=cells.known | bit,
        idle=kept(cells.idle, cell.free and cell.role == "rollout"),
        training=kept(cells.training, cell.trains),
        settled=kept(cells.settled, cell.free and cell.trains),
        moving=kept(cells.moving, cell.alive and cell.standing == "moving"),
        failed=kept(cells.failed, cell.alive and cell.standing == "failed"),
    )


def _share(cells: Cells, cell: Cell) -> int:
    """What a cell adds to C_R."""
    return cell.capacity if cell.serves and cell.index >= cells.trainers else 0
