"""What the packer has folded: ready groups, the open batch, and the ledger of its micro-steps."""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gyre.core import ledger
from gyre.core.ledger import Ledger
from schemas.envelope import Event
from schemas.rewards import GroupReady
from schemas.roles import RoleTransitionCompleted
from schemas.training import (
    BatchOpened,
    BurstEnded,
    CellJoined,
    ExecutionMasked,
    GroupAssigned,
    MicroStepEnqueued,
    OptimizerStepped,
    RatioMeasured,
    StepAborted,
    StreamClosed,
    TrajectoriesAdmitted,
)


@dataclass(frozen=True, slots=True)
class Params:
    """What a run's configuration fixes for the packer."""

    groups: int
    """B: groups a batch."""
    steps: int
    """S: optimizer steps of the run."""
    burst: int
    """mu: steps a burst."""
    stream: bool = True
    """Whether a burst may begin before all of its groups are ready."""
    ratio_low: float = 0.995
    """Below it, an execution of negative advantage is masked; dimensionless."""
    ratio_high: float = 1.005
    """Above it, an execution of positive advantage is masked; dimensionless."""
    redeliveries: int = 3
    """Claimants that a micro-step may lose while they work on it; one more aborts the step."""
    train_zero_advantage: bool = False
    """Whether executions of advantage 0 are queued too: they move no weight, but their ratios are then recorded."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """One execution's TrajectoriesAdmitted, without its tokens."""

    execution: str
    sequence: int
    """Where it stands in the log."""
    targets: int
    """L_i"""
    advantage: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A ready group that is in no batch."""

    group: str
    index: int
    version: int
    size: int
    admitted: tuple[Admitted, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all of its executions are admitted."""
        return len(self.admitted) == self.size


@dataclass(frozen=True, slots=True)
class Execution:
    """How far an execution of the batch that is to be trained has come."""

    admitted: Admitted
    group: int
    """Place of its group in the batch."""
    trained: int = 0
    """Targets queued for training; L_i when all are."""
    measured: int = 0
    """Targets queued for measuring; stays 0 when all targets fit into one micro-step."""
    train_parts: int = 0
    measure_parts: int = 0
    """Micro-steps of its own queued so far, when its targets do not fit into one."""
    ratios: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Measuring micro-step -> (sum of log rho in nats, count)."""
    counted: int = 0
    """Sequence of the last measurement."""
    mask: tuple[float, Literal[0, 1]] | None = None
    """(s_i, m_i), once decided."""
    masked: int = 0
    """Sequence of the decision."""

    @property
    def queued(self) -> bool:
        """Whether all of its targets are queued for training."""
        return self.trained >= self.admitted.targets

    @property
    def measuring(self) -> bool:
        """Whether all of its measuring micro-steps are queued and its mask is not decided."""
        return self.measured >= self.admitted.targets and self.mask is None

    @property
    def lacking(self) -> bool:
        """Whether micro-steps of it have to be queued before anything else can happen to it."""
        return not self.queued and not self.measuring

    @property
    def maskable(self) -> bool:
        """Whether it is measured, in part at least, and not masked."""
        return bool(self.ratios) and self.mask is None


@dataclass(frozen=True, slots=True)
class Assigned:
    """A group of the batch."""

    group: str
    sequence: int
    """Of its GroupAssigned."""
    executions: tuple[str, ...]
    """Those to be trained, in the order in which they were admitted."""
    whole: int = 0
    """Micro-steps queued so far that hold whole executions."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The step that is collecting."""

    opened: int
    """Sequence of BatchOpened."""
    groups: tuple[Assigned, ...] = ()
    executions: dict[str, Execution] = field(default_factory=dict)
    last: int = 0
    """Sequence of the last commit about its stream."""
    closed: bool = False
    # What follows from the executions, counted as they change:
    unqueued: int = 0
    """Executions whose targets are not all queued for training."""
    maskable: int = 0
    """Executions with measurements and without a mask."""
    lacking: tuple[int, ...] = ()
    """Places of the groups with an execution that lacks micro-steps, in order."""


