"""Training in virtual time: the packer and the ledger decide, modelled cells do the micro-steps.

A group reaches the packer as one admitted execution a micro-step, without tokens: what a micro-step costs comes from
the workload.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from gyre.core import batch_state, batches, ledger
from gyre.core.batches import Rows
from gyre.core.ledger import CORE, Reduction
from gyre.core.simulation.agenda import Agenda
from gyre.core.simulation.setting import Setting
from gyre.core.simulation.words import admitted, instance, ready, row, stepped
from schemas.envelope import Event
from schemas.roles import RoleTransitionCompleted
from schemas.training import (
    BatchOpened,
    CellJoined,
    GradientReduced,
    JoinWindowClosed,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    MicroStepReissued,
    ReductionOpened,
    StreamClosed,
    TrajectoriesAdmitted,
    WeightsBroadcast,
)

Tell = Callable[[Event], int]
"""Says an event; gives its sequence."""


class _Packed:
    """One micro-step for each admitted execution, none of them split."""

    def __init__(self, whole: tuple[Rows, ...]) -> None:
        self.whole = whole
        self.split = ()


class Training:
    """The packer's state, and what each training cell is at."""

    def __init__(self, setting: Setting, agenda: Agenda, tell: Tell) -> None:
        """Nothing is ready, nobody trains."""
        plan = setting.plan
        self.state = batch_state.initial(batch_state.Params(plan.groups, plan.steps, plan.mu, stream=plan.stream))
        self._setting, self._agenda, self._tell = setting, agenda, tell
        self._settled: batch_state.State | None = None
        """The state in which nothing was due."""
        self._waiting: dict[int, TrajectoriesAdmitted] = {}
        """Sequence -> what the packer may have to read again."""
        self._costs: dict[str, float] = {}
        """Admitted execution -> node-seconds of its micro-step."""
        self._queued: dict[int, float] = {}
        """Micro-step of this step -> its node-seconds."""
        self._unclaimed: deque[int] = deque()
        self._idle: list[int] = []
        """A heap of the cells that have joined and hold nothing."""
        self.reactions: dict[type[Any], Callable[[Any], None]] = {
            BatchOpened: self._opened,
            MicroStepEnqueued: self._enqueued,
            MicroStepReissued: self._reissued,
            RoleTransitionCompleted: self._moved,
            StreamClosed: self._reduce,
        }

    def admit(self, group: str, index: int, version: int, costs: tuple[float, ...]) -> None:
        """A group is ready: one execution is admitted for each of its micro-steps, or one that trains nothing."""
        self._tell(ready(group, index, version, max(1, len(costs))))
        for place, cost in enumerate(costs):
            event = admitted(group, index, place, version)
            self._costs[event.execution] = cost
            self._waiting[self._tell(event)] = event
        if not costs:
            self._tell(admitted(group, index, 0, version, targets=0))

    def evolve(self, sequence: int, event: Event) -> None:
        """Fold one event into the packer's state."""
        self.state = batch_state.evolve(self.state, sequence, event)

    def due(self) -> tuple[Event, ...]:
        """The packer's next commit; () when nothing is due."""
        if self.state is self._settled:
            return ()
        decisions = batches.decide(self.state, self._waiting.__getitem__, _pack)
        if not decisions:
            self._settled = self.state
        return decisions[0].events if decisions else ()

    def claim(self) -> bool:
        """An idle cell claims the next micro-step, if there are such."""
        if not self._unclaimed or not self._idle:
            return False
        cell, place = heappop(self._idle), self._unclaimed.popleft()
        step = self.state.ledger.step
        event = MicroStepClaimed(step=step, micro_step=place, cell=cell, instance=instance(cell))
        seconds = self._queued[place] / self._setting.nodes
        self._agenda.after(seconds, self._complete, event, self._tell(event), seconds)
        return True

    def _opened(self, _: BatchOpened) -> None:
        self._queued, self._idle = {}, []
        self._waiting = {at: each for at, each in self._waiting.items() if each.execution in self._costs}
        for cell in sorted(cell for cell, held in self.state.ledger.cells.items() if held.trains):
            self._join(cell)

    def _moved(self, event: RoleTransitionCompleted) -> None:
        if event.to == "train":
            self._join(event.cell)
        elif event.cell in self._idle:
            self._idle.remove(event.cell)
            self._idle.sort()

    def _join(self, cell: int) -> None:
        """The core joins first; the others until the window closes (`gyre.core.cell`)."""
        state = self.state.ledger
        if self.state.batch is None or state.window_closed or (cell != CORE and CORE not in state.joined):
            return
        self._tell(CellJoined(step=state.step, cell=cell, instance=instance(cell), version=state.version))
        heappush(self._idle, cell)

    def _enqueued(self, event: MicroStepEnqueued) -> None:
        self._queued[event.micro_step] = self._costs.pop(event.rows[0].segments[0].execution)
        self._unclaimed.append(event.micro_step)

    def _reissued(self, event: MicroStepReissued) -> None:
        self._unclaimed.append(event.micro_step)

    def _complete(self, claimed: MicroStepClaimed, claim: int, seconds: float) -> None:
        state, cell = self.state.ledger, claimed.cell
        slot = state.slots.get(claimed.micro_step)
        if state.step != claimed.step or slot is None or (slot.status, slot.claim) != ("claimed", claim):
            return
        event = MicroStepCompleted(
            step=claimed.step,
            micro_step=claimed.micro_step,
            cell=cell,
            instance=instance(cell),
            claim=claim,
            stats=(),
            seconds=seconds,
        )
        self._tell(event)
        self._reduce(event)
        if self._setting.timings.claim > 0.0:
            self._agenda.after(self._setting.timings.claim, self._free, cell, claimed.step)
        else:
            self._free(cell, claimed.step)

    def _free(self, cell: int, step: int) -> None:
        state = self.state.ledger
        if state.step == step and state.joined.get(cell) == instance(cell):
            heappush(self._idle, cell)

    def _reduce(self, _: StreamClosed | MicroStepCompleted) -> None:
        """The core reduces as soon as the stream is closed and drained, and then updates."""
        state = self.state.ledger
        due = ledger.reduction_due(state) if state.total is not None else None
        if due is None:
            return
        self._tell(JoinWindowClosed(step=state.step, members=due.members))
        opened = ReductionOpened(
            step=state.step,
            epoch=due.epoch,
            members=due.members,
            instances=due.instances,
            contributions=due.contributions,
        )
        self._tell(opened)
        self._agenda.after(self._setting.timings.update, self._update, state.step, due)

    def _update(self, step: int, reduction: Reduction) -> None:
        seconds = self._setting.timings.update
        reduced = GradientReduced(
            step=step,
            epoch=reduction.epoch,
            members=reduction.members,
            micro_steps=len(reduction.contributions),
            gradient_norm=0.0,
            seconds=seconds,
        )
        self._tell(reduced)
        plan, others = self._setting.plan, tuple(each for each in reduction.members if each != CORE)
        self._tell(stepped(step, seconds))
        if others and step % plan.mu != 0 and step != plan.steps:
            self._tell(WeightsBroadcast(step=step, version=step, members=others))


def _pack(executions: tuple[TrajectoriesAdmitted, ...]) -> _Packed:
    return _Packed(tuple((row(each.execution),) for each in executions))
