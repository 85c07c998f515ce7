"""Who holds which micro-step of the current step, and when its gradient may be reduced (design §8, Ledger).

The packer folds it to know what to reissue, each cell to know whether it may claim, the core to know what to reduce.
All of them must come to the same answer, so the rules are here once:

- A claim counts only from an instance that is its cell's current one and has joined the step.
- A cell that is lost, registers anew, leaves training or discards takes with it all it holds, open claims included;
  a completion of such a claim counts nowhere. A measurement, once completed, stays: it lies in the log, not in a cell.
- A core that is lost before OptimizerStepped takes the whole step with it. Everyone zeroes its accumulated gradient
  and joins again; a satellite that has not noticed claims in vain.
- A micro-step that its claimant broke of, or died alone with, failed once more. What was claimed before the packer's
  present term did not: its cell went down with the run. (A term of the first rules counted every loss.)
- ReductionOpened stands only if it names exactly what is held now. GradientReduced settles it: a satellite that is
  lost later has already given its share.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from schemas.envelope import Event
from schemas.roles import CellLost, CellRegistered, RoleTransitionCompleted
from schemas.runs import OfficeTaken
from schemas.training import (
    CellJoined,
    Contribution,
    ContributionDiscarded,
    GradientReduced,
    JoinWindowClosed,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    MicroStepReissued,
    OptimizerStepped,
    ReductionOpened,
    StreamClosed,
)

CORE = 0
_PACKER = "packer"
_FORGIVING = 2  # the first rules that do not hold every loss against a micro-step
Status = Literal["ready", "claimed", "completed", "lost"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One micro-step."""

    kind: Literal["train", "measure"]
    enqueued: int
    """Sequence of its MicroStepEnqueued."""
    status: Status = "ready"
    cell: int = -1
    """Who holds it, when claimed or completed."""
    claim: int = 0
    """Sequence of the last claim."""
    reissues: int = 0
    failures: int = 0
    """How often its claimant was lost while it worked on it: a poison micro-step shows here."""
    blamed: bool = False
    """Whether the last loss is one of them."""
    lost_at: int = 0
    """Sequence of what lost it."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell's current instance."""

    instance: str
    alive: bool = True
    trains: bool = False
    since: int = 0
    """Sequence of its last change of role."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """What is summed: frozen members and claims."""

    epoch: int
    members: tuple[int, ...]
    instances: tuple[str, ...]
    contributions: tuple[Contribution, ...]
    intact: bool = True
    """False once a member has lost its share: reduce again, in a new epoch."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The step that is collecting, and the cells."""

    step: int = 1
    version: int = 0
    """Of the weights that the step's gradient is taken at."""
    cells: dict[int, Cell] = field(default_factory=dict)
    joined: dict[int, str] = field(default_factory=dict)
    """Cell -> instance that may claim in this step."""
    slots: dict[int, Slot] = field(default_factory=dict)
    total: int | None = None
    """Micro-steps of the closed stream."""
    window_closed: bool = False
    epoch: int = 0
    reduction: Reduction | None = None
    reduced: bool = False
    # What follows from the slots, counted as they change:
    unclaimed: int = 0
    """Micro-steps that are ready."""
    unfinished: int = 0
    """Micro-steps that are not completed."""
    missing: tuple[int, ...] = ()
    """Micro-steps that are lost, in order."""
    term: int = 0
    """Sequence since when the packer is in office; 0 where it decides by the first rules."""


def evolve(state: Ledger, sequence: int, event: Event) -> Ledger:
    """Fold one event; what is about another step or another instance changes nothing."""
    handler = _HANDLERS.get(type(event))
    return handler(state, sequence, event) if handler is not None and concerns(event, state.step) else state


def concerns(event: Any, step: int) -> bool:
    """Whether an event is about this step, or about none."""
    return type(event) not in _OF_A_STEP or event.step == step


def may_claim(state: Ledger, cell: int, instance: str) -> bool:
    """Whether a claim by this instance would count now."""
    reducing = state.reduced or (state.reduction is not None and state.reduction.intact)
    return state.joined.get(cell) == instance and not reducing


def lost(state: Ledger) -> tuple[int, ...]:
    """Micro-steps that have to be reissued, in order."""
    return () if state.reduced else state.missing


def live(state: Ledger) -> tuple[Contribution, ...]:
    """Completed training micro-steps whose gradient lies in a cell that still counts, in order."""
    return tuple(
        Contribution(micro_step=place, cell=slot.cell, claim=slot.claim)
        for place, slot in sorted(state.slots.items())
        if slot.kind == "train" and slot.status == "completed"
    )


def training(state: Ledger) -> tuple[int, ...]:
    """The training micro-steps queued so far, in order: what a sum must hold, each once."""
    return tuple(sorted(place for place, slot in state.slots.items() if slot.kind == "train"))


def drained(state: Ledger) -> bool:
    """Whether the stream is closed and every micro-step of it completed."""
    return len(state.slots) == state.total and not state.unfinished


