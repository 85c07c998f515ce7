"""What the scheduler may say when: design §6 for each kind of schedule, against the books of a told run (world.py)."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from schemas import dispatch, roles, runs, training
from schemas.envelope import Event

if TYPE_CHECKING:
    from tests.core.world import World


def check(world: "World", event: Event) -> None:
    """The scheduler is about to say this."""
    rule = _RULES.get(type(event))
    if rule is not None:
        rule(world, event)


def _check_group(world: "World", event: dispatch.GroupDispatched) -> None:
    plan = world.plan
    assert world.evaluating is None
    assert event.version == (world.burst_version if plan.dispatching == "boundary" else world.version)
    assert world.dispatched == world.groups * plan.size, "the group before is not whole"
    if plan.dispatching == "boundary":
        assert world.groups < plan.quota(world.bursts)
    else:
        assert world.groups - len(world.told_ready) < plan.depth


def _check_execution(world: "World", _: dispatch.ExecutionDispatched) -> None:
    assert world.evaluating is None


def _check_launch(world: "World", event: dispatch.LaunchGranted) -> None:
    assert world.evaluating is None
    assert world.births >= world.plan.cells + world.plan.standalone
    assert len(world.granted) + len(world.running) < world.capacity_now()
    assert event.execution not in world.told_to_end


def _check_transition(world: "World", event: roles.RoleTransitionRequested) -> None:
    {"elastic": _check_elastic, "colocate": _check_pool, "async": _check_trainer}[world.plan.kind](world, event)


def _check_evaluation(world: "World", event: runs.EvaluationStarted) -> None:
    assert event.version == world.version
    assert world.plan.kind == "async" or world.places[0].role == "rollout"


def _check_cancellation(world: "World", event: dispatch.CancellationRequested) -> None:
    execution = event.execution
    group = execution.split("-", maxsplit=1)[0].replace("x", "g")
    assert world.valid[group] >= world.plan.executions
    assert execution not in world.gone
    assert execution not in world.told_to_end


def _last(world: "World") -> int:
    return min((world.bursts + 1) * world.plan.mu, world.plan.steps)


def _check_return(world: "World", event: roles.RoleTransitionRequested) -> None:
    assert world.places[event.cell].role == "train"
    relief = world.capacity_now() < len(world.running)
    assert event.cell == 0 or world.steps == _last(world) or relief


def _check_supply(world: "World", event: roles.RoleTransitionRequested) -> None:
    plan, untouched = world.plan, len(world.batch) if event.cell == 0 else 0
    if plan.stream:
        supply = min(len(world.waiting), plan.groups - len(world.batch))
        assert supply + untouched >= plan.rho_min * plan.groups - 1e-9
    else:
        needed = (_last(world) - world.steps) * plan.groups - len(world.batch)
        assert needed + untouched > 0
        assert len(world.waiting) >= needed


def _check_elastic(world: "World", event: roles.RoleTransitionRequested) -> None:
    if event.to == "rollout":
        _check_return(world, event)
        return
    assert world.places[event.cell].role == "rollout"
    assert world.evaluating is None
    assert not any(other.asked for other in world.places.values())
    assert all(world.places[index].role == "train" for index in range(event.cell))
    assert world.waterlevel() <= world.capacity_now() - world.capacity
    assert world.steps < _last(world)
    _check_supply(world, event)


def _check_pool(world: "World", event: roles.RoleTransitionRequested) -> None:
    if event.to == "rollout":
        _check_return(world, event)
        return
    plan = world.plan
    assert event.cell < plan.cells
    assert world.steps < _last(world)
    pool = [place for index, place in world.places.items() if index < plan.cells]
    if any(place.role == "train" or place.asked for place in pool):
        return  # the others have gone before it
    alone = world.capacity * sum(world.serves(index) for index in world.places if index >= plan.cells)
    assert world.waterlevel() <= alone
    assert event.cell == 0
    _check_supply(world, event)


def _check_trainer(world: "World", event: roles.RoleTransitionRequested) -> None:
    assert event.to == "train"
    assert event.cell < world.plan.trainers


def _check_retention(world: "World", event: training.BurstEnded) -> None:
    plan = world.plan
    assert world.version == world.steps == event.version
    core = world.places.get(0)
    trains = core is not None and core.role == "train"
    if plan.kind != "elastic":
        assert event.retained == (plan.kind == "async" and trains)
        return
    pending = 0
    if plan.dispatching == "boundary":
        pending = (plan.quota(world.bursts + 1) - plan.quota(world.bursts)) * plan.size
    room = world.waterlevel() + pending <= world.capacity_now()
    needed = plan.rho_min * plan.groups - 1e-9 if plan.stream else plan.burst_groups(world.bursts + 1)
    enough = len(world.waiting) >= needed
    if event.retained:
        assert room
        assert enough
        assert trains
    elif trains and plan.evaluation_episodes == 0:
        assert not (room and enough) or world.steps == plan.steps


_RULES: Mapping[type[Any], Callable[["World", Any], None]] = {
    dispatch.GroupDispatched: _check_group,
    dispatch.ExecutionDispatched: _check_execution,
    dispatch.LaunchGranted: _check_launch,
    dispatch.CancellationRequested: _check_cancellation,
    roles.RoleTransitionRequested: _check_transition,
    training.BurstEnded: _check_retention,
    runs.EvaluationStarted: _check_evaluation,
}
