"""Which cell changes its role next, under each kind of schedule (design §6; paper §2.2, §4.2).

- elastic: one by one as the waterlevel falls, core first; all back at the burst's end but for a core that is retained.
- colocate: all of them together, once what still runs fits into the standalone engines; all back at the burst's end.
- async: the first cells train for good, the others serve for good; nothing moves but a trainer that starts anew.

Each rule gives the commit that is due by it, or None.
"""

from gyre.core.decider import Decision
from gyre.core.plan import Plan
from gyre.core.roles import CORE, last_to_train, next_idle, next_to_return, next_to_train, request, retry_due
from gyre.core.scheduler_state import Scheduler, evaluation_due, say, supplied, training_open
from gyre.core.waterlevel import SUPPLY, may_retain, may_train
from schemas.roles import RoleTransitionRequested
from schemas.runs import TimerSet


def return_core(plan: Plan, state: Scheduler) -> Decision | None:
    """A core that was not retained goes back to rollout, unless the run is over anyway."""
    if not state.releasing:
        return None
    core = state.cells.at(CORE)
    over = state.bursts == plan.bursts and not evaluation_due(plan, state)
    if over or core is None or not core.free:
        return None
    return _transition(state, request(state.cells, core, "rollout"))


def return_satellites(plan: Plan, state: Scheduler) -> Decision | None:
    """After the burst's last update the satellites go back to rollout."""
    satellite = next_to_return(state.cells, plan.cells)
    return _transition(state, request(state.cells, satellite, "rollout")) if satellite else None


def relieve(plan: Plan, state: Scheduler) -> Decision | None:
    """A cell died and what runs has too few engines: the last satellite to train discards its share and returns."""
    counts = state.dispatch
    if state.cells.capacity >= counts.launched - counts.terminated - counts.ending or state.cells.moving:
        return None
    satellite = last_to_train(state.cells, plan.cells)
    return _transition(state, request(state.cells, satellite, "rollout")) if satellite else None


def count_supply(plan: Plan, state: Scheduler) -> Decision | None:
    """The supply is there and a cell could use it: it now has to hold for tau."""
    counts = state.dispatch
    nothing = not counts.ready and counts.assigned <= state.steps * plan.groups
    if state.supply.timer or nothing or not supplied(plan, state):
        return None
    if next_to_train(state.cells, plan.cells) is None or not training_open(plan, state):
        return None
    name = f"{SUPPLY}{state.supply.timers + 1}"
    return say(state, ("timer",), TimerSet(timer=name, seconds=plan.tau_seconds), name)


def train_next(plan: Plan, state: Scheduler) -> Decision | None:
    """The next cell goes to training: the supply has held for tau, and what remains covers w."""
    if not state.supply.fired or state.dispatch.waterlevel >= state.cells.capacity:
        return None
    cell = next_to_train(state.cells, plan.cells)
    if cell is None or not may_train(state.dispatch.waterlevel, state.cells.capacity, cell.capacity):
        return None
    return _transition(state, request(state.cells, cell, "train")) if training_open(plan, state) else None


def train_pool(plan: Plan, state: Scheduler) -> Decision | None:
    """The whole pool goes to training, its core first: the supply has held, and the standalone engines cover w."""
    if not state.supply.fired:
        return None
    core = next_to_train(state.cells, plan.cells)
    if core is None or not training_open(plan, state):
        return None
    pool = sum(cell.capacity for cell in state.cells.members[: plan.cells] if cell.serves and cell.index < plan.cells)
    if not may_train(state.dispatch.waterlevel, state.cells.capacity, pool):
        return None
    return _transition(state, request(state.cells, core, "train"))


def follow_pool(plan: Plan, state: Scheduler) -> Decision | None:
    """While any cell of the pool trains or goes there, so do the others, also one that was lost and is back."""
    pool = (1 << plan.cells) - 1
    if not (state.cells.training | state.cells.moving) & pool or not training_open(plan, state):
        return None
    cell = next_idle(state.cells, plan.cells)
    return _transition(state, request(state.cells, cell, "train")) if cell else None


def man_trainers(plan: Plan, state: Scheduler) -> Decision | None:
    """A trainer goes to training as soon as it is there, whatever else goes on."""
    cell = next_idle(state.cells, plan.trainers)
    return _transition(state, request(state.cells, cell, "train")) if cell else None


def rest(_: Plan, state: Scheduler) -> Decision | None:
    """A cell whose transition was rolled back rests before it is asked again."""
    if not state.cells.failed:
        return None
    timer = retry_due(state.cells)
    return say(state, ("timer",), timer, timer.timer) if timer else None


def retained(plan: Plan, state: Scheduler) -> bool:
    """Whether the core stays in training after a burst, with w as it is before the next dispatch (eq. 6)."""
    core = state.cells.at(CORE)
    if core is None or not core.trains or plan.kind == "colocate":
        return False
    if plan.kind == "async":
        return True
    if state.steps == plan.steps or evaluation_due(plan, state):
        return False
    enough = state.dispatch.ready >= (plan.supply_needed if plan.stream else plan.burst_groups(state.bursts + 1))
    return enough and may_retain(state.dispatch.waterlevel, _pending(plan, state), state.cells.capacity)


def _pending(plan: Plan, state: Scheduler) -> int:
    """Executions dispatched once the burst has ended: mu N B, trimmed; none where dispatch goes on by itself."""
    if plan.dispatching == "continuous":
        return 0
    return (plan.quota(state.bursts + 1) - plan.quota(state.bursts)) * plan.size


def _transition(state: Scheduler, event: RoleTransitionRequested) -> Decision:
    return say(state, ("cell", str(event.cell)), event, event.transition)
