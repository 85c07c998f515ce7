"""What the scheduler knows: a fold over EV alone, and what follows from it (design §6).

Bounded: executions, groups and instances that are done with are forgotten.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from gyre.core.dispatch import Dispatch, evolve_dispatch
from gyre.core.plan import Plan
from gyre.core.roles import CORE, RETRY, RETRY_SECONDS, Cells, evolve_cells
from gyre.core.waterlevel import Supply, supply
from schemas.dispatch import (
    ExecutionDispatched,
    ExecutionLaunched,
    ExecutionTerminated,
    GroupDispatched,
    LaunchGranted,
)
from schemas.envelope import Event
from schemas.rewards import GroupReady
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import EvaluationScored, EvaluationStarted, RunFinished, RunStarted, TimerFired, TimerSet
from schemas.training import BatchOpened, BurstEnded, GroupAssigned, OptimizerStepped, StepAborted, WeightsPublished

Phase = Literal["waiting", "running", "aborted", "finished"]

_DISPATCH = (
    GroupDispatched,
    ExecutionDispatched,
    LaunchGranted,
    ExecutionLaunched,
    ExecutionTerminated,
    GroupReady,
    GroupAssigned,
)
_CELLS = (
    CellRegistered,
    CellLost,
    RoleTransitionRequested,
    RoleTransitionCompleted,
    RoleTransitionFailed,
)
_RUN = (RunStarted, OptimizerStepped, WeightsPublished, BurstEnded, EvaluationStarted, EvaluationScored)
_OWN = (
    GroupDispatched,
    ExecutionDispatched,
    LaunchGranted,
    RoleTransitionRequested,
    TimerSet,
    BurstEnded,
    EvaluationStarted,
    RunFinished,
)
_NEW_COUNT = (BatchOpened, OptimizerStepped, CellLost, RoleTransitionCompleted, RoleTransitionFailed)
"""After these the supply has to hold for tau afresh: a batch starts, or a transition ends."""
_KNOWN = frozenset((*_DISPATCH, *_CELLS, *_RUN, *_OWN, *_NEW_COUNT, TimerFired, StepAborted))


@dataclass(frozen=True, slots=True)
class Scheduler:
    """All that the scheduler knows; bounded by what is under way."""

    phase: Phase = "waiting"
    cause: int = 0
    """Stream sequence of the last thing that happened outside."""
    dispatch: Dispatch = field(default_factory=Dispatch)
    cells: Cells = field(default_factory=Cells)
    supply: Supply = field(default_factory=Supply)
    steps: int = 0
    """Optimizer updates done, v_t of the next step."""
    version: int = 0
    """Published version."""
    bursts: int = 0
    """Bursts ended."""
    releasing: bool = False
    """The core trains still, but was not retained: it has to go back to rollout."""
    evaluating: str = ""
    """The evaluation that is open; "": none."""
    evaluated: int = -1
    """Version of the latest evaluation; -1: none yet."""


def evolve(plan: Plan, state: Scheduler, sequence: int, event: Event) -> Scheduler:
    """Fold one event."""
    if type(event) not in _KNOWN:
        return state
    folded = _folded(plan, state, event)
    if folded.supply.timer and (isinstance(event, _NEW_COUNT) or supply_found(plan, folded) < plan.supply_needed):
        folded = replace(folded, supply=folded.supply.broken())
    return folded if isinstance(event, _OWN) else replace(folded, cause=sequence)


def _folded(plan: Plan, state: Scheduler, event: Event) -> Scheduler:
    if isinstance(event, _DISPATCH):
        return replace(state, dispatch=evolve_dispatch(state.dispatch, event, plan.executions))
    if isinstance(event, _CELLS):
        return _cells_moved(state, evolve_cells(state.cells, event))
    if isinstance(event, TimerSet):
        started = state.supply.started(event.timer)
        return replace(state, supply=started, cells=evolve_cells(state.cells, event))
    if isinstance(event, TimerFired):
        rang = state.supply.rang(event.timer)
        return replace(state, supply=rang, cells=evolve_cells(state.cells, event))
    if isinstance(event, StepAborted):
        return replace(state, phase="aborted")
    if isinstance(event, RunFinished):
        return replace(state, phase="finished")
    return _run_moved(state, event)


def _cells_moved(state: Scheduler, cells: Cells) -> Scheduler:
    core = cells.at(CORE)
    return replace(state, cells=cells, releasing=state.releasing and core is not None and core.trains)


def _run_moved(state: Scheduler, event: Event) -> Scheduler:
    match event:
        case RunStarted() if state.phase == "waiting":
            return replace(state, phase="running")
        case OptimizerStepped(step=step):
            return replace(state, steps=max(state.steps, step))
        case WeightsPublished(version=version):
            return replace(state, version=max(state.version, version))
        case BurstEnded(burst=burst, retained=retained) if burst == state.bursts + 1:
            core = state.cells.at(CORE)
            return replace(state, bursts=burst, releasing=not retained and core is not None and core.trains)
        case EvaluationStarted(evaluation=evaluation, version=version):
            return replace(state, evaluating=evaluation, evaluated=version)
        case EvaluationScored(evaluation=evaluation) if evaluation == state.evaluating:
            return replace(state, evaluating="")
    return state


def armed(plan: Plan, state: Scheduler) -> tuple[tuple[str, float], ...]:
    """Timers that were set and still matter, with their length in seconds: a new shell starts them over."""
    running = [(state.supply.timer, plan.tau_seconds)] if state.supply.timer and not state.supply.fired else []
    resting = [cell.transition for cell in state.cells.members if cell.standing == "resting"]
    return (*running, *((f"{RETRY}{transition}", RETRY_SECONDS) for transition in resting))


def whole(plan: Plan, state: Scheduler) -> bool:
    """Whether every cell has registered once: the run starts with all of them."""
    count = plan.cells + plan.standalone
    return sum(cell.index < count for cell in state.cells.members) == count


def burst_done(plan: Plan, state: Scheduler) -> bool:
    """Whether the burst's last update is done and its end is not yet said."""
    return state.bursts < plan.bursts and state.steps == plan.burst_last(state.bursts)


def training_open(plan: Plan, state: Scheduler) -> bool:
    """Whether cells may go to training at all: in mid-burst, and not while an evaluation measures the policy."""
    between = burst_done(plan, state) or state.bursts == plan.bursts or state.releasing
    return not between and not held(plan, state) and whole(plan, state)


def held(plan: Plan, state: Scheduler) -> bool:
    """An evaluation is open or about to be: nothing is dispatched or launched, and no cell goes to training."""
    return bool(state.evaluating) or evaluation_due(plan, state)


def evaluation_due(plan: Plan, state: Scheduler) -> bool:
    """Before the first dispatch, at the first publication after each `every` steps, and after the last step."""
    if plan.evaluation_episodes == 0 or state.evaluating:
        return False
    if state.evaluated < 0:
        return True
    every, new = plan.evaluation_every, state.version > state.evaluated
    passed = every > 0 and state.version // every > state.evaluated // every
    return new and (passed or state.version == plan.steps)


def supply_found(plan: Plan, state: Scheduler) -> int:
    """Groups that a further cell would find to train on now."""
    core = state.cells.at(CORE)
    assigned = min(max(state.dispatch.assigned - state.steps * plan.groups, 0), plan.groups)
    core_trains = core is not None and core.trains
    return supply(len(state.dispatch.ready), assigned, plan.groups, core_trains=core_trains)
