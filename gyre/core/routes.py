"""What a proxy must know, folded from EV: which executions are open, which cells serve rollout, who goes where.

Bounded: an execution is dropped when its records are sealed, an evaluation when it is scored.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from schemas.calls import RecordsSealed, RouteAssigned, RouteMoved
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import EvaluationScored, EvaluationStarted

LEFT = "the cell left rollout"
LOST = "the cell is lost"
FAILED = "the cell failed"
"""Why a route moved."""

_OfCell = CellRegistered | CellLost | RoleTransitionRequested | RoleTransitionCompleted | RoleTransitionFailed


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell's engine as a destination."""

    instance: str
    url: str
    capacity: int
    serving: bool = True
    """Whether requests may be routed there; a new instance begins in rollout."""
    returning: bool = False
    """Whether it is on its way from training back to rollout."""


@dataclass(frozen=True, slots=True)
class Routes:
    """All of a proxy's knowledge. Never changed in place."""

    open: Mapping[str, str] = field(default_factory=dict)
    """Digest of a token -> its execution: launched, not terminated."""
    seeds: Mapping[str, int] = field(default_factory=dict)
    """Execution -> its seed, from dispatch to seal."""
    closing: tuple[str, ...] = ()
    """Terminated executions whose records are not sealed yet."""
    evaluations: Mapping[str, int] = field(default_factory=dict)
    """Evaluation -> its number of episodes, while they run."""
    cells: Mapping[int, Cell] = field(default_factory=dict)
    assigned: Mapping[str, int] = field(default_factory=dict)
    """Execution -> the cell that it sticks to."""
    trainers: int = 0
    """Cells 0..trainers-1 train for good: nothing is ever routed there."""


def evolve(routes: Routes, event: Event) -> Routes:
    """Take in one event; most say nothing to a proxy."""
    step = _STEPS.get(type(event))
    return step(routes, event) if step else routes


def choose(routes: Routes, execution: str, avoid: AbstractSet[int] = frozenset()) -> int | None:
    """The cell for an execution's next request; None while no cell serves.

    It stays where it is. One that was nowhere goes to the least loaded cell, one whose cell serves no more onward as
    `moves` says. Cells in `avoid` just failed: they are taken only when there is no other.
    """
    serving = {index: cell for index, cell in routes.cells.items() if cell.serving}
    candidates = {index: cell for index, cell in serving.items() if index not in avoid} or serving
    held = routes.assigned.get(execution)
    if held in candidates:
        return held
    counts = Counter(routes.assigned.values())
    return _least_loaded(candidates, counts) if held is None else onward(candidates, counts)


def moves(routes: Routes) -> tuple[RouteMoved, ...]:
    """Every route that points at a cell which serves no more, and where it goes on (design §6); () while none serves.

    Standalone engines come first, then rollout cells in descending index: their indexes follow the cells', so the order
    is that of the index. Each is filled up to its capacity before the next, since it is expected to serve longer: the
    core trains first, then satellites from the lowest index on. Executions that only wait for their seal stay.
    """
    serving = {index: cell for index, cell in routes.cells.items() if cell.serving}
    counts = Counter(routes.assigned.values())
    found: list[RouteMoved] = []
    for execution, held in routes.assigned.items():
        if held in serving or execution in routes.closing:
            continue
        index = onward(serving, counts)
        if index is None:
            break
        counts[index] += 1
        reason = LEFT if held in routes.cells else LOST
        found.append(RouteMoved(execution=execution, from_cell=held, to_cell=index, reason=reason))
    return tuple(found)


def vacated(routes: Routes, index: int) -> bool:
    """Whether no route points at a cell that could point at another."""
    elsewhere = any(cell.serving for number, cell in routes.cells.items() if number != index)
    return not elsewhere or not any(
        held == index and execution not in routes.closing for execution, held in routes.assigned.items()
    )


def _least_loaded(candidates: Mapping[int, Cell], counts: Mapping[int, int]) -> int | None:
    """By assigned executions per place of capacity; the highest index wins a tie."""
    return min(candidates, key=lambda index: (counts[index] / candidates[index].capacity, -index), default=None)


def onward(candidates: Mapping[int, Cell], counts: Mapping[int, int]) -> int | None:
    """The highest index that has room; where none has, the least loaded: requests in excess wait there."""
    roomy = [index for index, cell in candidates.items() if counts[index] < cell.capacity]
    return max(roomy) if roomy else _least_loaded(candidates, counts)


