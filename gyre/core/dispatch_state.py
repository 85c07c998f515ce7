"""Dispatched d, launched p, terminated f, and where each execution and group stands (design §6; paper §4.2).

0 <= f <= p <= d holds by construction: an execution moves queued -> granted -> running -> gone, one way, and what
does not fit (a launch of something never dispatched, a second termination) changes nothing. Gone ones are forgotten:
the state holds one small record for each group that is not trained on and closed, and an event changes one of them.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from gyre.core import blocks
from gyre.core.blocks import Blocks
from gyre.core.plan import Plan, execution_name, execution_place, group_place
from gyre.core.prediction import Pace, learn, predict
from schemas.dispatch import (
    CancellationRequested,
    ExecutionDispatched,
    ExecutionLaunched,
    ExecutionTerminated,
    GroupDispatched,
    LaunchGranted,
)
from schemas.rewards import GroupReady, RewardAssigned
from schemas.training import GroupAssigned

Standing = Literal["open", "ready", "assigned"]


@dataclass(slots=True)
class Group:
    """One group under way: sets of its executions, bit i standing for the one at place i; never changed."""

    queued: int = 0
    """Neither granted, launched nor cancelled."""
    granted: int = 0
    """Granted, not yet launched: they hold their place in C_R."""
    running: int = 0
    cancelled: int = 0
    """Their cancellation was asked for, and they have not ended."""
    valid: int = 0
    """Validly scored."""
    standing: Standing = "open"
    predicted: float | None = None
    """Seconds that one of its executions is expected to take, where launches go by that; None: about the mean."""

    def now(self, queued: int, granted: int, running: int) -> "Group":
        """The same group with its executions in these places."""
        return Group(queued, granted, running, self.cancelled, self.valid, self.standing, self.predicted)

    @property
    def left(self) -> int:
        """Those that have not ended, as a set."""
        return self.queued | self.granted | self.running | self.cancelled


@dataclass(slots=True)
class Dispatch:
    """Counters over the whole run, and the groups that are under way; like `Scheduler`, never changed."""

    groups: int = 0
    """Groups dispatched; the newest may still lack some of its executions."""
    version: int = 0
    """Published version at the newest group's dispatch."""
    task: str = ""
    """Task of the newest group."""
    dispatched: int = 0
    launched: int = 0
    terminated: int = 0
    granted: int = 0
    """Executions granted and not yet launched."""
    ready: int = 0
    """Groups that are ready and in no batch."""
    assigned: int = 0
    """Groups that went into a batch, over the whole run."""
    ending: int = 0
    """Executions that run and were told to end: they need no engine any more."""
    head: int = 0
    """The first group with a queued execution and no prediction; `groups` when there is none."""
    open: Blocks[Group] = field(default_factory=dict)
    """Groups that are not both assigned and closed, by index."""
    closing: tuple[int, ...] = ()
    """Of these, the ones that have all they need while executions of theirs go on that nobody told to end."""
    order: tuple[tuple[float, int], ...] = ()
    """(-predicted seconds, index) of groups with a prediction and queued executions, sorted."""
    pace: Pace = field(default_factory=Pace)
    """What predictions are made from."""

    @property
    def waterlevel(self) -> int:
        """The waterlevel, w = d - f."""
        return self.dispatched - self.terminated

    @property
    def running(self) -> int:
        """Executions launched and not terminated, p - f."""
        return self.launched - self.terminated


def _group_dispatched(_: Plan, state: Dispatch, event: GroupDispatched) -> Dispatch:
    if event.index != state.groups:
        return state
    opened = blocks.put(state.open, event.index, Group())
    return replace(state, groups=state.groups + 1, version=event.version, task=event.task, open=opened)


def _execution_dispatched(plan: Plan, state: Dispatch, event: ExecutionDispatched) -> Dispatch:
    index, place = divmod(state.dispatched, plan.size)
    group = blocks.get(state.open, index)
    if group is None or event.execution != execution_name(index, place):
        return state
    if plan.launch_order == "longest_predicted" and not group.queued:
        group = replace(group, predicted=predict(state.pace, plan.task_number(index)))
    new = group.now(group.queued | 1 << place, group.granted, group.running)
    return _put(plan, state, index, new, _DISPATCHED)


def _granted(plan: Plan, state: Dispatch, event: LaunchGranted) -> Dispatch:
    found = _found(plan, state, event.execution)
    if found is None:
        return state
    index, bit, group = found
    if not group.queued & bit:
        return state
    new = group.now(group.queued ^ bit, group.granted | bit, group.running)
    return _put(plan, state, index, new, _GRANTED)


def _launched(plan: Plan, state: Dispatch, event: ExecutionLaunched) -> Dispatch:
    """From the queue too: an execution that was cancelled there is launched only to be ended."""
    found = _found(plan, state, event.execution)
    if found is None:
        return state
    index, bit, group = found
    if group.running & bit or not group.left & bit:
        return state
    new = group.now(group.queued & ~bit, group.granted & ~bit, group.running | bit)
    return _put(plan, state, index, new, _LAUNCHED if group.granted & bit else _LAUNCHED_UNGRANTED)


def _terminated(plan: Plan, state: Dispatch, event: ExecutionTerminated) -> Dispatch:
    found = _found(plan, state, event.execution)
    if found is None:
        return state
    index, bit, group = found
    if not group.running & bit:
        return state
    new = group.now(group.queued, group.granted, group.running ^ bit)
    if group.cancelled & bit:
        new = replace(new, cancelled=group.cancelled ^ bit)
    if plan.launch_order == "longest_predicted" and event.reason != "cancelled" and event.stage != "setup":
        task = plan.task_number(index)
        state = replace(state, pace=learn(state.pace, task, event.seconds))
        new = replace(new, predicted=predict(state.pace, task))
    return _put(plan, state, index, new, _TERMINATED)


