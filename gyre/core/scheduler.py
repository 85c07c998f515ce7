"""The scheduler: what is said next, given everything that the log says (design §6; paper §4).

`decide` asks one rule after another, in a fixed order, and returns the first commit that is due: a half-said dispatch
is finished before anything else can begin, and what the log already says is not due any more. What happens outside
comes in as events; `TimerFired` and `CellLost` are said by the shell. Which rules are asked is all that distinguishes
one kind of schedule from another.
"""

from collections.abc import Callable, Mapping
from functools import partial

from gyre.core import placement
from gyre.core.decider import Decider, Decision
from gyre.core.dispatch import next_cancellation, next_dispatch, next_launch
from gyre.core.plan import Kind, Plan
from gyre.core.roles import CORE, satellites_home
from gyre.core.scheduler_state import (
    Scheduler,
    burst_done,
    evaluation_due,
    evolve,
    groups_due,
    held,
    initial,
    say,
    whole,
)
from schemas.dispatch import CancellationRequested, GroupDispatched, LaunchGranted
from schemas.runs import EvaluationStarted, RunFinished
from schemas.training import BurstEnded

Rule = Callable[[Plan, Scheduler], Decision | None]


def scheduler(plan: Plan) -> Decider[Scheduler]:
    """The decider of one run."""
    return Decider(initial(plan), partial(decide, plan), partial(evolve, plan))


def decide(plan: Plan, state: Scheduler) -> tuple[Decision, ...]:
    """The next commit that is due, if any is."""
    if state.phase != "running":
        return ()
    for rule in RULES[plan.kind][burst_done(plan, state)]:
        decision = rule(plan, state)
        if decision is not None:
            return (decision,)
    return ()


def _evaluate(plan: Plan, state: Scheduler) -> Decision | None:
    """A due evaluation begins once every cell has come, and after a burst once the core serves again."""
    if not plan.evaluation_episodes or not evaluation_due(plan, state):
        return None
    if state.cells.moving or not whole(plan, state):
        return None
    core = state.cells.at(CORE)
    if plan.kind != "async" and (core is None or not core.serves):
        return None
    name = f"e{state.version}"
    event = EvaluationStarted(evaluation=name, version=state.version, episodes=plan.evaluation_episodes)
    return say(state, ("evaluation", name), event, name)


def _dispatch(plan: Plan, state: Scheduler) -> Decision | None:
    """Groups up to what is due by now, one commit for the group and one for each execution."""
    event = next_dispatch(state.dispatch, plan, groups_due(plan, state), state.version)
    if event is None or held(plan, state):
        return None
    if isinstance(event, GroupDispatched):
        return say(state, ("group", event.group), event, event.group)
    return say(state, ("execution", event.execution, "dispatched"), event, event.execution)


def _cancel(_: Plan, state: Scheduler) -> Decision | None:
    """The surplus of a group that has N valid scores is told to end."""
    execution = next_cancellation(state.dispatch) if state.dispatch.closing else None
    if execution is None:
        return None
    return say(state, ("execution", execution, "cancel"), CancellationRequested(execution=execution), execution)


def _launch(plan: Plan, state: Scheduler) -> Decision | None:
    """A queued execution, while there is room and the run has started whole."""
    execution = next_launch(state.dispatch, state.cells.capacity)
    if execution is None or held(plan, state) or not whole(plan, state):
        return None
    return say(state, ("execution", execution, "granted"), LaunchGranted(execution=execution), execution)


def _end_burst(plan: Plan, state: Scheduler) -> Decision | None:
    """After the publication: whether the core stays in training, with w as it is before the next dispatch."""
    if state.version != state.steps:
        return None
    if plan.kind != "async" and not satellites_home(state.cells, plan.cells):
        return None
    retained = placement.retained(plan, state)
    event = BurstEnded(burst=state.bursts + 1, version=state.version, retained=retained)
    return say(state, ("run",), event, f"burst-{event.burst}")


def _finish(plan: Plan, state: Scheduler) -> Decision | None:
    """Everything dispatched has terminated, everything trained is published, everything published is evaluated."""
    counts = state.dispatch
    everything = plan.total_groups * plan.size
    if state.bursts != plan.bursts or not counts.dispatched == counts.terminated == everything:
        return None
    if state.evaluating or evaluation_due(plan, state):
        return None
    event = RunFinished(
        steps=state.steps, dispatched=counts.dispatched, launched=counts.launched, terminated=counts.terminated
    )
    return say(state, ("run",), event, "run")


def _kind(
    first: tuple[Rule, ...] = (),
    before_launch: tuple[Rule, ...] = (),
    within: tuple[Rule, ...] = (),
    between: tuple[Rule, ...] = (),
) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """The rules within a burst and between two, what is due first coming first."""
    return (
        (*first, _evaluate, _dispatch, _cancel, *before_launch, _launch, *within, placement.rest, _finish),
        (*first, _dispatch, _cancel, _launch, *between, _end_burst, placement.rest),
    )


RULES: Mapping[Kind, tuple[tuple[Rule, ...], tuple[Rule, ...]]] = {
    "elastic": _kind(
        first=(placement.return_core,),
        within=(placement.relieve, placement.train_next, placement.count_supply),
        between=(placement.return_satellites, placement.relieve),
    ),
    "colocate": _kind(
        first=(placement.return_core,),
        before_launch=(placement.follow_pool,),
        within=(placement.train_pool, placement.count_supply),
        between=(placement.return_satellites,),
    ),
    "async": _kind(first=(placement.man_trainers,)),
}
"""Which are asked by each kind, while a burst is on and when its last update is done but its end is not said."""