def _launched(routes: Routes, event: ExecutionLaunched) -> Routes:
    return replace(routes, open={**routes.open, event.token_digest: event.execution})


def _dispatched(routes: Routes, event: ExecutionDispatched) -> Routes:
    return replace(routes, seeds={**routes.seeds, event.execution: event.seed})


def _terminated(routes: Routes, event: ExecutionTerminated) -> Routes:
    if event.execution in routes.closing:
        return routes
    still = {token: execution for token, execution in routes.open.items() if execution != event.execution}
    return replace(routes, open=still, closing=(*routes.closing, event.execution))


def _sealed(routes: Routes, event: RecordsSealed) -> Routes:
    closing = tuple(execution for execution in routes.closing if execution != event.execution)
    seeds = _without(routes.seeds, event.execution)
    return replace(routes, closing=closing, seeds=seeds, assigned=_without(routes.assigned, event.execution))


def _evaluation_started(routes: Routes, event: EvaluationStarted) -> Routes:
    return replace(routes, evaluations={**routes.evaluations, event.evaluation: event.episodes})


def _evaluation_scored(routes: Routes, event: EvaluationScored) -> Routes:
    others = {name: cell for name, cell in routes.assigned.items() if name.rpartition("-")[0] != event.evaluation}
    return replace(routes, evaluations=_without(routes.evaluations, event.evaluation), assigned=others)


def _registered(routes: Routes, event: CellRegistered) -> Routes:
    """A new instance is in rollout, whatever its predecessor did; a known one said again changes nothing."""
    if _known(routes, event) is not None:
        return routes
    new = Cell(event.instance, event.url, event.capacity, serving=event.cell >= routes.trainers)
    return replace(routes, cells={**routes.cells, event.cell: new})


def _lost(routes: Routes, event: CellLost) -> Routes:
    return routes if _known(routes, event) is None else replace(routes, cells=_without(routes.cells, event.cell))


def _requested(routes: Routes, event: RoleTransitionRequested) -> Routes:
    return _serve(routes, event, serving=False, returning=event.to == "rollout")


def _completed(routes: Routes, event: RoleTransitionCompleted) -> Routes:
    return _serve(routes, event, serving=event.to == "rollout")


def _failed(routes: Routes, event: RoleTransitionFailed) -> Routes:
    """It keeps its former role: it serves again unless it was on its way back from training."""
    cell = _known(routes, event)
    return routes if cell is None else _serve(routes, event, serving=not cell.returning)


def _serve(routes: Routes, event: _OfCell, *, serving: bool, returning: bool = False) -> Routes:
    cell = _known(routes, event)
    if cell is None:
        return routes
    serving = serving and event.cell >= routes.trainers
    return replace(routes, cells={**routes.cells, event.cell: replace(cell, serving=serving, returning=returning)})


def _known(routes: Routes, event: _OfCell) -> Cell | None:
    """The cell that an event is about; None for a word about an instance that is not the registered one."""
    cell = routes.cells.get(event.cell)
    return cell if cell is not None and cell.instance == event.instance else None


def _assigned(routes: Routes, event: RouteAssigned) -> Routes:
    return _stick(routes, event.execution, event.cell)


def _moved(routes: Routes, event: RouteMoved) -> Routes:
    return _stick(routes, event.execution, event.to_cell)


def _stick(routes: Routes, execution: str, cell: int) -> Routes:
    """A route said after its execution ended is forgotten."""
    if execution not in routes.seeds and execution.rpartition("-")[0] not in routes.evaluations:
        return routes
    return replace(routes, assigned={**routes.assigned, execution: cell})


def _without(mapping: Mapping[Any, Any], key: object) -> dict[Any, Any]:
    return {name: value for name, value in mapping.items() if name != key}


_STEPS: dict[type[Any], Callable[[Routes, Any], Routes]] = {
    ExecutionDispatched: _dispatched,
    ExecutionLaunched: _launched,
    ExecutionTerminated: _terminated,
    RecordsSealed: _sealed,
    EvaluationStarted: _evaluation_started,
    EvaluationScored: _evaluation_scored,
    CellRegistered: _registered,
    CellLost: _lost,
    RoleTransitionRequested: _requested,
    RoleTransitionCompleted: _completed,
    RoleTransitionFailed: _failed,
    RouteAssigned: _assigned,
    RouteMoved: _moved,
}
FOLDS = frozenset(_STEPS)
"""The events that change what a proxy must know."""