def reduction_due(state: Ledger) -> Reduction | None:
    """What the core reduces now; None while there is work left, or while a reduction is under way or done."""
    under_way = state.reduction is not None and state.reduction.intact
    if state.reduced or under_way or CORE not in state.joined or not drained(state):
        return None
    members = tuple(sorted(state.joined))
    instances = tuple(state.joined[member] for member in members)
    return Reduction(state.epoch + 1, members, instances, live(state))


def check(contributions: Iterable[Contribution], enqueued: Iterable[int]) -> tuple[str, ...]:
    """What is wrong with a sum: () when its contributions are exactly the training micro-steps, each once."""
    counts = Counter(each.micro_step for each in contributions)
    expected = set(enqueued)
    missing = [f"micro-step {each} is missing from the sum" for each in sorted(expected - counts.keys())]
    double = [f"micro-step {each} is in the sum {n} times" for each, n in sorted(counts.items()) if n > 1]
    unknown = [f"micro-step {each} is in the sum but was not queued" for each in sorted(counts.keys() - expected)]
    return (*missing, *double, *unknown)


def _enqueued(state: Ledger, sequence: int, event: MicroStepEnqueued) -> Ledger:
    return _put(state, event.micro_step, Slot(event.kind, sequence))


def _claimed(state: Ledger, sequence: int, event: MicroStepClaimed) -> Ledger:
    slot = state.slots.get(event.micro_step)
    if slot is None or slot.status != "ready":
        return state
    held = replace(slot, status="claimed", cell=event.cell, claim=sequence)
    if state.joined.get(event.cell) != event.instance:
        held = _without(held, sequence, f"claimed by {event.instance} of cell {event.cell}, which has not joined")
    return _put(state, event.micro_step, held)


def _completed(state: Ledger, sequence: int, event: MicroStepCompleted) -> Ledger:  # noqa: ARG001 - a handler
    slot = state.slots.get(event.micro_step)
    if slot is None or slot.status != "claimed" or slot.claim != event.claim:
        return state
    return _put(state, event.micro_step, replace(slot, status="completed"))


def _reissued(state: Ledger, sequence: int, event: MicroStepReissued) -> Ledger:  # noqa: ARG001 - a handler
    slot = state.slots.get(event.micro_step)
    if slot is None:
        return state
    return _put(state, event.micro_step, replace(slot, status="ready", cell=-1, reissues=event.reissue))


def _closed(state: Ledger, sequence: int, event: StreamClosed) -> Ledger:  # noqa: ARG001 - a handler
    return replace(state, total=event.micro_steps)


def _registered(state: Ledger, sequence: int, event: CellRegistered) -> Ledger:
    old = state.cells.get(event.cell)
    if old is not None and old.instance == event.instance:
        return state
    new = replace(state, cells=state.cells | {event.cell: Cell(event.instance, since=sequence)})
    if old is None or not old.alive:
        return new
    return _leave(new, event.cell, sequence, f"cell {event.cell} registered anew as {event.instance}")


def _gone(state: Ledger, sequence: int, event: CellLost) -> Ledger:
    cell = state.cells.get(event.cell)
    if cell is None or cell.instance != event.instance or not cell.alive:
        return state
    dead = replace(cell, alive=False, trains=False, since=sequence)
    new = replace(state, cells=state.cells | {event.cell: dead})
    return _leave(new, event.cell, sequence, f"cell {event.cell} was lost: {event.reason}")


def _moved(state: Ledger, sequence: int, event: RoleTransitionCompleted) -> Ledger:
    cell = state.cells.get(event.cell)
    if cell is None or cell.instance != event.instance or not cell.alive:
        return state
    trains = event.to == "train"
    new = replace(state, cells=state.cells | {event.cell: replace(cell, trains=trains, since=sequence)})
    reason = f"cell {event.cell} returned to rollout"
    return new if trains else _leave(new, event.cell, sequence, reason, failed=not state.term)


def _joined(state: Ledger, sequence: int, event: CellJoined) -> Ledger:
    cell = state.cells.get(event.cell)
    current = cell is not None and cell.alive and cell.instance == event.instance
    if cell is None or not current or state.window_closed or event.version != state.version:
        return state
    since = cell.since if cell.trains else sequence
    cells = state.cells | {event.cell: replace(cell, trains=True, since=since)}
    return replace(state, cells=cells, joined=state.joined | {event.cell: event.instance})


def _window(state: Ledger, sequence: int, event: JoinWindowClosed) -> Ledger:
    if CORE not in state.joined:  # the last word of a core that did not know yet that it was lost: its successor joins
        return state
    late = [cell for cell in state.joined if cell not in event.members]
    for cell in late:
        reason = f"cell {cell} joined after the window closed"
        state = _leave(state, cell, sequence, reason, failed=not state.term)
    return replace(state, window_closed=True)


def _discarded(state: Ledger, sequence: int, event: ContributionDiscarded) -> Ledger:
    if state.joined.get(event.cell) != event.instance or state.reduced:
        return state
    reason = f"cell {event.cell} discarded: {event.reason}"
    return _lose(state, event.cell, sequence, reason, failed=event.broken)


