"""What one cell does next: a pure choice from what the log says and what the process holds (design §6, §8).

The log decides who counts; the process only knows which weights and which gradient lie in its memory. `choose`
compares the two and names the one next thing; the shell does it, says it, folds, and asks again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gyre.core import ledger
from gyre.core.ledger import CORE, Ledger, Reduction
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import EvaluationScored, EvaluationStarted, RunStarted
from schemas.training import (
    BatchOpened,
    ExecutionStats,
    MicroStepCompleted,
    OptimizerStepped,
    ReductionOpened,
    WeightsPublished,
)

Deed = Literal[
    "move", "serve", "discard", "join", "claim", "advance", "drain", "reduce", "sum", "step", "publish", "wait"
]


@dataclass(frozen=True, slots=True)
class View:
    """What a cell folds from EV: the ledger, and which weights are which."""

    steps: int
    """S"""
    burst: int
    """mu"""
    ledger: Ledger = field(default_factory=Ledger)
    weights: WeightsRef | None = None
    """Of the latest optimizer update; version 0 before the first."""
    optimizer: WeightsRef | None = None
    """None before the first update."""
    published: int = 0
    published_weights: WeightsRef | None = None
    batch: int = 0
    """Step of the open batch; 0 before the first."""
    engines: dict[int, CellRegistered] = field(default_factory=dict)
    """The latest registration of each cell: instance and URL of its engine."""
    requests: dict[int, RoleTransitionRequested] = field(default_factory=dict)
    """The transition each cell still has to make."""
    stats: dict[int, tuple[ExecutionStats, ...]] = field(default_factory=dict)
    """Micro-step -> what its latest completion found, this step."""
    opened: ReductionOpened | None = None
    """The latest of this step."""
    trainers: int = 0
    """Cells 0..trainers-1 train for good."""
    evaluating: str = ""
    """The evaluation that is open."""
    measured: int = 0
    """The latest update when it began: what came later is not published before it is scored."""

    @property
    def burst_done(self) -> bool:
        """Whether the latest update ended a burst that is not published yet."""
        done = self.ledger.version
        return done > self.published and (done % self.burst == 0 or done == self.steps)

    @property
    def publishable(self) -> bool:
        """Whether such a burst may be published: an evaluation that was begun before is measured on one policy.

        One that reaches the log once the update is durable, as engines may hold it by then, begins after it instead.
        """
        return self.burst_done and not (self.evaluating and self.ledger.version > self.measured)

    @property
    def target(self) -> tuple[int, WeightsRef | None]:
        """What a rollout engine is to serve: a burst's last update as soon as it is durable and may be published.

        The core says WeightsPublished once every engine has it: what is dispatched after that is sampled from it.
        """
        return (self.ledger.version, self.weights) if self.publishable else (self.published, self.published_weights)


@dataclass(frozen=True, slots=True)
class Held:
    """What lies in this process."""

    cell: int
    instance: str
    engine_version: int
    """-1 while the engine is released."""
    trainer_version: int
    """-1 while nothing is loaded."""
    step: int = 0
    """Step that it joined last, and that its accumulated gradient is of."""
    accumulated: dict[int, int] = field(default_factory=dict)
    """Micro-step -> its claim: what the accumulated gradient is the sum of."""
    in_hand: dict[int, int] = field(default_factory=dict)
    """Micro-step -> its claim: what is begun and not completed."""
    moving: bool = False
    """Whether some of that ends by itself; what else is in hand rests in the pipeline until more comes."""
    summed_epoch: int = 0
    """Epoch of the reduction whose sum is in memory; 0: none."""
    tried_epoch: int = 0
    """Epoch of the last reduction attempted."""


def evolve(view: View, sequence: int, event: Event) -> View:
    """Fold one event."""
    held = ledger.evolve(view.ledger, sequence, event)
    view = view if held is view.ledger else replace(view, ledger=held)
    handler = _HANDLERS.get(type(event))
    return view if handler is None else handler(view, event)


def _started(view: View, event: RunStarted) -> View:
    return replace(view, weights=event.weights, published_weights=event.weights)


def _stepped(view: View, event: OptimizerStepped) -> View:
    return replace(view, weights=event.weights, optimizer=event.optimizer, stats={}, opened=None)


def _published(view: View, event: WeightsPublished) -> View:
    return replace(view, published=event.version, published_weights=event.weights)


def _evaluation_started(view: View, event: EvaluationStarted) -> View:
    return replace(view, evaluating=event.evaluation, measured=view.ledger.version)


def _evaluation_scored(view: View, event: EvaluationScored) -> View:
    return replace(view, evaluating="") if event.evaluation == view.evaluating else view


def _batch(view: View, event: BatchOpened) -> View:
    return replace(view, batch=event.step)


def _requested(view: View, event: RoleTransitionRequested) -> View:
    """One that reaches the log after its instance was replaced or lost asks nobody: nobody would ever answer it."""
    now = view.ledger.cells.get(event.cell)
    asked = now is not None and now.alive and now.instance == event.instance
    return replace(view, requests=view.requests | {event.cell: event}) if asked else view


def _registered(view: View, event: CellRegistered) -> View:
    return replace(_settled(view, event.cell), engines=view.engines | {event.cell: event})


def serves(view: View, cell: int, instance: str) -> bool:
    """Whether this instance is cell `cell` still, and in rollout."""
    now = view.ledger.cells.get(cell)
    return now is not None and now.alive and now.instance == instance and not now.trains


def _completed(view: View, event: MicroStepCompleted) -> View:
    current = event.step == view.ledger.step
    return replace(view, stats=view.stats | {event.micro_step: event.stats}) if current else view


def _opened(view: View, event: ReductionOpened) -> View:
    return replace(view, opened=event) if event.step == view.ledger.step else view


def _moved(view: View, event: RoleTransitionCompleted | RoleTransitionFailed) -> View:
    """A word of an instance that was lost may come late: it settles nothing that was asked of the next one."""
    request = view.requests.get(event.cell)
    return _settled(view, event.cell) if request is not None and request.transition == event.transition else view


def _lost(view: View, event: CellLost) -> View:
    """As late may come the loss of an instance that was replaced."""
    request = view.requests.get(event.cell)
    return _settled(view, event.cell) if request is not None and request.instance == event.instance else view


def _settled(view: View, cell: int) -> View:
    return replace(view, requests={key: value for key, value in view.requests.items() if key != cell})


def choose(view: View, held: Held) -> Deed:
    """The one thing to do next; "wait" for the log to say more."""
    request = view.requests.get(held.cell)
    if request is not None and request.instance == held.instance:
        return "move"
    me = view.ledger.cells.get(held.cell)
    if me is None or me.instance != held.instance or not me.alive:
        return "wait"
    if held.cell == CORE and view.burst_done and not held.accumulated:
        return "publish" if view.publishable and _satellites_home(view) else "wait"
    if not me.trains:
        return "serve" if held.engine_version not in (-1, view.target[0]) else "wait"
    return _training(view, held)


def _satellites_home(view: View) -> bool:
    """Whether no satellite trains or moves, but for those that train for good."""
    first = max(view.trainers, CORE + 1)
    moving = any(cell >= first for cell in view.requests)
    return not moving and not any(each.trains for key, each in view.ledger.cells.items() if key >= first)


def _training(view: View, held: Held) -> Deed:
    state = view.ledger
    joined = state.joined.get(held.cell) == held.instance
    if _differs(state, held):
        return "discard"
    if not joined:
        return "join" if _may_join(view, held) else "wait"
    if state.reduced:
        return "step" if held.cell == CORE and held.summed_epoch == state.epoch else "wait"
    if state.reduction is not None and state.reduction.intact:
        return _reducing(state.reduction, held)
    if held.cell == CORE and ledger.reduction_due(state) is not None:
        return "reduce"
    if state.unclaimed and ledger.may_claim(state, held.cell, held.instance):
        return "claim"
    return _ending(state, held)


def _ending(state: Ledger, held: Held) -> Deed:
    """What to do with what is in hand while nothing can be claimed; what is lost still comes to be claimed again."""
    if held.moving:
        return "advance"
    return "drain" if held.in_hand and state.total is not None and not state.missing else "wait"


def _reducing(reduction: Reduction, held: Held) -> Deed:
    if held.instance not in reduction.instances or held.summed_epoch == reduction.epoch:
        return "wait"
    if held.tried_epoch == reduction.epoch:
        return "reduce" if held.cell == CORE else "wait"
    return "sum"


def _may_join(view: View, held: Held) -> bool:
    """Cells join in their order, the core first; a step is joined once its batch is open and until its window closes.

    So those who sum are a prefix of the cells that train, for which a communication group is formed once.
    """
    state = view.ledger
    first = held.cell == CORE or CORE in state.joined
    before = (other for other in state.cells if other < held.cell and _trains_on(view, other))
    in_turn = first and all(other in state.joined for other in before)
    return in_turn and view.batch == state.step and not state.window_closed and not state.reduced


def _trains_on(view: View, cell: int) -> bool:
    known = view.ledger.cells[cell]
    return known.alive and known.trains and cell not in view.requests


def _differs(state: Ledger, held: Held) -> bool:
    """Whether the gradient in memory is another than the ledger counts; what was summed already counts no more."""
    if state.joined.get(held.cell) != held.instance:
        return bool(held.accumulated or held.in_hand)
    fenced = any(not _claimed(state, held, *each) for each in held.in_hand.items())
    return (fenced or held.accumulated != _mine(state, held)) and not state.reduced


def owes(view: View, held: Held) -> bool:
    """Whether it must be said that the gradient in memory is dropped: the step that it is of is still to be reduced."""
    state = view.ledger
    counted = state.joined.get(held.cell) == held.instance and bool(_mine(state, held))
    return held.step == state.step and not state.reduced and (counted or bool(held.accumulated or held.in_hand))


def _claimed(state: Ledger, held: Held, micro_step: int, claim: int) -> bool:
    """Whether the ledger still counts a claim of this cell's."""
    slot = state.slots.get(micro_step)
    return slot is not None and (slot.status, slot.cell, slot.claim) == ("claimed", held.cell, claim)


