"""One execution at the proxy: its session, its calls in the making, and what its finished ones said."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from gyre.core.tree import Called, record_digest
from gyre.proxy.drawn import Drawn
from gyre.proxy.errors import Abandoned
from gyre.proxy.normalise import Message
from gyre.proxy.reply import Ending
from gyre.proxy.sent import Sent
from gyre.proxy.session import Session
from schemas.calls import DeliveryCorrected


@dataclass(frozen=True, slots=True)
class Finished:
    """A recorded answer."""

    call: str
    message: Message
    ending: Ending
    stop_sequence: str
    """The stop text that it was cut before, if that is how it ends."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(slots=True, eq=False)
class Job:
    """One call in the making, or found again, and the clients that wait for it."""

    call: str
    prompt_tokens: int
    sent: Sent
    """The request that it answers."""
    seat: "Seat"
    drawing: "asyncio.Task[Drawn] | None" = None
    """Cancelling it ends the engine's request; None when nothing is generated."""
    task: "asyncio.Task[Finished] | None" = None
    waiters: int = 0

    @property
    def joinable(self) -> bool:
        """Whether it will have an answer to give."""
        return self.drawing is None or self.drawing.cancelling() == 0

    async def answer(self) -> Finished:
        """The recorded answer. Raises CallError, also when the proxy stops."""
        assert self.task is not None
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if not self.task.cancelled():
                raise
            raise Abandoned(f"call {self.call}: the proxy stops; ask again") from None


@dataclass(slots=True)
class Seat:
    """One execution at the proxy."""

    session: Session
    unconfirmed: set[str] = field(default_factory=set)
    """Recorded calls whose answer may not have arrived: nobody goes on from it."""
    stops: dict[str, str] = field(default_factory=dict)
    """The stop texts that answers were cut before, by call."""
    said: list[tuple[int, str]] = field(default_factory=list)
    """(sequence, digest) of all that CALL holds of it."""
    records: int = 0
    """Request records among these."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """By call: those in the making, and those whose answer is on its way to a client."""
    telling: set["asyncio.Task[None]"] = field(default_factory=set)
    """What is being said of answers."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something is said in CALL."""
    closed: bool = False

    @property
    def last(self) -> int:
        """The sequence of what CALL holds last; 0 for nothing."""
        return self.said[-1][0] if self.said else 0

    def take(self, sequence: int, event: Called) -> frozenset[str]:
        """Something is in CALL: a record, or a correction. Returns the calls whose answers it shows to have arrived."""
        self.said.append((sequence, record_digest(event)))
        if isinstance(event, DeliveryCorrected):
            self.session.correct(event)
            return frozenset()
        arrived = self.session.add(event)
        self.records += 1
        self.unconfirmed.add(event.call)
        self.unconfirmed -= arrived
        if event.stop_sequence:
            self.stops[event.call] = event.stop_sequence
        return arrived

    def repeated(self, sent: Sent) -> Job | None:
        """The call that a request asks for once more, while nobody has its answer yet."""
        return next((job for job in self.jobs.values() if job.joinable and sent.repeats(job.sent)), None)

    def lost(self, calls: Sequence[str]) -> str | None:
        """The latest of these calls whose answer may not have arrived; not one that is on its way to somebody."""
        return next((call for call in reversed(calls) if call in self.unconfirmed and call not in self.jobs), None)

    def over(self, job: Job) -> None:
        """Nobody waits for this call, nor is it in the making."""
        if self.jobs.get(job.call) is job:
            del self.jobs[job.call]

    def finished(self, call: str, cached_tokens: int) -> Finished:
        """What a recorded call answered."""
        message, node = self.session.reply(call)
        stop = self.stops.get(call, "")
        return Finished(
            call=call,
            message=message,
            ending="stop_sequence" if stop else "length" if node.finish == "length" else "stop",
            stop_sequence=stop,
            prompt_tokens=node.context,
            completion_tokens=node.length - node.context,
            cached_tokens=cached_tokens,
        )