def _opened(state: Ledger, sequence: int, event: ReductionOpened) -> Ledger:  # noqa: ARG001 - a handler
    members = dict(zip(event.members, event.instances, strict=False))
    stands = drained(state) and members.items() <= state.joined.items() and event.contributions == live(state)
    opened = Reduction(event.epoch, event.members, event.instances, event.contributions, intact=stands)
    return replace(state, epoch=event.epoch, reduction=opened if stands else None)


def _reduced(state: Ledger, sequence: int, event: GradientReduced) -> Ledger:  # noqa: ARG001 - a handler
    open_ = state.reduction
    return state if open_ is None or open_.epoch != event.epoch else replace(state, reduced=True)


def _stepped(state: Ledger, sequence: int, event: OptimizerStepped) -> Ledger:  # noqa: ARG001 - a handler
    return Ledger(step=event.step + 1, version=event.version, cells=state.cells, term=state.term)


def _seated(state: Ledger, sequence: int, event: OfficeTaken) -> Ledger:
    """Whoever was lost while no packer was there went down with it, and so will who held a claim then.

    A packer that died alone forgives a failure too: at most the one that came about while it was away.
    """
    if event.service != _PACKER or event.rules < _FORGIVING:
        return state
    blamed = {place: slot for place, slot in state.slots.items() if slot.status == "lost" and slot.blamed}
    forgiven = {place: replace(slot, failures=slot.failures - 1, blamed=False) for place, slot in blamed.items()}
    return replace(_with(state, forgiven), term=sequence)


def _leave(state: Ledger, cell: int, sequence: int, reason: str, *, failed: bool = True) -> Ledger:
    """A cell stops counting in this step; with the core, everyone does."""
    if cell == CORE:
        for other in {slot.cell for slot in state.slots.values()} - {-1}:
            state = _lose(state, other, sequence, reason, failed=failed and other == CORE)
        return replace(state, joined={}, window_closed=False, reduction=None, reduced=False)
    joined = {key: value for key, value in state.joined.items() if key != cell}
    left = replace(state, joined=joined)
    return left if state.reduced else _lose(left, cell, sequence, reason, failed=failed)


def _lose(state: Ledger, cell: int, sequence: int, reason: str, *, failed: bool) -> Ledger:
    """All that a cell holds is lost: a failure of what it worked on, if it was the cell's own doing."""
    taken = {
        place: _without(slot, sequence, reason, failed=failed and slot.status == "claimed" and slot.claim > state.term)
        for place, slot in state.slots.items()
        if slot.cell == cell and (slot.status == "claimed" or (slot.status == "completed" and slot.kind == "train"))
    }
    broken = state.reduction is not None and cell in state.reduction.members
    reduction = replace(state.reduction, intact=False) if state.reduction is not None and broken else state.reduction
    return replace(_with(state, taken), reduction=reduction)


def _without(slot: Slot, sequence: int, reason: str, *, failed: bool = False) -> Slot:
    failures = slot.failures + failed
    return replace(slot, status="lost", cell=-1, failures=failures, blamed=failed, lost_at=sequence, reason=reason)


def _put(state: Ledger, micro_step: int, slot: Slot) -> Ledger:
    return _with(state, {micro_step: slot})


def _with(state: Ledger, changed: dict[int, Slot]) -> Ledger:
    """These slots as they stand now, and what follows from all of them."""
    before = [state.slots[place] for place in changed if place in state.slots]
    missing = state.missing
    lost_now = [place for place, slot in changed.items() if slot.status == "lost"]
    if missing or lost_now:
        missing = tuple(sorted({*missing, *lost_now}.difference(changed.keys() - lost_now)))
    return replace(
        state,
        slots=state.slots | changed,
        unclaimed=state.unclaimed + _ready(changed.values()) - _ready(before),
        unfinished=state.unfinished + _open(changed.values()) - _open(before),
        missing=missing,
    )


def _ready(slots: Iterable[Slot]) -> int:
    return sum(slot.status == "ready" for slot in slots)


def _open(slots: Iterable[Slot]) -> int:
    return sum(slot.status != "completed" for slot in slots)


_HANDLERS: Mapping[type[Any], Callable[[Ledger, int, Any], Ledger]] = {
    MicroStepEnqueued: _enqueued,
    MicroStepClaimed: _claimed,
    MicroStepCompleted: _completed,
    MicroStepReissued: _reissued,
    StreamClosed: _closed,
    CellRegistered: _registered,
    CellLost: _gone,
    RoleTransitionCompleted: _moved,
    CellJoined: _joined,
    JoinWindowClosed: _window,
    ContributionDiscarded: _discarded,
    ReductionOpened: _opened,
    GradientReduced: _reduced,
    OptimizerStepped: _stepped,
    OfficeTaken: _seated,
}
_OF_A_STEP = frozenset(kind for kind in get_args(get_args(Event)[0]) if "step" in kind.model_fields)
FOLDS = frozenset(_HANDLERS)
"""The events that change a ledger."""