def _mine(state: Ledger, held: Held) -> dict[int, int]:
    return {each.micro_step: each.claim for each in ledger.live(state) if each.cell == held.cell}


def reduction(view: View) -> Reduction | None:
    """What the core opens now: what is due, or the one under way again under a new epoch after its sum failed."""
    due = ledger.reduction_due(view.ledger)
    under_way = view.ledger.reduction
    if due is None and under_way is not None and not view.ledger.reduced:
        return replace(under_way, epoch=view.ledger.epoch + 1)
    return due


def broken(view: View, opened: ReductionOpened) -> bool:
    """Whether a reduction can no longer come about: a member lost its share, or another one was opened.

    One that is settled is not broken, however far the log has gone on: a member that is late still gets its sum.
    """
    state = view.ledger
    if state.step != opened.step or state.reduced:
        return False
    current = state.reduction
    return current is None or not current.intact or current.epoch != opened.epoch


def batch_loss(found: Iterable[Iterable[ExecutionStats]], groups: int, executions: int) -> float:
    """The batch's loss, from what the completions of its micro-steps found.

    ``1 / (B N) * sum over executions of (1 / L_i) * sum of l_u over their targets``   (design §7)
    """
    losses: dict[str, float] = {}
    targets: dict[str, int] = {}
    for each in (stats for one in found for stats in one):
        losses[each.execution] = losses.get(each.execution, 0.0) + each.loss
        targets[each.execution] = targets.get(each.execution, 0) + each.targets
    return sum(losses[name] / targets[name] for name in losses if targets[name]) / (groups * executions)


_HANDLERS: Mapping[type[Any], Callable[[View, Any], View]] = {
    RunStarted: _started,
    OptimizerStepped: _stepped,
    WeightsPublished: _published,
    BatchOpened: _batch,
    RoleTransitionRequested: _requested,
    RoleTransitionCompleted: _moved,
    RoleTransitionFailed: _moved,
    CellLost: _lost,
    CellRegistered: _registered,
    MicroStepCompleted: _completed,
    ReductionOpened: _opened,
    EvaluationStarted: _evaluation_started,
    EvaluationScored: _evaluation_scored,
}
FOLDS = frozenset(_HANDLERS) | ledger.FOLDS
"""The events that change a cell's view."""