@dataclass(frozen=True, slots=True)
class State:
    """The packer's whole state; no tokens are in it."""

    params: Params
    ledger: Ledger = field(default_factory=Ledger)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    ready: tuple[tuple[int, int, str], ...] = ()
    """(version, index, group) of the waiting ones whose executions are all admitted, in the order of their turn."""
    batch: Batch | None = None
    between_bursts: bool = False
    """A burst's last step is done and it is not decided whether the core stays in training."""
    enabled: int = 0
    """Sequence of what last let a batch be opened."""
    aborted: bool = False


def initial(params: Params) -> State:
    """Nothing happened yet.

    Raises:
        ValueError: a count below 1, or ratio bounds that do not enclose 1.
    """
    for name in ("groups", "steps", "burst"):
        if getattr(params, name) < 1:
            raise ValueError(f"{name} = {getattr(params, name)}: give at least 1")
    if params.redeliveries < 0:
        raise ValueError(f"redeliveries = {params.redeliveries}: give at least 0")
    if not 0 < params.ratio_low <= 1 <= params.ratio_high:
        found = f"ratio_low = {params.ratio_low}, ratio_high = {params.ratio_high}"
        raise ValueError(f"{found}: need 0 < ratio_low <= 1 <= ratio_high")
    return State(params)


def evolve(state: State, sequence: int, event: Event) -> State:
    """Fold one event; what is about another step changes nothing."""
    handler = _HANDLERS.get(type(event))
    if handler is not None and ledger.concerns(event, state.ledger.step):
        state = handler(state, sequence, event)
    folded = ledger.evolve(state.ledger, sequence, event)
    return state if folded is state.ledger else replace(state, ledger=folded)


def _ready(state: State, sequence: int, event: GroupReady) -> State:  # noqa: ARG001 - a handler
    return _wait(state, Waiting(event.group, event.index, event.version, len(event.outcomes)))


def _admitted(state: State, sequence: int, event: TrajectoriesAdmitted) -> State:
    group = state.waiting.get(event.group)
    if group is None or any(each.execution == event.execution for each in group.admitted):
        return state
    new = Admitted(event.execution, sequence, event.targets, event.advantage)
    return _wait(state, replace(group, admitted=(*group.admitted, new)))


def _wait(state: State, group: Waiting) -> State:
    """The group waits as it is now; it has its turn once it is complete."""
    ready = _without(state, group.group)
    if group.complete:
        turns = list(ready)
        insort(turns, (group.version, group.index, group.group))
        ready = tuple(turns)
    return replace(state, waiting=state.waiting | {group.group: group}, ready=ready)


def _without(state: State, group: str) -> tuple[tuple[int, int, str], ...]:
    """The turns of all other groups."""
    known = state.waiting.get(group)
    if known is None or not known.complete:
        return state.ready
    return tuple(turn for turn in state.ready if turn[2] != group)


def _opened(state: State, sequence: int, event: BatchOpened) -> State:  # noqa: ARG001 - a handler
    return replace(state, batch=Batch(sequence, last=sequence))


def _assigned(state: State, sequence: int, event: GroupAssigned) -> State:
    group = state.waiting.get(event.group)
    if group is None or state.batch is None:
        return state
    place = len(state.batch.groups)
    trained = {each.execution: Execution(each, place) for each in group.admitted if _trains(state.params, each)}
    groups = (*state.batch.groups, Assigned(event.group, sequence, tuple(trained)))
    batch = _advance(replace(state.batch, groups=groups, last=sequence), trained)
    waiting = {key: value for key, value in state.waiting.items() if key != event.group}
    return replace(state, waiting=waiting, ready=_without(state, event.group), batch=batch)


def _trains(params: Params, admitted: Admitted) -> bool:
    return admitted.targets > 0 and (params.train_zero_advantage or admitted.advantage != 0)


def _enqueued(state: State, sequence: int, event: MicroStepEnqueued) -> State:
    if state.batch is None:
        return state
    known, targets = state.batch.executions, _targets(event)
    changed = {name: _queued(known[name], event, count) for name, count in targets.items() if name in known}
    batch = replace(_advance(state.batch, changed), last=sequence)
    whole = event.kind == "train" and not event.masks
    first = known.get(next(iter(targets), "")) if whole else None  # in the order of its rows
    if first is not None:
        groups = list(batch.groups)
        groups[first.group] = replace(groups[first.group], whole=groups[first.group].whole + 1)
        batch = replace(batch, groups=tuple(groups))
    return replace(state, batch=batch)


