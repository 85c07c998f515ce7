"""The evaluator: scores the state that each execution left, and says its reward once.

The log counts the attempts: an assessment that found no score is recorded and tried again on the same state, until
one is valid or the attempts or their time are used up. Unresolved is not zero: such an execution is left out.
So is one whose entry the queue parked, because whoever took it up died of it each time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping

from bus.errors import Conflict
from bus.log import BusPort, Delivery, Expect, Parked, Stored
from gyre.tasks.folder import Task, load_tasks
from schemas.dispatch import ExecutionTerminated
from schemas.envelope import Event
from schemas.refs import StateRef
from schemas.rewards import AssessmentRecorded, RewardAssigned, RewardUnresolved
from services.beside import Beside
from services.grading import Scorer, seconds_left, used_up
from services.judges import Judges, judges_of
from services.leases import one_error, serve_queue
from services.place import Place
from services.voice import Voice

LOG = logging.getLogger(__name__)

_AT_A_TIME = 4
_MOST_DELIVERIES = 7  # one fewer than the queue allows: what was found is a better reason than that it was parked


async def serve(place: Place, bus: BusPort) -> None:
    """Run until cancelled."""
    tasks = {task.name: task for task in load_tasks(place.folder / "tasks/train")}
    judges = judges_of(place.config, place.folder)
    grader = Grader(place, bus, tasks, judges)
    try:
        with one_error():
            async with asyncio.TaskGroup() as group:
                group.create_task(serve_queue(bus.queue("eval"), _AT_A_TIME, grader.handle))
                group.create_task(grader.clear_parked())
    finally:
        await judges.close()


class Grader:
    """One evaluator at work."""

    def __init__(self, place: Place, bus: BusPort, tasks: Mapping[str, Task], judges: Judges) -> None:
        """`tasks` by name."""
        self._place, self._bus = place, bus
        self._scorer = Scorer(bus.blobs, tasks, judges.designated, place.config.evaluator.setup_seconds)
        self._voice = Voice(place, bus)
        self._beside = Beside(place, bus, tasks, judges.beside, self._voice)
        self._busy: dict[str, asyncio.Event] = {}
        """Executions in hand; set when one is done."""

    async def handle(self, delivery: Delivery) -> None:
        """One entry of the queue: one assessment, or none when all is said."""
        terminated = _entry(delivery.stored)
        if terminated is None:
            await delivery.term(f"not an ended execution: {delivery.stored.reason or delivery.stored.subject}")
            return
        self._voice.heard(delivery.stored.sequence)
        async with self._alone(terminated.execution):
            await self._handle(terminated, delivery)

    @contextlib.asynccontextmanager
    async def _alone(self, execution: str) -> AsyncIterator[None]:
        """An entry whose lease ran out comes again while we are busy with it, and its box is the same."""
        while busy := self._busy.get(execution):
            await busy.wait()
        done = self._busy[execution] = asyncio.Event()
        try:
            yield
        finally:
            del self._busy[execution]
            done.set()

    async def _handle(self, terminated: ExecutionTerminated, delivery: Delivery) -> None:
        after, earlier, resolved = await self._history(terminated.execution)
        if resolved:
            await self._beside.score(terminated, delivery.stored.sequence)
            await delivery.ack()
            return
        events = await self._judge(terminated, earlier, delivery.attempts)
        try:
            await self._say(terminated.execution, events, delivery.stored.sequence, after)
        except Conflict:  # somebody else's: look again at what was said
            await delivery.nak()
            return
        if isinstance(events[-1], AssessmentRecorded):
            await delivery.nak(self._place.config.reward.backoff_seconds * 2 ** len(earlier))
        else:
            await self._beside.score(terminated, delivery.stored.sequence)
            await delivery.ack()

    async def clear_parked(self) -> None:
        """What the queues gave up: an assessment becomes an unresolved reward; anything else is an error to look at."""
        parking = self._bus.parked()
        async with contextlib.aclosing(parking):
            async for parked in parking:
                LOG.error(
                    "%s: parked in queue %s after %d deliveries", parked.stored.subject, parked.queue, parked.attempts
                )
                if parked.queue == "eval":
                    await self._give_up(parked)

    async def _give_up(self, parked: Parked) -> None:
        terminated = _entry(parked.stored)
        if terminated is not None:
            self._voice.heard(parked.stored.sequence)
            while not await self._unresolved(terminated, parked):
                pass  # somebody spoke in between: look again at what was said
        await parked.remove()

    async def _unresolved(self, terminated: ExecutionTerminated, parked: Parked) -> bool:
        """Whether the reward is settled now."""
        after, earlier, settled = await self._history(terminated.execution)
        if settled:
            return True
        reason = f"given up after {parked.attempts} deliveries that nobody lived to settle"
        unresolved = RewardUnresolved(
            execution=terminated.execution, group=terminated.group, attempts=len(earlier), reason=reason
        )
        with contextlib.suppress(Conflict):
            await self._say(terminated.execution, (unresolved,), parked.stored.sequence, after)
            return True
        return False

    async def _history(self, execution: str) -> tuple[int, tuple[AssessmentRecorded, ...], bool]:
        """Last sequence, the assessments so far, and whether the reward is settled."""
        subject = self._place.subject("execution", execution)
        last = await self._bus.ev.last(subject)
        earlier: list[AssessmentRecorded] = []
        if last is None:
            return 0, (), False
        said = self._bus.ev.read(0, subject)
        async with contextlib.aclosing(said):
            async for stored in said:
                self._voice.heard(stored.sequence)
                events = stored.commit.events if stored.commit else ()
                earlier += [event for event in events if isinstance(event, AssessmentRecorded)]
                if stored.sequence >= last.sequence:
                    break
        settled = last.commit is not None and isinstance(last.commit.events[-1], RewardAssigned | RewardUnresolved)
        return last.sequence, tuple(earlier), settled

    async def _judge(
        self, terminated: ExecutionTerminated, earlier: tuple[AssessmentRecorded, ...], deliveries: int
    ) -> tuple[Event, ...]:
        """What is to be said: an assessment, and the reward if that settles it."""
        execution, group, reward = terminated.execution, terminated.group, self._place.config.reward
        if terminated.reason == "cancelled":
            unwanted = "cancelled: its group had all it needs"
            return (RewardUnresolved(execution=execution, group=group, attempts=0, reason=unwanted),)
        if terminated.state is None:
            if reward.nothing_assessable == "placeholder":
                return (RewardAssigned(execution=execution, group=group, reward=0.0, placeholder=True),)
            return (
                RewardUnresolved(execution=execution, group=group, attempts=0, reason="nothing was left to assess"),
            )
        found = await self._assess(terminated, terminated.state, earlier)
        if found.score is not None:
            return found, RewardAssigned(execution=execution, group=group, reward=found.score)
        if used_up((*earlier, found), reward) or deliveries >= _MOST_DELIVERIES:
            unresolved = RewardUnresolved(
                execution=execution, group=group, attempts=found.attempt, reason=found.detail or "no valid score"
            )
            return found, unresolved
        return (found,)

    async def _assess(
        self, terminated: ExecutionTerminated, state: StateRef, earlier: tuple[AssessmentRecorded, ...]
    ) -> AssessmentRecorded:
        attempt, limit = len(earlier) + 1, seconds_left(earlier, self._place.config.reward)
        box = self._place.folder / "work" / f"{terminated.execution}.eval"  # no execution's name has a dot
        began = time.monotonic()
        verdict = await self._scorer.verdict(terminated.task, state, box, limit)
        return AssessmentRecorded(
            assessment=f"{terminated.execution}-a{attempt}",
            execution=terminated.execution,
            designated=True,
            attempt=attempt,
            state=state,
            branch=None,
            score=verdict.score,
            valid=verdict.valid,
            seconds=time.monotonic() - began,
            detail=verdict.detail,
            provenance=verdict.provenance,
        )

    async def _say(self, execution: str, events: tuple[Event, ...], causation: int, after: int) -> None:
        expect = Expect(self._place.subject("execution", execution), after)
        await self._voice.say(("execution", execution), events, execution, causation, expect)


def _entry(stored: Stored) -> ExecutionTerminated | None:
    events = stored.commit.events if stored.commit else ()
    return next((event for event in events if isinstance(event, ExecutionTerminated)), None)
