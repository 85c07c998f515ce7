"""The elastic scheduler: what is said next, given everything that the log says (design §6; paper §4).

`decide` asks one rule after another, in a fixed order, and returns the first commit that is due: a half-said dispatch
is finished before anything else can begin, and what the log already says is not due any more. What happens outside
comes in as events; `TimerFired` and `CellLost` are said by the shell.
"""

from collections.abc import Callable
from functools import partial

from gyre.core.decider import Decider, Decision
from gyre.core.dispatch import next_dispatch, next_launch
from gyre.core.plan import Plan
from gyre.core.roles import CORE, last_to_train, next_to_return, next_to_train, request, retry_due, satellites_home
from gyre.core.scheduler_state import (
    Scheduler,
    burst_done,
    evaluation_due,
    evolve,
    held,
    supply_found,
    training_open,
    whole,
)
from gyre.core.waterlevel import SUPPLY, may_retain, may_train
from schemas.dispatch import GroupDispatched, LaunchGranted
from schemas.envelope import Event
from schemas.roles import RoleTransitionRequested
from schemas.runs import EvaluationStarted, RunFinished, TimerSet
from schemas.training import BurstEnded


def scheduler(plan: Plan) -> Decider[Scheduler]:
    """The decider of one run."""
    return Decider(Scheduler(), partial(decide, plan), partial(evolve, plan))


def decide(plan: Plan, state: Scheduler) -> tuple[Decision, ...]:
    """The next commit that is due, if any is."""
    if state.phase != "running":
        return ()
    for rule in RULES:
        decision = rule(plan, state)
        if decision is not None:
            return (decision,)
    return ()


def _return_core(plan: Plan, state: Scheduler) -> Decision | None:
    """A core that was not retained goes back to rollout, unless the run is over anyway."""
    core = state.cells.at(CORE)
    over = state.bursts == plan.bursts and not evaluation_due(plan, state)
    if not state.releasing or over or core is None or not core.free:
        return None
    return _transition(state, request(state.cells, core, "rollout"))


def _evaluate(plan: Plan, state: Scheduler) -> Decision | None:
    """A due evaluation begins once every cell has come, and after a burst once the core serves again."""
    core = state.cells.at(CORE)
    quiet = core is not None and core.serves and not state.cells.moving
    ready = not burst_done(plan, state) and whole(plan, state) and quiet
    if not ready or not evaluation_due(plan, state):
        return None
    name = f"e{state.version}"
    event = EvaluationStarted(evaluation=name, version=state.version, episodes=plan.evaluation_episodes)
    return _say(state, ("evaluation", name), event, name)


def _dispatch(plan: Plan, state: Scheduler) -> Decision | None:
    """Groups up to the quota of the bursts that have ended, one commit for the group and one for each execution."""
    if held(plan, state):
        return None
    event = next_dispatch(state.dispatch, plan, plan.quota(state.bursts), state.version)
    if isinstance(event, GroupDispatched):
        return _say(state, ("group", event.group), event, event.group)
    return _say(state, ("execution", event.execution, "dispatched"), event, event.execution) if event else None


def _launch(plan: Plan, state: Scheduler) -> Decision | None:
    """The oldest queued execution, while there is room and the run has started whole."""
    if held(plan, state) or not whole(plan, state):
        return None
    execution = next_launch(state.dispatch, state.cells.capacity)
    if execution is None:
        return None
    return _say(state, ("execution", execution, "granted"), LaunchGranted(execution=execution), execution)


def _return_satellites(plan: Plan, state: Scheduler) -> Decision | None:
    """After the burst's last update the satellites go back to rollout."""
    satellite = next_to_return(state.cells, plan.cells) if burst_done(plan, state) else None
    return _transition(state, request(state.cells, satellite, "rollout")) if satellite else None


def _relieve(plan: Plan, state: Scheduler) -> Decision | None:
    """A cell died and what runs has too few engines: the last satellite to train discards its share and returns."""
    if state.cells.moving or state.cells.capacity >= len(state.dispatch.running):
        return None
    satellite = last_to_train(state.cells, plan.cells)
    return _transition(state, request(state.cells, satellite, "rollout")) if satellite else None


def _end_burst(plan: Plan, state: Scheduler) -> Decision | None:
    """After the publication: whether the core stays in training, with w as it is before the next dispatch."""
    home = satellites_home(state.cells, plan.cells)
    if not burst_done(plan, state) or state.version != state.steps or not home:
        return None
    event = BurstEnded(burst=state.bursts + 1, version=state.version, retained=_retained(plan, state))
    return _say(state, ("run",), event, f"burst-{event.burst}")


def _retained(plan: Plan, state: Scheduler) -> bool:
    core = state.cells.at(CORE)
    if core is None or not core.trains or state.steps == plan.steps or evaluation_due(plan, state):
        return False
    pending = (plan.quota(state.bursts + 1) - plan.quota(state.bursts)) * plan.executions
    enough = len(state.dispatch.ready) >= plan.supply_needed
    return enough and may_retain(state.dispatch.waterlevel, pending, state.cells.capacity)


def _count_supply(plan: Plan, state: Scheduler) -> Decision | None:
    """The supply is there and a cell could use it: it now has to hold for tau."""
    if state.supply.timer or not training_open(plan, state) or next_to_train(state.cells, plan.cells) is None:
        return None
    if supply_found(plan, state) < plan.supply_needed:
        return None
    name = f"{SUPPLY}{state.supply.timers + 1}"
    return _say(state, ("timer",), TimerSet(timer=name, seconds=plan.tau_seconds), name)


def _train(plan: Plan, state: Scheduler) -> Decision | None:
    """The next cell goes to training: the supply has held for tau, and what remains covers w."""
    cell = next_to_train(state.cells, plan.cells)
    if cell is None or not state.supply.fired or not training_open(plan, state):
        return None
    if not may_train(state.dispatch.waterlevel, state.cells.capacity, cell.capacity):
        return None
    return _transition(state, request(state.cells, cell, "train"))


def _rest(_: Plan, state: Scheduler) -> Decision | None:
    """A cell whose transition was rolled back rests before it is asked again."""
    timer = retry_due(state.cells)
    return _say(state, ("timer",), timer, timer.timer) if timer else None


def _finish(plan: Plan, state: Scheduler) -> Decision | None:
    """Everything dispatched has terminated, everything trained is published, everything published is evaluated."""
    counts = state.dispatch
    everything = plan.total_groups * plan.executions
    done = state.bursts == plan.bursts and counts.dispatched == counts.terminated == everything
    if not done or state.evaluating or evaluation_due(plan, state):
        return None
    event = RunFinished(
        steps=state.steps, dispatched=counts.dispatched, launched=counts.launched, terminated=counts.terminated
    )
    return _say(state, ("run",), event, "run")


RULES: tuple[Callable[[Plan, Scheduler], Decision | None], ...] = (
    _return_core,
    _evaluate,
    _dispatch,
    _launch,
    _return_satellites,
    _relieve,
    _end_burst,
    _train,
    _count_supply,
    _rest,
    _finish,
)


def _say(state: Scheduler, subject: tuple[str, ...], event: Event, correlation: str) -> Decision:
    return Decision(subject, (event,), correlation, state.cause)


def _transition(state: Scheduler, event: RoleTransitionRequested) -> Decision:
    return _say(state, ("cell", str(event.cell)), event, event.transition)
