"""The live calls of all executions: planned, drawn, recorded, and only then answered; sealed at the end.

A request that is sent again while its answer is in the making joins it; one whose finished answer may never have
arrived is given that answer. When the last client of a call hangs up, its engine request is cancelled.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from bus.errors import BusError, Conflict, StreamFull
from bus.log import BusPort
from gyre.core.tree import records_digest
from gyre.proxy.drawn import Experts
from gyre.proxy.errors import Abandoned, CallError, EngineTrouble, HistoryUnrenderable, Unauthorized
from gyre.proxy.exchange import Asked
from gyre.proxy.sent import Sent
from gyre.proxy.session import Plan, Session
from schemas.calls import (
    HistoryRejected,
    ModelCallRecorded,
    RecordsSealed,
    RequestCancelled,
    RouteAssigned,
    RouteMoved,
)
from schemas.envelope import Event
from services.proxy.draw import Engines
from services.proxy.records import Overtaken, Records
from services.proxy.routes import RouteSpeech
from services.proxy.seat import Finished, Job, Seat
from services.proxy.world import World
from services.records import last_record, read_records
from services.speaker import Speaker

_LAST_WORDS_SECONDS = 1.0
_TOKEN_BYTES = 4
_LOG = logging.getLogger(__name__)


class Calls:
    """All seats."""

    def __init__(
        self,
        bus: BusPort,
        world: World,
        engines: Engines,
        speaker: Speaker,
        routes: RouteSpeech,
        new_session: Callable[[str, int], Session],
    ) -> None:
        """`new_session` makes an empty session from an execution and its seed."""
        self._bus, self._world, self._engines, self._new_session = bus, world, engines, new_session
        self._speaker, self._routes, self._records = speaker, routes, Records(bus, world, speaker)
        self._unknown: set[str] = set()
        self._seats: dict[str, asyncio.Task[Seat]] = {}

    async def prepare(self, execution: str) -> None:
        """Have what CALL holds of it, so that a request, once read, need not lie waiting. Raises Unauthorized."""
        await self._open_seat(execution)

    async def open(self, execution: str, asked: Asked, sent: Sent) -> Job:
        """Begin, join or find again the answer to a request; `leave` it in any case.

        Args:
            execution: an open one.
            asked: the request.
            sent: the same as it came.
        Raises:
            CallError: refused before anything was generated.
        """
        seat = await self._open_seat(execution)
        job = seat.repeated(sent) or self._again(seat, asked, sent) or await self._begin(execution, seat, asked, sent)
        job.waiters += 1
        return job

    async def count(self, execution: str, asked: Asked) -> int:
        """Tokens of the prompt that a request would be. Raises CallError."""
        return (await self._open_seat(execution)).session.count(asked)

    def leave(self, job: Job) -> None:
        """A client has its answer or hung up; without any client left, what is still being drawn is cancelled."""
        job.waiters -= 1
        if job.waiters:
            return
        if job.drawing is not None:
            job.drawing.cancel()
        if job.task is None or job.task.done():
            self._over(job)

    def confirm(self, job: Job) -> None:
        """The whole answer was written to a connection that is open."""
        if not job.seat.closed:
            job.seat.unconfirmed.discard(job.call)

    async def seal(self, execution: str, causation: int = 0) -> None:
        """End an execution's calls and say RecordsSealed, once in the whole run."""
        seat = await self._seat(execution)
        await self._end(seat)
        if await last_record(self._bus, execution) > seat.last:  # never less, but where another server is behind
            seat = await self._restored(execution)
        event = RecordsSealed(
            execution=execution,
            last_sequence=seat.last,
            count=seat.records,
            digest=records_digest(digest for _, digest in seat.said),
        )
        while not await self._said(execution, event, causation):
            pass
        self._seats.pop(execution, None)

    async def drop_scored(self) -> None:
        """End held-out episodes whose evaluation is over: they need no seal."""
        known = self._world.routes.seeds
        for execution in [name for name in self._seats if name not in known and not self._world.is_open(name)]:
            with contextlib.suppress(BusError, OSError):
                await self._end(await self._seat(execution))
            self._seats.pop(execution, None)

    async def close(self) -> None:
        """Stop everything, unanswered: the log has what is recorded."""
        tasks: list[asyncio.Task[Any]] = list(self._seats.values())
        for seat in self._made():
            tasks += [task for job in seat.jobs.values() for task in (job.task, job.drawing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def last_words(self) -> None:
        """Once the last client is gone: say what became of the answers, as far as the log takes it at once."""
        telling = [task for seat in self._made() for task in seat.telling]
        if telling:
            await asyncio.wait(telling, timeout=_LAST_WORDS_SECONDS)
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)

    def _made(self) -> list[Seat]:
        """The seats that are there; not those in the making."""
        made = [making for making in self._seats.values() if making.done() and not making.cancelled()]
        return [making.result() for making in made if making.exception() is None]

    async def _open_seat(self, execution: str) -> Seat:
        if not self._world.is_open(execution):
            raise Unauthorized("token: its execution has ended")
        seat = await self._seat(execution)
        if seat.closed:
            raise Unauthorized("token: its execution has ended")
        return seat

    async def _seat(self, execution: str) -> Seat:
        making = self._seats.get(execution)
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = self._seats[execution] = asyncio.create_task(self._restored(execution))
        return await asyncio.shield(making)

    async def _restored(self, execution: str) -> Seat:
        """A seat as CALL has it: empty for a new execution."""
        session = self._new_session(execution, self._world.seed(execution))
        numbered = await read_records(self._bus, execution, await last_record(self._bus, execution))
        seat = Seat(session)
        for sequence, event in numbered:
            seat.take(sequence, event)
        return seat

    def _again(self, seat: Seat, asked: Asked, sent: Sent) -> Job | None:
        """The finished answer to a request that is sent again because it did not arrive; for one client at a time."""
        call = seat.lost(seat.session.finished(asked)) if seat.unconfirmed else None
        if call is None:
            return None
        found = seat.finished(call, cached_tokens=0)
        task = asyncio.create_task(_at_once(found))
        job = seat.jobs[call] = Job(call, found.prompt_tokens, sent, seat, task=task)
        return job

    async def _begin(self, execution: str, seat: Seat, asked: Asked, sent: Sent) -> Job:
        try:
            plan = seat.session.plan(asked)
        except HistoryUnrenderable as error:
            call = f"{execution}-r{sent.digest()[:16]}"
            rejected = HistoryRejected(execution=execution, call=call, reason=str(error)[:500])
            with _answerable(call):
                await self._speaker.say(execution, rejected, self._world.sequence)
            raise
        if plan.hints.unknown and plan.hints.unknown not in self._unknown:
            self._unknown.add(plan.hints.unknown)
            _LOG.warning("call %s: %s", plan.call, plan.hints.unknown)
        says: list[asyncio.Task[Any]] = []

        def say(event: Event) -> None:
            self._world.fold(event)
            said = (
                self._routes.say(event)
                if isinstance(event, RouteAssigned | RouteMoved)
                else self._speaker.say(execution, event, self._world.sequence)
            )
            says.append(asyncio.create_task(said))

        job = seat.jobs[plan.call] = Job(plan.call, plan.tokens, sent, seat)
        job.drawing = asyncio.create_task(self._engines.draw(execution, plan, say))
        job.task = asyncio.create_task(self._answer(execution, seat, job, plan, says))
        job.task.add_done_callback(lambda task: self._gone(job, task))
        return job

    async def _answer(
        self, execution: str, seat: Seat, job: Job, plan: Plan, says: "list[asyncio.Task[Any]]"
    ) -> Finished:
        """Nothing leaves here before it is in the log."""
        began = time.monotonic()
        assert job.drawing is not None
        try:
            drawn = await job.drawing
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) and current.cancelling():
                raise
            reason = "execution ended" if seat.closed else "client gone"
            cell = self._world.routes.assigned.get(execution)
            if cell is not None:
                cancelled = RequestCancelled(execution=execution, call=plan.call, cell=cell, reason=reason)
                with _answerable(plan.call):
                    await self._speaker.say(execution, cancelled, self._world.sequence)
            raise Abandoned(f"call {plan.call}: cancelled, {reason}") from None
        finally:
            with _answerable(plan.call):
                await asyncio.gather(*says)
        seconds = time.monotonic() - began
        record = seat.session.record(plan, drawn, total_seconds=seconds, delivered=job.waiters > 0)
        record = await self._with_experts(record, drawn.experts)
        try:
            with _answerable(plan.call):
                await self._records.keep(seat, record)
        except Overtaken:
            await self._leave_to_other(execution, seat)
            raise
        return seat.finished(plan.call, drawn.cached_tokens)

    async def _with_experts(self, record: ModelCallRecorded, experts: Experts | None) -> ModelCallRecorded:
        """The record, with the experts that its tokens took where engines told, by claim check."""
        if experts is None:
            return record
        body = experts.leading((len(record.input_ids) + len(record.output_ids)) // _TOKEN_BYTES)
        with _answerable(record.call):
            kept = await asyncio.to_thread(self._bus.blobs.put, body)
        return record.model_copy(update={"experts": kept})

    async def _leave_to_other(self, execution: str, seat: Seat) -> None:
        """Another proxy is at work on it: whoever asks next is given what CALL has by then."""
        making = self._seats.get(execution)
        if making is not None and await asyncio.shield(making) is seat and self._seats.get(execution) is making:
            del self._seats[execution]

    def _gone(self, job: Job, task: "asyncio.Task[Finished]") -> None:
        error = None if task.cancelled() else task.exception()
        if job.waiters == 0 or task.cancelled() or error is not None:
            self._over(job)
        if error is not None and not isinstance(error, CallError):
            _LOG.error("call %s failed", job.call, exc_info=error)

    def _over(self, job: Job) -> None:
        """Nobody waits for this call, nor is it in the making: CALL is to say what became of it."""
        job.seat.over(job)
        if not job.seat.closed:
            self._records.settle(job.seat, job.call)

    async def _end(self, seat: Seat) -> None:
        """No call begins any more; those in the making are cancelled, those being recorded are waited for.

        Its harness has exited: an answer that was still on its way reached nobody.
        """
        seat.closed = True
        jobs = list(seat.jobs.values())
        for job in jobs:
            if job.drawing is not None:
                job.drawing.cancel()
        await asyncio.gather(*(job.task for job in jobs if job.task is not None), return_exceptions=True)
        for job in jobs:
            self._records.settle(job.seat, job.call)
        await asyncio.gather(*seat.telling)

    async def _said(self, execution: str, event: RecordsSealed, causation: int) -> bool:
        """Whether the seal is in the log now, by us or by somebody before us."""
        last = await self._bus.ev.last(self._speaker.subject(execution))
        if last and last.commit and any(isinstance(said, RecordsSealed) for said in last.commit.events):
            return True
        try:
            await self._speaker.say(
                execution, event, self._world.sequence, causation, expect=last.sequence if last else 0
            )
        except Conflict:
            return False
        return True


async def _at_once(found: Finished) -> Finished:
    return found


@contextlib.contextmanager
def _answerable(call: str) -> Iterator[None]:
    """A log or a disk that takes no more is told to the client: a stream that breaks off may pass for an answer."""
    try:
        yield
    except (StreamFull, OSError) as error:
        _LOG.error("call %s: %s", call, error)
        why = (
            "the log is full"
            if isinstance(error, StreamFull)
            else f"the run folder fails: {error.strerror or type(error).__name__}"
        )
        raise EngineTrouble(f"call {call}: cannot be recorded, {why}") from error
