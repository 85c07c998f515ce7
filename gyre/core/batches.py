"""The packer's decisions: batches, their groups, their micro-steps, and what is queued again (design §7, §8).

One step is open at a time. What is due, the most pressing first: a micro-step that was lost is reissued, or the step
aborted when it keeps losing its claimants; a measured execution is masked; an assigned group's micro-steps are
queued; a ready group is assigned, oldest policy version first; the stream is closed; the next batch is opened.

The state holds no tokens. `needs` names the TrajectoriesAdmitted whose bodies the next decision reads; the shell (or
a replay) fetches them from the log by sequence and hands them to `decide`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, Protocol

from gyre.core import ledger
from gyre.core.batch_state import Admitted, Assigned, Batch, Execution, Params, State, Waiting, evolve, initial
from gyre.core.decider import Decider, Decision
from gyre.errors import GyreError
from schemas.envelope import Event
from schemas.training import (
    BatchOpened,
    ExecutionMasked,
    GroupAssigned,
    MaskDecided,
    MicroStepEnqueued,
    MicroStepReissued,
    Row,
    StepAborted,
    StreamClosed,
    TrajectoriesAdmitted,
)

Rows = tuple[Row, ...]
_LOW = 2  # unclaimed micro-steps below which the packing buffer pulls another group
_LARGEST_EXPONENT = 700.0  # exp() of more overflows float64; a ratio has to stay finite and above zero


class PackedOtherwise(GyreError):
    """A step was begun under another packing: what is left of it cannot be decided here."""


class Split(Protocol):
    """An execution over several micro-steps."""

    @property
    def execution(self) -> str:
        """Its id."""

    @property
    def parts(self) -> tuple[Rows, ...]:
        """Measured first, then trained under one mask."""


class Packed(Protocol):
    """A group's micro-steps."""

    @property
    def whole(self) -> tuple[Rows, ...]:
        """Each holds all the targets of every execution in it."""

    @property
    def split(self) -> Sequence[Split]:
        """Executions that do not fit into one."""


Pack = Callable[[tuple[TrajectoriesAdmitted, ...]], Packed]
"""`gyre.rl.packing.pack` bound to a run's shape; the same input must always give the same output."""
Load = Callable[[int], TrajectoriesAdmitted]
"""The TrajectoriesAdmitted of the commit at this sequence."""


def decider(params: Params, load: Load, pack: Pack) -> Decider[State]:
    """The packer as every other decider: `decide` has its look-up and its packing bound."""
    return Decider(initial(params), partial(decide, load=load, pack=pack), evolve)


def needs(state: State) -> tuple[int, ...]:
    """Sequences of the commits whose TrajectoriesAdmitted the next decision reads."""
    group = _unfinished(state)
    return () if group is None else tuple(each.sequence for each in _trained(state, group))


def decide(state: State, load: Load, pack: Pack) -> tuple[Decision, ...]:
    """The next commits that are due, in order; () when nothing is.

    Args:
        state: see `gyre.core.batch_state`.
        load: called for the sequences that `needs` names, and for no other.
        pack: called with the executions of one group that are to be trained, in the order of their place.
    """
    if state.aborted:
        return ()
    batch = state.batch
    if batch is None:
        return _opening(state)
    return (
        _repairs(state)
        or _maskings(state, batch)
        or _queueing(state, batch, load, pack)
        or _assignment(state, batch)
        or _closing(state, batch)
    )


def _opening(state: State) -> tuple[Decision, ...]:
    """A batch is opened once the core trains and the step before is durable; see `_gathered` for bursts."""
    core = state.ledger.cells.get(ledger.CORE)
    trains = core is not None and core.alive and core.trains and not state.between_bursts
    if core is None or not trains or state.ledger.step > state.params.steps or not _gathered(state):
        return ()
    held = state.ledger
    event = BatchOpened(step=held.step, version=held.version, groups=state.params.groups)
    return (_about_batch(state, event, max(core.since, state.enabled)),)


def _gathered(state: State) -> bool:
    """Without streaming, a burst begins when all of its groups are ready and admitted."""
    params, done = state.params, state.ledger.step - 1
    if params.stream or done % params.burst:
        return True
    needed = min(params.burst, params.steps - done) * params.groups
    return len(state.ready) >= needed


def _repairs(state: State) -> tuple[Decision, ...]:
    """What was lost is queued again; a micro-step that keeps losing its claimants ends the run, clearly."""
    lost = ledger.lost(state.ledger)
    slots = state.ledger.slots
    for place in lost:
        if slots[place].failures > state.params.redeliveries:
            reason = f"lost {slots[place].failures} claimants, the last because {slots[place].reason}"
            event = StepAborted(step=state.ledger.step, micro_step=place, reason=reason)
            return (_about_batch(state, event, slots[place].lost_at),)
    return tuple(_reissue(state, place) for place in lost)


def _reissue(state: State, place: int) -> Decision:
    slot = state.ledger.slots[place]
    event = MicroStepReissued(
        step=state.ledger.step,
        micro_step=place,
        enqueued=slot.enqueued,
        reissue=slot.reissues + 1,
        reason=slot.reason,
    )
    return _about_micro_step(event, slot.lost_at)


