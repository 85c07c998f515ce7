"""The admission service's decisions: which groups are ready, and what each execution trains (design §7).

Admitting reads the execution's tree, whose body lies outside the log under its digest. `due` names the executions to
admit, with the address of their tree; `admit` makes the event from the body; `decide` is the two together, with the
look-up handed in, so that a replay decides again from the same bodies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gyre.core import admission
from gyre.core.decider import Decider, Decision
from schemas.calls import RecordsSealed
from schemas.dispatch import ExecutionDispatched, GroupDispatched
from schemas.envelope import Event
from schemas.refs import BlobRef
from schemas.rewards import (
    GroupReady,
    LeafSummary,
    Outcome,
    RewardAssigned,
    RewardUnresolved,
    Standing,
    TreeBuilt,
)
from schemas.training import TrajectoriesAdmitted, Trajectory

Nodes = admission.Nodes
Load = Callable[[BlobRef], Nodes]
"""The nodes of the tree with this digest."""
Rule = Callable[[Sequence[float | None], int], tuple[float, ...]]
"""(a group's rewards, its seed) -> advantages: `gyre.rl.advantages.rule`."""
_PREFERENCE: Mapping[Standing, int] = {"valid": 0, "placeholder": 1, "excluded": 2}


@dataclass(frozen=True, slots=True)
class Params:
    """What a run's configuration fixes for admission."""

    seed: int
    """The run's; every execution and group draws from its own, derived from it."""
    j_max: int = 5
    """Trajectories an execution may contribute."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What TreeBuilt says about an execution's tree."""

    leaves: tuple[LeafSummary, ...]
    body: BlobRef | None


@dataclass(frozen=True, slots=True)
class Member:
    """One execution of a group."""

    execution: str
    index: int
    sealed: bool = False
    tree: Tree | None = None
    standing: Standing | None = None
    """None until the designated assessment is resolved."""
    reward: float | None = None
    admitted: bool = False
    since: int = 0
    """Sequence of the last fact about it."""

    @property
    def settled(self) -> bool:
        """Whether it is closed, its records are sealed and read, and it is scored or excluded."""
        return self.sealed and self.tree is not None and self.standing is not None


@dataclass(frozen=True, slots=True)
class Group:
    """One group that is not admitted in full."""

    group: str
    index: int
    version: int
    size: int
    members: dict[str, Member] = field(default_factory=dict)
    last: int = 0
    """Sequence of the last fact about it."""
    ready: int = 0
    """Sequence of its GroupReady; 0 before."""
    surplus: int = 0
    """Executions dispatched beyond the N of `size`."""

    @property
    def settled(self) -> bool:
        """Whether all executions are there, and N of them validly scored or all of them settled."""
        if len(self.members) < self.size + self.surplus:
            return False
        settled = [each for each in self.members.values() if each.settled]
        return len(settled) == len(self.members) or sum(each.standing == "valid" for each in settled) >= self.size

    @property
    def chosen(self) -> tuple[Member, ...]:
        """The N that make up a settled group, in the order of their place: of a surplus, those validly scored first."""
        settled = (each for each in self.members.values() if each.settled)
        best = sorted(settled, key=lambda each: (_PREFERENCE[each.standing or "excluded"], each.since, each.index))
        return tuple(sorted(best[: self.size], key=lambda each: each.index))


@dataclass(frozen=True, slots=True)
class State:
    """Groups under way, by id, and the group of each of their executions."""

    params: Params
    groups: dict[str, Group] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Due:
    """One execution to admit: all that the event is made of, but the tree's body."""

    execution: str
    group: str
    version: int
    rewards: tuple[float | None, ...]
    """(N,) of the group, in the order of its executions; None for the excluded."""
    place: int
    """Of this execution in `rewards`."""
    leaves: tuple[LeafSummary, ...]
    body: BlobRef | None
    """None when there is nothing to draw from."""
    causation: int


def decider(params: Params, load: Load, rule: Rule) -> Decider[State]:
    """The admission service as every other decider: `decide` has its look-up and its rule bound."""
    return Decider(initial(params), partial(decide, load=load, rule=rule), evolve)


def initial(params: Params) -> State:
    """No group yet.

    Raises:
        ValueError: `j_max` below 1.
    """
    if params.j_max < 1:
        raise ValueError(f"j_max = {params.j_max}: give at least 1")
    return State(params)


def evolve(state: State, sequence: int, event: Event) -> State:
    """Fold one event; what is about an unknown or finished group changes nothing."""
    handler = _HANDLERS.get(type(event))
    return state if handler is None else handler(state, sequence, event)


def due(state: State) -> tuple[Due, ...]:
    """Executions of ready groups that are to be admitted, the group that was ready first coming first."""
    ready = sorted((group for group in state.groups.values() if group.ready), key=lambda group: group.ready)
    return tuple(_due(group, member) for group in ready for member in group.chosen if not member.admitted)


def admit(params: Params, admission_due: Due, nodes: Nodes, rule: Rule) -> Decision:
    """Draw an execution's trajectories; the same arguments always give the same event.

    Args:
        params: of the run.
        admission_due: one of `due`.
        nodes: the tree named by its `body`; empty when that is None.
        rule: gives the group's advantages.
    Raises:
        ValueError: the tree is broken, see `gyre.core.admission.draw`.
    """
    execution, group = admission_due.execution, admission_due.group
    seed = admission.seed_of(params.seed, execution)
    drawn: tuple[Trajectory, ...] = ()
    if admission_due.body is not None:
        drawn = admission.draw(nodes, admission_due.leaves, j_max=params.j_max, seed=seed)
    event = TrajectoriesAdmitted(
        execution=execution,
        group=group,
        version=admission_due.version,
        advantage=rule(admission_due.rewards, admission.seed_of(params.seed, group))[admission_due.place],
        targets=sum(each.targets for each in drawn),
        seed=seed,
        trajectories=drawn,
    )
    return Decision(("execution", execution), (event,), execution, admission_due.causation)


def decide(state: State, load: Load, rule: Rule) -> tuple[Decision, ...]:
    """The next commit that is due; () when nothing is. A group that is ready is admitted before another one is.

    Args:
        state: see `evolve`.
        load: called for the tree of the first of `due`, and for no other.
        rule: gives a group's advantages from its rewards.
    """
    admissions = due(state)
    if admissions:
        first = admissions[0]
        return (admit(state.params, first, load(first.body) if first.body is not None else {}, rule),)
    settled = [group for group in state.groups.values() if group.settled and not group.ready]
    return tuple(_readiness(group) for group in sorted(settled, key=lambda group: group.last))


def _readiness(group: Group) -> Decision:
    outcomes = tuple(
        Outcome(execution=each.execution, standing=each.standing, reward=each.reward)
        for each in group.chosen
        if each.standing is not None
    )
    event = GroupReady(group=group.group, index=group.index, version=group.version, outcomes=outcomes)
    return Decision(("group", group.group), (event,), group.group, group.last)


def _due(group: Group, member: Member) -> Due:
    ordered = group.chosen
    # Only a validly scored execution has trajectories: a placeholder counts in the statistics and trains nothing.
    tree = member.tree if member.standing == "valid" else None
    return Due(
        execution=member.execution,
        group=group.group,
        version=group.version,
        rewards=tuple(each.reward for each in ordered),
        place=ordered.index(member),
        leaves=tree.leaves if tree is not None else (),
        body=tree.body if tree is not None else None,
        causation=group.ready,
    )


def _dispatched(state: State, sequence: int, event: GroupDispatched) -> State:
    if event.group in state.groups:
        return state
    group = Group(event.group, event.index, event.version, event.executions, last=sequence, surplus=event.surplus)
    return replace(state, groups=state.groups | {event.group: group})


def _execution(state: State, sequence: int, event: ExecutionDispatched) -> State:
    if event.group not in state.groups or event.execution in state.group_of:
        return state
    known = replace(state, group_of=state.group_of | {event.execution: event.group})
    return _put(known, event.group, Member(event.execution, event.index, since=sequence))


def _assigned(state: State, sequence: int, event: RewardAssigned) -> State:
    known = _member(state, event.execution)
    if known is None or known.standing:
        return state
    standing: Standing = "placeholder" if event.placeholder else "valid"
    return _changed(state, replace(known, standing=standing, reward=event.reward, since=sequence))


def _unresolved(state: State, sequence: int, event: RewardUnresolved) -> State:
    known = _member(state, event.execution)
    if known is None or known.standing:
        return state
    return _changed(state, replace(known, standing="excluded", since=sequence))


def _sealed(state: State, sequence: int, event: RecordsSealed) -> State:
    known = _member(state, event.execution)
    return state if known is None or known.sealed else _changed(state, replace(known, sealed=True, since=sequence))


def _built(state: State, sequence: int, event: TreeBuilt) -> State:
    known = _member(state, event.execution)
    if known is None or known.tree:
        return state
    return _changed(state, replace(known, tree=Tree(event.leaves, event.body), since=sequence))


def _member(state: State, execution: str) -> Member | None:
    """What is known of an execution; what is said first about it stands."""
    group = state.groups.get(state.group_of.get(execution, ""))
    return None if group is None else group.members[execution]


def _changed(state: State, member: Member) -> State:
    return _put(state, state.group_of[member.execution], member)


def _put(state: State, name: str, member: Member) -> State:
    """With this member, about which its `since` is the last fact."""
    was = state.groups[name]
    members = was.members | {member.execution: member}
    changed = Group(was.group, was.index, was.version, was.size, members, member.since, was.ready, was.surplus)
    return State(state.params, state.groups | {name: changed}, state.group_of)


def _ready(state: State, sequence: int, event: GroupReady) -> State:
    group = state.groups.get(event.group)
    return (
        state if group is None else replace(state, groups=state.groups | {event.group: replace(group, ready=sequence)})
    )


def _admitted(state: State, sequence: int, event: TrajectoriesAdmitted) -> State:  # noqa: ARG001 - a handler
    group = state.groups.get(event.group)
    if group is None or event.execution not in group.members:
        return state
    members = group.members | {event.execution: replace(group.members[event.execution], admitted=True)}
    changed = replace(group, members=members)
    enough = sum(each.admitted for each in members.values()) >= group.size  # quick to say, and mostly no
    if not (enough and all(each.admitted for each in changed.chosen)):
        return replace(state, groups=state.groups | {event.group: changed})
    groups = {key: value for key, value in state.groups.items() if key != event.group}
    return replace(state, groups=groups, group_of={k: v for k, v in state.group_of.items() if v != event.group})


_HANDLERS: Mapping[type[Any], Callable[[State, int, Any], State]] = {
    GroupDispatched: _dispatched,
    ExecutionDispatched: _execution,
    RewardAssigned: _assigned,
    RewardUnresolved: _unresolved,
    RecordsSealed: _sealed,
    TreeBuilt: _built,
    GroupReady: _ready,
    TrajectoriesAdmitted: _admitted,
}
FOLDS = frozenset(_HANDLERS)
"""The events that change what admission knows."""