def _targets(event: MicroStepEnqueued) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in event.rows:
        for segment in row.segments:
            counts[segment.execution] = counts.get(segment.execution, 0) + segment.target.count(1)
    return counts


def _queued(execution: Execution, event: MicroStepEnqueued, targets: int) -> Execution:
    if event.kind == "measure":
        parts = execution.measure_parts + 1
        return replace(execution, measured=execution.measured + targets, measure_parts=parts)
    parts = execution.train_parts + (1 if event.masks else 0)
    return replace(execution, trained=execution.trained + targets, train_parts=parts)


def _measured(state: State, sequence: int, event: RatioMeasured) -> State:
    """The first measurement of a micro-step counts: all are taken at the same weights, whoever took them."""
    execution = None if state.batch is None else state.batch.executions.get(event.execution)
    if execution is None or event.micro_step in execution.ratios:
        return state
    ratios = execution.ratios | {event.micro_step: (event.log_ratio_sum, event.count)}
    return _with(state, replace(execution, ratios=ratios, counted=sequence))


def _masked(state: State, sequence: int, event: ExecutionMasked) -> State:
    execution = None if state.batch is None else state.batch.executions.get(event.execution)
    if execution is None:
        return state
    return _with(state, replace(execution, mask=(event.ratio, event.mask), masked=sequence))


def _with(state: State, execution: Execution) -> State:
    if state.batch is None:
        return state
    return replace(state, batch=_advance(state.batch, {execution.admitted.execution: execution}))


def _advance(batch: Batch, changed: dict[str, Execution]) -> Batch:
    """These executions as they stand now, and what follows from all of them."""
    before = [batch.executions[name] for name in changed if name in batch.executions]
    executions = batch.executions | changed
    touched = {each.group for each in changed.values()}
    lacking = {place for place in touched if any(executions[each].lacking for each in batch.groups[place].executions)}
    return replace(
        batch,
        executions=executions,
        unqueued=batch.unqueued + _unqueued(changed.values()) - _unqueued(before),
        maskable=batch.maskable + _maskable(changed.values()) - _maskable(before),
        lacking=tuple(sorted(lacking | set(batch.lacking).difference(touched))),
    )


def _unqueued(executions: Iterable[Execution]) -> int:
    return sum(not each.queued for each in executions)


def _maskable(executions: Iterable[Execution]) -> int:
    return sum(each.maskable for each in executions)


def _closed(state: State, sequence: int, event: StreamClosed) -> State:  # noqa: ARG001 - a handler
    return state if state.batch is None else replace(state, batch=replace(state.batch, closed=True, last=sequence))


def _aborted(state: State, sequence: int, event: StepAborted) -> State:  # noqa: ARG001 - a handler
    return replace(state, aborted=True)


def _stepped(state: State, sequence: int, event: OptimizerStepped) -> State:
    ends = event.step % state.params.burst == 0
    return replace(state, batch=None, between_bursts=ends, enabled=sequence)


def _burst_ended(state: State, sequence: int, event: BurstEnded) -> State:
    return replace(state, between_bursts=False, enabled=sequence) if event.retained else state


def _trains_again(state: State, sequence: int, event: RoleTransitionCompleted | CellJoined) -> State:
    to_train = event.cell == ledger.CORE and (isinstance(event, CellJoined) or event.to == "train")
    return replace(state, between_bursts=False, enabled=sequence) if to_train else state


_HANDLERS: Mapping[type[Any], Callable[[State, int, Any], State]] = {
    GroupReady: _ready,
    TrajectoriesAdmitted: _admitted,
    BatchOpened: _opened,
    GroupAssigned: _assigned,
    MicroStepEnqueued: _enqueued,
    RatioMeasured: _measured,
    ExecutionMasked: _masked,
    StreamClosed: _closed,
    StepAborted: _aborted,
    OptimizerStepped: _stepped,
    BurstEnded: _burst_ended,
    RoleTransitionCompleted: _trains_again,
    CellJoined: _trains_again,
}
FOLDS = frozenset(_HANDLERS) | ledger.FOLDS
"""The events that change what the packer knows."""
