"""What of dispatch, launches and cancellations is due (design §6; paper §4.2)."""

from gyre.core import blocks
from gyre.core.dispatch_state import Dispatch
from gyre.core.plan import Plan, execution_name, group_name
from schemas.dispatch import ExecutionDispatched, GroupDispatched


def next_execution(plan: Plan, state: Dispatch) -> ExecutionDispatched:
    """The next execution of the newest group, which is not dispatched whole yet."""
    group, index = divmod(state.dispatched, plan.size)
    execution = execution_name(group, index)
    return ExecutionDispatched(
        execution=execution,
        group=group_name(group),
        task=state.task,
        index=index,
        version=state.version,
        seed=plan.execution_seed(execution),
    )


def next_group(plan: Plan, state: Dispatch, version: int) -> GroupDispatched:
    """The next group; `version` is the published one that its dispatch goes by."""
    return GroupDispatched(
        group=group_name(state.groups),
        index=state.groups,
        task=plan.task(state.groups),
        version=version,
        executions=plan.executions,
        surplus=plan.oversample,
    )


def next_launch(state: Dispatch, capacity: int) -> str | None:
    """The execution to launch now, if min(d - p, C_R - (p - f)) > 0 (eq. 4): the oldest, or the longest predicted.

    A group without a prediction counts as one that takes the mean: it goes by age, before all that are expected to be
    shorter.
    """
    if capacity <= state.granted + state.launched - state.terminated:
        return None
    index = state.head
    group = blocks.get(state.open, index)
    if state.order and (group is None or not group.queued or -state.order[0][0] > state.pace.mean):
        index = state.order[0][1]
        group = blocks.get(state.open, index)
    return _lowest(index, group.queued) if group is not None and group.queued else None


def next_cancellation(state: Dispatch) -> str | None:
    """An execution that goes on although its group has all it needs, and that nobody told to end."""
    for index in state.closing:
        group = blocks.get(state.open, index)
        if group is not None:
            return _lowest(index, group.left & ~group.cancelled)
    return None


def _lowest(index: int, places: int) -> str:
    return execution_name(index, (places & -places).bit_length() - 1)
