"""The scheduler: what is said next, given everything that the log says (design §6; paper §4).

`decide` asks one rule after another, in a fixed order, and returns the first commit that is due: a half-said dispatch
is finished before anything else can begin, and what the log already says is not due any more. What happens outside
comes in as events; `TimerFired` and `CellLost` are said by the shell. Which rules are asked is all that distinguishes
one kind of schedule from another.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from gyre.core import placement
from gyre.core.decider import Decider, Decision
from gyre.core.dispatch import next_cancellation, next_execution, next_group, next_launch
from gyre.core.plan import Kind, Plan
from gyre.core.roles import CORE, satellites_home
from gyre.core.scheduler_state import (
    Scheduler,
    burst_done,
    dispatch_version,
    evaluation_due,
    evolve,
    groups_due,
    held,
    initial,
    say,
    whole,
)
from schemas.dispatch import CancellationRequested, LaunchGranted
from schemas.runs import EvaluationStarted, RunFinished
from schemas.training import BurstEnded

Rule = Callable[[Plan, Scheduler], Decision | None]
When = Literal["within", "between", "after"]
"""A burst is on; its last update is done, but its end is not said; the last one has ended."""


def scheduler(plan: Plan) -> Decider[Scheduler]:
    """The decider of one run."""
    return Decider(initial(plan), partial(decide, plan, _rules(plan)), partial(evolve, plan))


def decide(plan: Plan, rules: Mapping[When, tuple[Rule, ...]], state: Scheduler) -> tuple[Decision, ...]:
    """The next commit that is due, if any is."""
    if state.phase != "running":
        return ()
    when: When = "within"
    if state.bursts == plan.bursts:
        when = "after"
    elif state.steps > state.bursts * plan.mu and burst_done(plan, state):
        when = "between"
    for rule in rules[when]:
        decision = rule(plan, state)
        if decision is not None:
            return (decision,)
    return ()


def _evaluate(plan: Plan, state: Scheduler) -> Decision | None:
    """A due evaluation begins once every cell has come, and after a burst once the core serves again."""
    if not evaluation_due(plan, state) or state.cells.moving or not whole(plan, state):
        return None
    core = state.cells.at(CORE)
    if plan.kind != "async" and (core is None or not core.serves):
        return None
    name = f"e{state.version}"
    event = EvaluationStarted(evaluation=name, version=state.version, episodes=plan.evaluation_episodes)
    return say(state, ("evaluation", name), event, name)


def _dispatch(plan: Plan, state: Scheduler) -> Decision | None:
    """Groups up to what is due by now, one commit for the group and one for each execution."""
    counts = state.dispatch
    whole = counts.dispatched == counts.groups * plan.size
    if (whole and counts.groups >= groups_due(plan, state)) or held(plan, state):
        return None
    if not whole:
        execution = next_execution(plan, counts)
        return say(state, ("execution", execution.execution, "dispatched"), execution, execution.execution)
    group = next_group(plan, counts, dispatch_version(plan, state))
    return say(state, ("group", group.group), group, group.group)


def _cancel(_: Plan, state: Scheduler) -> Decision | None:
    """The surplus of a group that has N valid scores is told to end."""
    execution = next_cancellation(state.dispatch)
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
    if not counts.dispatched == counts.terminated == everything or state.evaluating or evaluation_due(plan, state):
        return None
    event = RunFinished(
        steps=state.steps, dispatched=counts.dispatched, launched=counts.launched, terminated=counts.terminated
    )
    return say(state, ("run",), event, "run")


_PLACEMENT: Mapping[Kind, Mapping[When, tuple[Rule, ...]]] = {
    "elastic": {
        "within": (placement.relieve, placement.train_next, placement.count_supply),
        "between": (placement.return_satellites, placement.relieve),
        "after": (placement.relieve,),
    },
    "colocate": {
        "within": (placement.train_pool, placement.count_supply),
        "between": (placement.return_satellites,),
        "after": (),
    },
    "async": {"within": (), "between": (), "after": ()},
}
"""What of the roles is due once nothing can be launched."""


def _rules(plan: Plan) -> Mapping[When, tuple[Rule, ...]]:
    """The rules that such a plan may ever need, what is due first coming first."""
    roles = _PLACEMENT[plan.kind]
    first = (placement.man_trainers if plan.kind == "async" else placement.return_core,)
    evaluation = (_evaluate,) if plan.evaluation_episodes else ()
    surplus = (_cancel,) if plan.oversample else ()
    pool = (placement.follow_pool,) if plan.kind == "colocate" else ()
    return {
        "within": (*first, *evaluation, _dispatch, *surplus, *pool, _launch, *roles["within"], placement.rest),
        "between": (*first, _dispatch, *surplus, _launch, *roles["between"], _end_burst, placement.rest),
        "after": (*first, *evaluation, _dispatch, *surplus, _launch, *roles["after"], placement.rest, _finish),
    }
