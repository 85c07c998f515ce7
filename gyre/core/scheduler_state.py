"""What the scheduler knows: a fold over EV alone, and what follows from it (design §6).

Bounded: executions, groups and instances that are done with are forgotten.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gyre.core.decider import Decision
from gyre.core.dispatch_state import DISPATCHING, Dispatch
from gyre.core.plan import Plan
from gyre.core.roles import CORE, RETRY, RETRY_SECONDS, Cells, evolve_cells
from gyre.core.waterlevel import Supply, burst_supplied, supply
from schemas.dispatch import CancellationRequested, ExecutionDispatched, GroupDispatched, LaunchGranted
from schemas.envelope import Event
from schemas.rewards import GroupReady, RewardAssigned
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import EvaluationScored, EvaluationStarted, RunFinished, RunStarted, TimerFired, TimerSet
from schemas.training import (
    BatchOpened,
    BurstEnded,
    GroupAssigned,
    OptimizerStepped,
    StepAborted,
    WeightsPublished,
)

Phase = Literal["waiting", "running", "aborted", "finished"]

_OWN = frozenset(
    (
        GroupDispatched,
        ExecutionDispatched,
        LaunchGranted,
        CancellationRequested,
        RoleTransitionRequested,
        TimerSet,
        BurstEnded,
        EvaluationStarted,
        RunFinished,
    )
)
_NEW_COUNT = frozenset((BatchOpened, OptimizerStepped, CellLost, RoleTransitionCompleted, RoleTransitionFailed))
"""After these the supply has to hold for tau afresh: a batch starts, or a transition ends."""
_SUPPLY: frozenset[type[Any]] = frozenset((GroupReady, GroupAssigned))
"""Of the events about groups and executions, those that change what there is to train on."""


@dataclass(slots=True)
class Scheduler:
    """All that the scheduler knows; bounded by what is under way.

    Nobody changes one: a new one is made for each event. It is not frozen because one that is costs three times as much
    to make, and that is most of what folding an event costs.
    """

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


def initial(plan: Plan) -> Scheduler:
    """Nothing happened yet."""
    return Scheduler(cells=Cells(trainers=plan.trainers))


def folds(plan: Plan) -> frozenset[type[Any]]:
    """The events that change what the scheduler of such a run knows; scores only where they close groups."""
    return FOLDS if plan.oversample else FOLDS - {RewardAssigned}


def evolve(plan: Plan, state: Scheduler, sequence: int, event: Event) -> Scheduler:
    """Fold one event."""
    kind = type(event)
    cause = state.cause if kind in _OWN else sequence
    if (move := DISPATCHING.get(kind)) is not None:
        if kind is RewardAssigned and not plan.oversample:
            return state
        folded = Scheduler(  # by position: this is done for every event of every execution
            state.phase,
            cause,
            move(plan, state.dispatch, event),
            state.cells,
            state.supply,
            state.steps,
            state.version,
            state.bursts,
            state.releasing,
            state.evaluating,
            state.evaluated,
        )
        if kind not in _SUPPLY:
            return folded
    elif isinstance(event, CellRegistered) and event.cell >= plan.cells + plan.standalone:
        return state  # no cell of this run: it has no place in C_R, and its number no bit
    elif (handler := _HANDLERS.get(kind)) is not None:
        folded = replace(handler(state, event), cause=cause)
    else:
        return state
    if folded.supply.timer and (kind in _NEW_COUNT or not supplied(plan, folded)):
        folded = replace(folded, supply=folded.supply.broken())
    return folded


def _cells_moved(state: Scheduler, event: Any) -> Scheduler:
    cells = evolve_cells(state.cells, event)
    core = cells.at(CORE)
    return replace(state, cells=cells, releasing=state.releasing and core is not None and core.trains)


def _timer_set(state: Scheduler, event: TimerSet) -> Scheduler:
    return replace(state, supply=state.supply.started(event.timer), cells=evolve_cells(state.cells, event))


def _timer_fired(state: Scheduler, event: TimerFired) -> Scheduler:
    return replace(state, supply=state.supply.rang(event.timer), cells=evolve_cells(state.cells, event))


def _started(state: Scheduler, _: RunStarted) -> Scheduler:
    return replace(state, phase="running") if state.phase == "waiting" else state


def _stepped(state: Scheduler, event: OptimizerStepped) -> Scheduler:
    return replace(state, steps=max(state.steps, event.step))


def _published(state: Scheduler, event: WeightsPublished) -> Scheduler:
    return replace(state, version=max(state.version, event.version))


def _burst_ended(state: Scheduler, event: BurstEnded) -> Scheduler:
    if event.burst != state.bursts + 1:
        return state
    core = state.cells.at(CORE)
    return replace(state, bursts=event.burst, releasing=not event.retained and core is not None and core.trains)


def _evaluation_started(state: Scheduler, event: EvaluationStarted) -> Scheduler:
    return replace(state, evaluating=event.evaluation, evaluated=event.version)


def _evaluation_scored(state: Scheduler, event: EvaluationScored) -> Scheduler:
    return replace(state, evaluating="") if event.evaluation == state.evaluating else state


_HANDLERS: Mapping[type[Any], Callable[[Scheduler, Any], Scheduler]] = {
    RunStarted: _started,
    CellRegistered: _cells_moved,
    CellLost: _cells_moved,
    RoleTransitionRequested: _cells_moved,
    RoleTransitionCompleted: _cells_moved,
    RoleTransitionFailed: _cells_moved,
    TimerSet: _timer_set,
    TimerFired: _timer_fired,
    BatchOpened: lambda state, _: state,
    OptimizerStepped: _stepped,
    WeightsPublished: _published,
    BurstEnded: _burst_ended,
    EvaluationStarted: _evaluation_started,
    EvaluationScored: _evaluation_scored,
    StepAborted: lambda state, _: replace(state, phase="aborted"),
    RunFinished: lambda state, _: replace(state, phase="finished"),
}
FOLDS = frozenset(DISPATCHING) | frozenset(_HANDLERS)
"""The events that can change what a scheduler knows."""


def say(state: Scheduler, subject: tuple[str, ...], event: Event, correlation: str) -> Decision:
    """A commit of one event, due because of the last thing that happened outside."""
    return Decision(subject, (event,), correlation, state.cause)


def armed(plan: Plan, state: Scheduler) -> tuple[tuple[str, float], ...]:
    """Timers that were set and still matter, with their length in seconds: a new shell starts them over."""
    running = [(state.supply.timer, plan.tau_seconds)] if state.supply.timer and not state.supply.fired else []
    resting = [cell.transition for cell in state.cells.members if cell.standing == "resting"]
    return (*running, *((f"{RETRY}{transition}", RETRY_SECONDS) for transition in resting))


def whole(plan: Plan, state: Scheduler) -> bool:
    """Whether every cell has registered once: the run starts with all of them."""
    everyone = (1 << plan.cells + plan.standalone) - 1
    return state.cells.known & everyone == everyone


def burst_done(plan: Plan, state: Scheduler) -> bool:
    """Whether the burst's last update is done and its end is not yet said."""
    return state.steps == plan.burst_last(state.bursts) and state.bursts < plan.bursts