def _maskings(state: State, batch: Batch) -> tuple[Decision, ...]:
    """s_i and m_i of an execution that is measured in full (design §7, Objective)."""
    if not batch.maskable:
        return ()
    ripe = (each for each in batch.executions.values() if each.maskable)
    return tuple(
        _about_batch(state, _mask(state, each), each.counted)
        for each in ripe
        if sum(count for _, count in each.ratios.values()) >= each.admitted.targets
    )


def _mask(state: State, execution: Execution) -> ExecutionMasked:
    """s_i = exp(sum of log rho / L_i); m_i = 0 if (A_i > 0 and s_i > high) or (A_i < 0 and s_i < low), else 1."""
    advantage, targets = execution.admitted.advantage, execution.admitted.targets
    mean = math.fsum(part for part, _ in execution.ratios.values()) / targets
    ratio = math.exp(min(max(mean, -_LARGEST_EXPONENT), _LARGEST_EXPONENT))
    above = advantage > 0 and ratio > state.params.ratio_high
    below = advantage < 0 and ratio < state.params.ratio_low
    return ExecutionMasked(
        step=state.ledger.step,
        execution=execution.admitted.execution,
        ratio=ratio,
        mask=0 if above or below else 1,
    )


def _queueing(state: State, batch: Batch, load: Load, pack: Pack) -> tuple[Decision, ...]:
    """The next micro-step of the first group that lacks one."""
    group = _unfinished(state)
    if group is None:
        return ()
    packed = pack(tuple(load(each.sequence) for each in _trained(state, group)))
    missing = next(_missing(batch, group, packed), None)
    if missing is None:
        raise PackedOtherwise(
            f"group {group.group}: {group.whole} micro-steps are in the log, its trajectories pack into "
            f"{len(packed.whole)} now; go on with the version and configuration that began the step"
        )
    kind, rows, masked = missing
    event = MicroStepEnqueued(
        step=state.ledger.step,
        micro_step=len(state.ledger.slots),
        kind=kind,
        rows=rows,
        masks=() if masked is None else (_decided(masked),),
        tokens=sum(len(segment.target) for row in rows for segment in row.segments),
    )
    return (_about_micro_step(event, group.sequence if masked is None else masked.masked),)


def _missing(
    batch: Batch, group: Assigned, packed: Packed
) -> Iterator[tuple[Literal["train", "measure"], Rows, Execution | None]]:
    for rows in packed.whole[group.whole :]:
        yield "train", rows, None
    for split in packed.split:
        for rows in split.parts[batch.executions[split.execution].measure_parts :]:
            yield "measure", rows, None
    for split in packed.split:
        execution = batch.executions[split.execution]
        for rows in split.parts[execution.train_parts :] if execution.mask is not None else ():
            yield "train", rows, execution


def _decided(execution: Execution) -> MaskDecided:
    ratio, mask = execution.mask or (1.0, 1)
    return MaskDecided(execution=execution.admitted.execution, ratio=ratio, mask=mask)


def _unfinished(state: State) -> Assigned | None:
    """The first group with an execution that is neither queued in full nor waiting for its measurements."""
    batch = state.batch
    return None if batch is None or batch.closed or not batch.lacking else batch.groups[batch.lacking[0]]


def _of(batch: Batch, group: Assigned) -> Iterator[Execution]:
    return (batch.executions[each] for each in group.executions)


def _trained(state: State, group: Assigned) -> Iterator[Admitted]:
    batch = state.batch
    return iter(()) if batch is None else (each.admitted for each in _of(batch, group))


def _assignment(state: State, batch: Batch) -> tuple[Decision, ...]:
    """A slot of the batch goes to the ready group of the oldest policy version, then of the lowest index.

    Only when few queued micro-steps are unclaimed: what is assigned early is no supply that satellites could come for.
    """
    if not state.ready or len(batch.groups) >= state.params.groups or state.ledger.unclaimed >= _LOW:
        return ()
    group = state.waiting[state.ready[0][2]]
    event = GroupAssigned(
        step=state.ledger.step,
        group=group.group,
        version=group.version,
        staleness=state.ledger.version - group.version,
    )
    return (_about_batch(state, event, _cause(group, batch)),)


def _cause(group: Waiting, batch: Batch) -> int:
    return max((batch.opened, *(each.sequence for each in group.admitted)))


def _closing(state: State, batch: Batch) -> tuple[Decision, ...]:
    full = len(batch.groups) >= state.params.groups
    if batch.closed or not full or batch.unqueued:
        return ()
    event = StreamClosed(step=state.ledger.step, micro_steps=len(state.ledger.slots))
    return (_about_batch(state, event, batch.last),)


def _about_batch(state: State, event: Event, causation: int) -> Decision:
    step = str(state.ledger.step)
    return Decision(("batch", step), (event,), f"step-{step}", causation)


def _about_micro_step(event: MicroStepEnqueued | MicroStepReissued, causation: int) -> Decision:
    subject = ("step", str(event.step), str(event.micro_step))
    return Decision(subject, (event,), f"step-{event.step}", causation)
