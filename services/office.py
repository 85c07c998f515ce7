"""The shell of a singleton decider: reads in order, evolves, decides, says, remembers how far it got (design §3).

It takes office by a conditional commit whose sequence is its term; every commit of the term is conditional on the
producer's own last sequence, so an overtaken leader's next commit is refused and it stops (design §4 rule 4). Only the
first decision is said; it is folded back from the log before the next is asked for.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from bus import subjects
from bus.consumers import Projection, SnapshotFile
from bus.errors import Conflict
from bus.log import BusPort, Expect, Stored
from gyre.errors import GyreError
from schemas.envelope import Event
from schemas.runs import OfficeTaken, TimerFired, TimerSet
from services import failpoints
from services.alongside import until_one_ends
from services.minds import Mind, filters
from services.place import Place
from services.quarantine import Quarantine

State = TypeVar("State")
SAVE_SECONDS = 1.0
"""Between two snapshots at least."""


class Overtaken(GyreError):
    """Another process holds this office now: this one must not say anything more, nor be restarted."""


class Observed(NamedTuple):
    """What the outside world decided, until it is said."""

    entity: tuple[str, ...]
    event: Event
    holds: Callable[[], bool]


class Office(Generic[State]):
    """One singleton service at work."""

    def __init__(
        self,
        place: Place,
        bus: BusPort,
        mind: Mind[State],
        projection: Projection[State],
        quarantine: Quarantine | None = None,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            place: where it stands.
            bus: the run's bus.
            mind: what it thinks.
            projection: where it left off.
            quarantine: of the one office that says which messages no model accepts.
        """
        self._place, self._bus, self._mind, self._projection = place, bus, mind, projection
        self._quarantine = quarantine
        self._seated = asyncio.Event()
        self._inbox: asyncio.Queue[Stored] = asyncio.Queue(4096)
        self._observed: asyncio.Queue[Observed] = asyncio.Queue()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._due: dict[str, float] | None = {}
        """Timer -> when it is due, on the loop's clock, before this one is in office: most have fired in the log."""
        self._own = 0
        self._term = 0
        """Sequence of the OfficeTaken that this process serves under; 0 before."""

    @property
    def state(self) -> State:
        """As folded so far."""
        return self._projection.state

    def observe(self, entity: tuple[str, ...], event: Event, holds: Callable[[], bool] = lambda: True) -> None:
        """An outcome that the outside world decided (a lost cell): said in turn, without being decided.

        Dropped where it does not hold any more by then, as far as the log was folded.
        """
        self._observed.put_nowait(Observed(entity, event, holds))
        self._ring()

    def _ring(self) -> None:
        """Let it think again."""
        with contextlib.suppress(asyncio.QueueFull):
            self._inbox.put_nowait(Stored(0, "", None))

    async def run(self) -> None:
        """Serve until cancelled. Raises `Overtaken`."""
        for timer, seconds in self._mind.armed(self._projection.state):
            self._arm(timer, seconds)
        looking = () if self._quarantine is None else (self._look(self._quarantine),)
        try:
            await until_one_ends(self._read(), self._serve(), *looking)
        finally:
            self._projection.save()
            if self._quarantine is not None:
                self._quarantine.save()

    async def _look(self, quarantine: Quarantine) -> None:
        """Only once it sits: a new leader's way back is not shared with a second reader."""
        await self._seated.wait()
        await quarantine.look(self._ring)

    async def _read(self) -> None:
        stream = self._bus.ev.read(self._projection.sequence, *filters(self._place.run, self._mind))
        async with contextlib.aclosing(stream):
            async for stored in stream:
                await self._inbox.put(stored)

    async def _serve(self) -> None:
        await self._take_office()
        await self._catch_up(self._own)
        self._wind_up()
        self._seated.set()
        while True:
            await self._catch_up(self._own)
            if not await self._speak():
                self._fold(await self._inbox.get())

    async def _take_office(self) -> None:
        """A former leader that still speaks is no reason to stop: from this commit on it is refused."""
        taken = OfficeTaken(service=self._place.service, instance=self._place.instance)
        while not self._term:
            last = await self._bus.ev.last(subjects.producer(self._place.run, self._place.service))
            self._own = last.sequence if last else 0
            await self._catch_up(self._own)
            with contextlib.suppress(Conflict):
                self._own = self._term = await self._append(("office",), (taken,), self._place.run, 0)

    async def _speak(self) -> bool:
        """Say the one thing that is due first; False when nothing is."""
        while not self._observed.empty():
            observed = self._observed.get_nowait()
            if observed.holds():
                await self._say(observed.entity, (observed.event,), self._place.run, self._projection.sequence)
                return True
        if self._quarantine is not None and (refused := self._quarantine.due(self._own)):
            await self._say(("quarantine",), (refused,), self._place.run, self._projection.sequence)
            return True
        decision = await self._mind.think(self._projection.state)
        if decision is None:
            return False
        await self._say(decision.subject, decision.events, decision.correlation, decision.causation)
        return True

    async def _say(self, entity: tuple[str, ...], events: tuple[Event, ...], correlation: str, causation: int) -> None:
        try:
            self._own = await self._append(entity, events, correlation, causation)
        except Conflict as conflict:
            raise self._overtaken(f"expected sequence {conflict.expected}, found {conflict.found}") from conflict
        failpoints.said(self._place.folder, events)

    async def _append(
        self, entity: tuple[str, ...], events: tuple[Event, ...], correlation: str, causation: int
    ) -> int:
        """Conditional on the last word of this service. Raises `Conflict`."""
        commit = self._place.commit(
            events, as_of=self._projection.sequence, correlation=correlation, causation=causation
        )
        expect = Expect(subjects.producer(self._place.run, self._place.service), self._own)
        return await self._bus.ev.append(self._place.subject(*entity), commit, expect)

    def _overtaken(self, how: str) -> Overtaken:
        return Overtaken(
            f"{self._place.service} {self._place.instance}: another {self._place.service} holds the office of run "
            f"{self._place.run} ({how}); this one stops"
        )

    async def _catch_up(self, sequence: int) -> None:
        """Fold at least up to this sequence, and then all that lies ready."""
        while self._projection.sequence < sequence or not self._inbox.empty():
            self._fold(await self._inbox.get())

    def _fold(self, stored: Stored) -> None:
        if stored.sequence == 0 or not self._projection.feed(stored):
            return
        if stored.commit is not None and stored.commit.producer.service == self._place.service:
            for event in stored.commit.events:
                self._keep_time(event, stored.commit.time)
                if isinstance(event, OfficeTaken) and 0 < self._term < stored.sequence:
                    raise self._overtaken(f"{event.instance} took it with sequence {stored.sequence}")

    def _keep_time(self, event: Event, set_at: int) -> None:
        if isinstance(event, TimerSet):
            past = (time.time_ns() - set_at) / 1e9  # below 0 where the clock was set back meanwhile
            self._arm(event.timer, min(event.seconds, max(0.0, event.seconds - past)))
        elif isinstance(event, TimerFired):
            if self._due is not None:
                self._due.pop(event.timer, None)
            if handle := self._timers.pop(event.timer, None):
                handle.cancel()

    def _wind_up(self) -> None:
        """Let the timers run that nobody has fired so far."""
        due, self._due = self._due or {}, None
        for timer, at in due.items():
            self._arm(timer, max(0.0, at - asyncio.get_running_loop().time()))

    def _arm(self, timer: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._due is not None:
            self._due[timer] = loop.time() + seconds
            return
        self._timers[timer] = loop.call_later(seconds, self.observe, ("timer",), TimerFired(timer=timer))


def office_of(place: Place, bus: BusPort, mind: Mind[State], quarantine: Quarantine | None = None) -> Office[State]:
    """The office of a mind, going on where its snapshot says.

    Under "laptop" durability a power cut may take back commits that a snapshot holds: the log is folded from its start.
    """
    durable = place.config.bus.durability == "always"
    file = snapshot_file(place.folder, place.run, mind) if durable else None
    projection = Projection(mind.initial, mind.evolve, file, seconds=SAVE_SECONDS, whole=False)
    return Office(place, bus, mind, projection, quarantine)


def snapshot_file(folder: Path, run: str, mind: Mind[State]) -> SnapshotFile[State]:
    """Where a decider keeps its state: a cache, whose loss only costs time."""
    return SnapshotFile(folder / "snapshots" / f"{mind.service}.json", mind.adapter, f"{run} {mind.service} 3")
