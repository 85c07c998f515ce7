"""`gyre replay RUN --step`: walk a log event by event, with a state beside it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from bus.log import Stored
from gyre.core.causes import EventId
from gyre.core.difference import Row, changes
from schemas.envelope import Event
from services.reading import heard
from services.source import Source
from services.states import Fold, fold_of

KEPT_EVERY = 256
"""Commits between two states that are kept to go back from."""
Holds = Callable[[EventId, Event], bool]
BEGINNING = EventId(0)


@dataclass
class Walker:
    """A place in a log, and a state as it is after the event there."""

    source: Source
    name: str
    """Of the state, see `services.states.STATES`."""
    _fold: Fold
    _state: Any
    place: EventId = BEGINNING
    """The event that was folded last; 0.0 before the first."""
    stored: Stored | None = None
    """Its commit."""
    _before: Any = None
    """The state before it, as plain data."""
    _kept: list[tuple[int, Any]] = field(default_factory=list)
    """(sequence, state after it), in order."""

    @classmethod
    async def begin(cls, source: Source, name: str) -> "Walker":
        """Stand before the first event."""
        fold = await fold_of(source, name)
        return cls(source, name, fold, fold.initial(), _before=fold.plain(fold.initial()))

    @property
    def event(self) -> Event | None:
        """The event at the place; None before the first."""
        return None if self.stored is None else _events(self.stored)[self.place.part]

    @property
    def state(self) -> Any:
        """The state after it, as plain data."""
        return self._fold.plain(self._state)

    def changed(self) -> tuple[Row, ...]:
        """What the event changed in the state."""
        return tuple(changes(self._before, self.state))

    async def look_at(self, name: str) -> None:
        """Take another state along, as of the same event."""
        fold, place = await fold_of(self.source, name), self.place
        self.name, self._fold = name, fold
        self._restart()
        if place != BEGINNING:
            await self.to(place)

    async def next(self) -> bool:
        """One event on; False at the end of the log as it is now."""
        following = await self.following(lambda *_: True)
        if following is None:
            return False
        await self.to(following)
        return True

    async def back(self) -> bool:
        """One event back; False at the first."""
        before = await self._preceding()
        if before is None:
            return False
        await self.to(before)
        return True

    async def following(self, holds: Holds) -> EventId | None:
        """The next event that holds; None if there is none. The place stays."""
        async with aclosing(self._events(self._after())) as events:
            async for place, _, event in events:
                if place > self.place and holds(place, event):
                    return place
        return None

    async def to(self, place: EventId) -> None:
        """Go to an event that the log has."""
        if place <= self.place:
            self._restart(place)
        async with aclosing(self._events(self._after(), place.sequence)) as events:
            async for here, stored, event in events:
                if here <= self.place or here > place:
                    continue
                if here == place:
                    self._before = self.state
                self._take(here, stored, event)

    def _take(self, place: EventId, stored: Stored, event: Event) -> None:
        if self._fold.hears(stored):
            self._state = self._fold.add(self._state, stored, event)
        self.place, self.stored = place, stored
        last = place.part == len(_events(stored)) - 1
        if self._fold.frozen and last and place.sequence >= self._kept_to + KEPT_EVERY:
            self._kept.append((place.sequence, self._state))

    @property
    def _kept_to(self) -> int:
        return self._kept[-1][0] if self._kept else 0

    def _after(self) -> int:
        """From which sequence to read on: the commit of the place may hold more events."""
        return max(0, self.place.sequence - 1)

    def _restart(self, place: EventId = BEGINNING) -> None:
        """Stand at the last kept state before a place, or before the first event."""
        if place == BEGINNING:
            self._kept.clear()
        while self._kept and self._kept[-1][0] >= place.sequence:
            self._kept.pop()
        sequence, self._state = self._kept[-1] if self._kept else (0, self._fold.initial())
        self.place, self.stored = EventId(sequence, 1 << 30) if sequence else BEGINNING, None
        self._before = self.state

    async def _preceding(self) -> EventId | None:
        if self.place == BEGINNING:
            return None
        if self.place.part > 0:
            return EventId(self.place.sequence, self.place.part - 1)
        for sequence in range(self.place.sequence - 1, 0, -1):
            stored = await self.source.ev.get(sequence)
            if stored is not None and stored.commit is not None:
                return EventId(sequence, len(stored.commit.events) - 1)
        return None

    async def _events(
        self, after: int, until: int | None = None
    ) -> AsyncGenerator[tuple[EventId, Stored, Event], None]:
        async with aclosing(heard(self.source.ev, (), after, until)) as log:
            async for stored in log:
                for index, event in enumerate(_events(stored)):
                    yield EventId(stored.sequence, index), stored, event


def _events(stored: Stored) -> tuple[Event, ...]:
    return stored.commit.events if stored.commit else ()
