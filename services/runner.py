"""The runner: launches granted executions, holds their processes, preserves what they leave.

An entry of the rollout queue is only a hint; what counts is the log: LaunchGranted opens the gate, ExecutionLaunched
(nothing was ever said about this execution) claims it, ExecutionTerminated (right after that very launch) ends it, so
that each launched execution ends exactly once, whoever says it. A run may have several runners: what one launched and
did not end is ended by another, at once when that one's process is gone, else when it has been silent for too long.
"""

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass, field

from bus import subjects
from bus.errors import Conflict, Denied
from bus.log import BusPort, Delivery, Expect, Stored
from gyre.config import Config
from gyre.proxy.tokens import token_digest
from gyre.sandboxes.make import make_sandbox
from gyre.tasks.folder import load_tasks
from schemas.dispatch import (
    CancellationRequested,
    ExecutionDispatched,
    ExecutionLaunched,
    ExecutionTerminated,
    LaunchGranted,
)
from schemas.envelope import Event
from services import workspace
from services.beats import Silence
from services.episode import Episodes, Outcome, keep, keep_workspace
from services.leases import one_error, serve_queue
from services.place import Place
from services.presence import gone, present
from services.records import last_record
from services.voice import Voice

LOG = logging.getLogger(__name__)
_LAUNCHED_BEFORE = "CALL holds records of an earlier launch, which a power cut took from EV"
_DEAF = "executions whose launch a power cut took from EV are not told, until the server has its users written anew"


@dataclass(slots=True)
class _Orders:
    """What the scheduler said about an execution."""

    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Granted or cancelled: no reason to wait any longer."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)


async def serve(place: Place, bus: BusPort) -> None:
    """Run until cancelled."""
    tasks = {task.name: task for task in load_tasks(place.folder / "tasks/train")}
    sandbox = make_sandbox(place.config.sandbox, place.folder)
    try:
        await Runner(place, bus, Episodes(place.folder, place.config, tasks, sandbox)).run()
    finally:
        await sandbox.close()


def most_open(config: Config) -> int:
    """Entries to hold at once: all that can be dispatched and not ended, so that none is kept out by later ones.

    With fewer, a runner that starts while a dead one's entries are still leased would fill up with others, which may
    get no grant before those. An entry that waits costs a task.
    """
    schedule, cells = config.schedule, config.cells
    groups = round((schedule.phi + 2 * schedule.mu) * schedule.groups)
    size = schedule.executions + schedule.oversample
    return groups * size + (cells.count + cells.standalone) * cells.concurrency