def training_open(plan: Plan, state: Scheduler) -> bool:
    """Whether cells may go to training at all: in mid-burst, and not while an evaluation measures the policy."""
    between = burst_done(plan, state) or state.bursts == plan.bursts or state.releasing
    return not between and not held(plan, state) and whole(plan, state)


def held(plan: Plan, state: Scheduler) -> bool:
    """An evaluation is open or about to be: nothing is dispatched or launched, and no cell goes to training."""
    return plan.evaluation_episodes > 0 and (bool(state.evaluating) or evaluation_due(plan, state))


def evaluation_due(plan: Plan, state: Scheduler) -> bool:
    """Before the first dispatch, at the first publication after each `every` steps, and after the last step."""
    if plan.evaluation_episodes == 0 or state.evaluating:
        return False
    if state.evaluated < 0:
        return True
    every, new = plan.evaluation_every, state.version > state.evaluated
    passed = every > 0 and state.version // every > state.evaluated // every
    return new and (passed or state.version == plan.steps)


def groups_due(plan: Plan, state: Scheduler) -> int:
    """Groups to be dispatched in all by now: a quota for each burst, or one for each that became ready."""
    if state.dispatch.groups == plan.total_groups:
        return plan.total_groups
    if plan.dispatching == "boundary":
        return plan.quotas[state.bursts]
    return min(plan.depth + state.dispatch.ready + state.dispatch.assigned, plan.total_groups)


def dispatch_version(plan: Plan, state: Scheduler) -> int:
    """What the next group is labelled with, v_d: the published version that its dispatch goes by."""
    if plan.dispatching == "boundary" and plan.group_version == "burst":
        return plan.burst_version(state.bursts)
    return state.version


def supplied(plan: Plan, state: Scheduler) -> bool:
    """Whether a further cell would find enough to train on now."""
    core_trains = bool(state.cells.training >> CORE & 1)
    ready, trained = state.dispatch.ready, state.steps * plan.groups
    assigned = min(max(state.dispatch.assigned - trained, 0), plan.groups)
    if plan.stream:
        return supply(ready, assigned, plan.groups, core_trains=core_trains) >= plan.supply_needed
    left = plan.burst_last(state.bursts) * plan.groups - trained
    return burst_supplied(ready, assigned, left, core_trains=core_trains)