def _cancelled(plan: Plan, state: Dispatch, event: CancellationRequested) -> Dispatch:
    found = _found(plan, state, event.execution)
    if found is None:
        return state
    index, bit, group = found
    if not group.left & bit:
        return state
    return _put(plan, state, index, replace(group, queued=group.queued & ~bit, cancelled=group.cancelled | bit), _SAME)


def _rewarded(plan: Plan, state: Dispatch, event: RewardAssigned) -> Dispatch:
    """A placeholder is no valid score: the group can do better with its surplus."""
    found = None if event.placeholder or not plan.oversample else _found(plan, state, event.execution)
    if found is None:
        return state
    index, bit, group = found
    return _put(plan, state, index, replace(group, valid=group.valid | bit), _SAME)


def _ready(plan: Plan, state: Dispatch, event: GroupReady) -> Dispatch:
    index = group_place(event.group)
    group = blocks.get(state.open, index)
    if group is None or group.standing != "open":
        return state
    return _put(plan, state, index, replace(group, standing="ready"), _READY)


def _assigned(plan: Plan, state: Dispatch, event: GroupAssigned) -> Dispatch:
    index = group_place(event.group)
    group = blocks.get(state.open, index)
    if group is None or group.standing != "ready":
        return state
    return _put(plan, state, index, replace(group, standing="assigned"), _ASSIGNED)


def _found(plan: Plan, state: Dispatch, execution: str) -> tuple[int, int, Group] | None:
    """Its group's index, its bit, its group; None when no group has such a place, or the group is forgotten."""
    index, number = execution_place(execution) or (-1, -1)
    if not 0 <= number < plan.size:  # a set with a bit for any number that a name may hold fits into no memory
        return None
    group = blocks.get(state.open, index)
    return None if group is None else (index, 1 << number, group)


class _Change(NamedTuple):
    """By how much counters change."""

    dispatched: int = 0
    launched: int = 0
    terminated: int = 0
    granted: int = 0
    ready: int = 0
    assigned: int = 0


_SAME = _Change()
_DISPATCHED = _Change(dispatched=1)
_GRANTED = _Change(granted=1)
_LAUNCHED = _Change(launched=1, granted=-1)
_LAUNCHED_UNGRANTED = _Change(launched=1)
_TERMINATED = _Change(terminated=1)
_READY = _Change(ready=1)
_ASSIGNED = _Change(ready=-1, assigned=1)


def _put(plan: Plan, state: Dispatch, index: int, group: Group, change: _Change) -> Dispatch:
    """The group as it stands now, and the counters."""
    dispatched, launched, terminated, granted, ready, assigned = change
    if group.standing == "assigned" and not group.left:
        opened = blocks.drop(state.open, index)
    else:
        opened = blocks.put(state.open, index, group)
    head = state.head
    by_age = group.queued and group.predicted is None
    if by_age and index < head:
        head = index
    elif head == index and not by_age:
        head = _next_head(opened, head, state.groups)
    return Dispatch(
        state.groups,
        state.version,
        state.task,
        state.dispatched + dispatched,
        state.launched + launched,
        state.terminated + terminated,
        state.granted + granted,
        state.ready + ready,
        state.assigned + assigned,
        _ending(state, index, group) if plan.oversample else 0,
        head,
        opened,
        _closing(plan, state.closing, index, group) if plan.oversample else (),
        _order(state, index, group) if plan.launch_order == "longest_predicted" else (),
        state.pace,
    )


def _ending(state: Dispatch, index: int, group: Group) -> int:
    old = blocks.get(state.open, index) or Group()
    return state.ending + (group.running & group.cancelled).bit_count() - (old.running & old.cancelled).bit_count()


def _next_head(opened: Blocks[Group], head: int, groups: int) -> int:
    """The first group from `head` on that has its turn by age; each is passed once."""
    while head < groups:
        group = blocks.get(opened, head)
        if group is not None and group.queued and group.predicted is None:
            break
        head += 1
    return head


def _closing(plan: Plan, closing: tuple[int, ...], index: int, group: Group) -> tuple[int, ...]:
    """Whether it has all it needs while something of it goes on untold."""
    enough = group.standing != "open" or group.valid.bit_count() >= plan.executions
    if enough and group.left & ~group.cancelled:
        return closing if index in closing else (*closing, index)
    return tuple(other for other in closing if other != index) if index in closing else closing


def _order(state: Dispatch, index: int, group: Group) -> tuple[tuple[float, int], ...]:
    """The launch order with this group where its prediction, if any, puts it."""
    old, order = blocks.get(state.open, index), state.order
    if old is not None and old.queued and old.predicted is not None:
        if group.queued and old.predicted == group.predicted:
            return order
        place = bisect_left(order, (-old.predicted, index))
        order = order[:place] + order[place + 1 :]
    if not group.queued or group.predicted is None:
        return order
    key = (-group.predicted, index)
    place = bisect_left(order, key)
    return (*order[:place], key, *order[place:])


DISPATCHING: Mapping[type[Any], Callable[[Plan, Dispatch, Any], Dispatch]] = {
    GroupDispatched: _group_dispatched,
    ExecutionDispatched: _execution_dispatched,
    LaunchGranted: _granted,
    ExecutionLaunched: _launched,
    ExecutionTerminated: _terminated,
    CancellationRequested: _cancelled,
    RewardAssigned: _rewarded,
    GroupReady: _ready,
    GroupAssigned: _assigned,
}
"""How each event moves executions and groups; an event of any other type moves none."""