class Runner:
    """One runner at work."""

    def __init__(self, place: Place, bus: BusPort, episodes: Episodes) -> None:
        """Nothing happens before `run`."""
        self._place, self._bus, self._episodes = place, bus, episodes
        self._voice = Voice(place, bus)
        self._orders: dict[str, _Orders] = {}
        """Of executions that are dispatched and not ended."""
        self._busy: dict[str, asyncio.Event] = {}
        """Executions in hand; set when one is done."""
        self._others: dict[str, str] = {}
        """Execution that is not ended -> the other runner that launched it."""
        self._deaf = False
        """Whether the server does not let this user read CALL."""

    async def run(self) -> None:
        """Serve until cancelled."""
        with present(self._place.folder, self._place.instance), one_error():
            await self._end_what_others_left()
            await self._serve()

    async def _serve(self) -> None:
        most = most_open(self._place.config)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._watch())
            group.create_task(serve_queue(self._bus.queue("rollout"), most, self._handle))

    async def _listen(self) -> None:
        said = self._bus.ev.read(0, subjects.executions(self._place.run))
        async with contextlib.aclosing(said):
            async for stored in said:
                self._voice.heard(stored.sequence)
                for event in stored.commit.events if stored.commit else ():
                    self._obey(event)

    async def _watch(self) -> None:
        """End what runners left that are not heard any more, though their processes may hang somewhere."""
        async with contextlib.aclosing(
            Silence(self._place, self._bus).lost(lambda: set(self._others.values()))
        ) as lost:
            async for instance, _ in lost:
                await self._end_those_of(instance)

    async def _end_those_of(self, instance: str) -> None:
        left = [execution for execution, runner in self._others.items() if runner == instance]
        await asyncio.gather(*(self._end_if_left(execution, surely=True) for execution in left))

    def _obey(self, event: Event) -> None:
        if isinstance(event, ExecutionDispatched):
            self._orders.setdefault(event.execution, _Orders())
        elif isinstance(event, ExecutionLaunched) and event.runner != self._place.instance:
            self._others[event.execution] = event.runner
        elif isinstance(event, ExecutionTerminated):
            self._others.pop(event.execution, None)
            if orders := self._orders.pop(event.execution, None):
                orders.due.set()  # who still waits finds its end in the log
        elif isinstance(event, LaunchGranted | CancellationRequested) and event.execution in self._orders:
            orders = self._orders[event.execution]
            orders.due.set()
            if isinstance(event, CancellationRequested):
                orders.cancelled.set()

    async def _handle(self, delivery: Delivery) -> None:
        """One entry of the queue, from its coming to the end of its execution."""
        entry = _entry(delivery.stored)
        if entry is None:
            await delivery.term(f"not an execution to launch: {delivery.stored.reason or delivery.stored.subject}")
            return
        if entry.execution in self._busy:  # its lease ran out while we were busy with it
            await self._busy[entry.execution].wait()
        else:
            await self._work(entry, delivery.stored.sequence)
        await delivery.ack()

    async def _work(self, entry: ExecutionDispatched, causation: int) -> None:
        done = self._busy[entry.execution] = asyncio.Event()
        try:
            if await self._begun(entry.execution):  # delivered again: no grant is read twice, so none is waited for
                await self._end_if_left(entry.execution)
                return
            orders = self._orders.setdefault(entry.execution, _Orders())
            await orders.due.wait()
            await self._execute(entry, causation, orders)
        finally:
            done.set()
            del self._busy[entry.execution]
            self._orders.pop(entry.execution, None)

    async def _begun(self, execution: str) -> bool:
        return await self._bus.ev.last(subjects.execution(self._place.run, "runner", execution)) is not None

    async def _execute(self, entry: ExecutionDispatched, causation: int, orders: _Orders) -> None:
        launched_before = await self._launched_before(entry.execution)
        token = await self._episodes.token(entry.execution)
        launched = ExecutionLaunched(
            execution=entry.execution,
            group=entry.group,
            runner=self._place.instance,
            token_digest=token_digest(token),
            deadline_seconds=self._episodes.deadline(entry.task),
        )
        try:
            sequence = await self._say("launched", launched, causation, 0)
        except Conflict:
            await self._end_if_left(entry.execution)
            return
        if orders.cancelled.is_set():
            outcome = Outcome("cancelled", "setup", None, 0.0, "cancelled before it was launched", None)
        elif launched_before:
            outcome = Outcome("failed", "setup", None, 0.0, _LAUNCHED_BEFORE, None)
        else:
            outcome = await self._episodes.run(entry.execution, entry.task, token, orders.cancelled)
        state, detail = await keep(self._bus.blobs, outcome, self._episodes.task(entry.task))
        terminated = ExecutionTerminated(
            execution=entry.execution,
            group=entry.group,
            task=entry.task,
            reason=outcome.reason,
            stage=outcome.stage,
            exit_code=outcome.exit_code,
            seconds=outcome.seconds,
            setup_seconds=outcome.setup_seconds,
            state=state,
            detail=detail,
        )
        await self._terminate(terminated, sequence)

    async def _launched_before(self, execution: str) -> bool:
        """Whether CALL knows more of it than EV does, as a power cut may leave them: one tree would hold two episodes.

        Without a state to assess it trains nothing, whatever records its tree is built of.
        """
        if self._deaf or self._place.config.bus.durability != "laptop":  # under "always" nothing acknowledged is lost
            return False
        try:
            return await last_record(self._bus, execution) > 0
        except Denied as error:  # users of an earlier gyre, whose runner had no need to
            if not self._deaf:
                LOG.warning("%s: %s", _DEAF, error)
            self._deaf = True
            return False

    async def _terminate(self, terminated: ExecutionTerminated, launched: int) -> None:
        """Said at most once; somebody who said it first was right."""
        with contextlib.suppress(Conflict):
            await self._say("terminated", terminated, launched, launched)
        await asyncio.to_thread(workspace.clear, self._episodes.box(terminated.execution))

    async def _say(self, word: str, event: ExecutionLaunched | ExecutionTerminated, causation: int, after: int) -> int:
        execution = event.execution
        expect = Expect(subjects.execution(self._place.run, "runner", execution), after)
        return await self._voice.say(("execution", execution, word), (event,), execution, causation, expect)

    async def _end_what_others_left(self) -> None:
        """Executions whose runner is gone and that nobody ended: all of them, before anything else is launched."""
        everything = f"{subjects.ev(self._place.run, 'runner', 'execution')}.*.*"
        last = await self._bus.ev.last(everything)
        open_: dict[str, Stored] = {}
        said = self._bus.ev.read(0, everything)
        async with contextlib.aclosing(said):
            while last is not None:
                stored = await anext(said)
                self._voice.heard(stored.sequence)
                for event in stored.commit.events if stored.commit else ():
                    if isinstance(event, ExecutionLaunched):
                        open_[event.execution] = stored
                    elif isinstance(event, ExecutionTerminated):
                        open_.pop(event.execution, None)
                if stored.sequence >= last.sequence:
                    break
        await asyncio.gather(*(self._end(stored) for stored in open_.values() if self._is_gone(stored)))

    async def _end_if_left(self, execution: str, *, surely: bool = False) -> None:
        """`surely`: its runner is taken for gone."""
        last = await self._bus.ev.last(subjects.execution(self._place.run, "runner", execution))
        if last is not None and (surely or self._is_gone(last)):
            await self._end(last)

    def _is_gone(self, stored: Stored) -> bool:
        """Whether who said it is not there any more."""
        if stored.commit is None or stored.commit.producer.instance == self._place.instance:
            return False
        return gone(self._place.folder, stored.commit.producer.instance)

    async def _end(self, stored: Stored) -> None:
        """End an execution whose runner is gone, with what it left: partial progress is a valid score."""
        assert stored.commit is not None
        launched = stored.commit.events[0]
        if isinstance(launched, ExecutionTerminated):  # killed between its word and what it does next
            await asyncio.to_thread(workspace.vacate, self._episodes.box(launched.execution))
        if not isinstance(launched, ExecutionLaunched):
            return
        box = self._episodes.box(launched.execution)
        killed = await self._episodes.end_leftovers(launched.execution)
        LOG.warning(
            "%s: its runner %s is gone; %d processes or containers ended", launched.execution, launched.runner, killed
        )
        task = await self._task_of(launched.execution)
        detail, state = f"its runner {launched.runner} ended before it did", None
        if os.path.isdir(box / "ws"):  # noqa: PTH112 (no error, whatever mode the agent gave to the box)
            known = self._episodes.task(task)
            state, detail = await keep_workspace(self._bus.blobs, box / "ws", known, detail)
        terminated = ExecutionTerminated(
            execution=launched.execution,
            group=launched.group,
            task=task,
            reason="failed",
            stage="agent",
            exit_code=None,
            seconds=max(0.0, (time.time_ns() - stored.commit.time) / 1e9),
            state=state,
            detail=detail,
        )
        await self._terminate(terminated, stored.sequence)

    async def _task_of(self, execution: str) -> str:
        said = await self._bus.ev.last(subjects.ev(self._place.run, "scheduler", "execution", execution, "dispatched"))
        entry = _entry(said) if said else None
        return entry.task if entry else "unknown"


def _entry(stored: Stored) -> ExecutionDispatched | None:
    events = stored.commit.events if stored.commit else ()
    return next((event for event in events if isinstance(event, ExecutionDispatched)), None)
