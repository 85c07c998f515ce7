"""How far a service is behind the log, measured from outside it: the sequences that it asked past, against the head.

A service that works through a queue only has no reader and no lag. One that keeps a short inbox behind its reader (the
offices: 4096 messages at most) counts as having read what lies there.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bus import subjects
from bus.errors import BusError
from bus.log import BusPort, Expect, Log, Parked, Queue, QueueName, Raw, Stored
from schemas.envelope import Commit


class Position(NamedTuple):
    """Where a service stands in EV."""

    sequence: int
    """Everything up to here was read."""
    head: int
    """The last sequence of the log."""

    @property
    def lag(self) -> int:
        """Sequences still to be read."""
        return max(0, self.head - self.sequence)


class Ear(Protocol):
    """Hears what a process says."""

    def said(self, commit: Commit, seconds: float) -> None:
        """A commit was stored, so many seconds after it was said."""

    def refused(self, error: BusError) -> None:
        """A commit was not stored, or it is unknown whether it was."""


@dataclass(slots=True, eq=False)
class _Reader:
    """One session of `read`; `sequence` is the last message after which the next one was asked for."""

    filters: tuple[str, ...]
    sequence: int


class FollowedLog:
    """A log that knows how far its readers got; implements `Log`."""

    def __init__(self, log: Log, ear: Ear | None = None) -> None:
        """Follow the readers of this log, and tell the ear what is said."""
        self._log, self._ear = log, ear
        self._readers: set[_Reader] = set()
        self.used = False
        """Whether anything was ever read."""

    async def append(self, subject: str, commit: Commit, expect: Expect | None = None) -> int:
        """See `Log`."""
        if self._ear is None:
            return await self._log.append(subject, commit, expect)
        began = time.monotonic()
        try:
            sequence = await self._log.append(subject, commit, expect)
        except BusError as error:
            self._ear.refused(error)
            raise
        self._ear.said(commit, time.monotonic() - began)
        return sequence

    async def read(self, after: int = 0, *filters: str) -> AsyncGenerator[Stored, None]:
        """See `Log`."""
        reader = _Reader(subjects.wanted(filters), after)
        self._readers.add(reader)
        self.used = True
        try:
            async with aclosing(self._log.read(after, *filters)) as stream:
                async for stored in stream:
                    yield stored
                    reader.sequence = stored.sequence
        finally:
            self._readers.discard(reader)

    async def chunks(self, after: int = 0) -> AsyncGenerator[list[Raw], None]:
        """See `Log`."""
        reader = _Reader((), after)
        self._readers.add(reader)
        self.used = True
        try:
            async with aclosing(self._log.chunks(after)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    reader.sequence = chunk[-1][0]
        finally:
            self._readers.discard(reader)

    async def last(self, filter: str) -> Stored | None:  # noqa: A002
        """See `Log`."""
        return await self._log.last(filter)

    async def get(self, sequence: int) -> Stored | None:
        """See `Log`."""
        return await self._log.get(sequence)

    async def head(self) -> int:
        """See `Log`."""
        return await self._log.head()

    async def position(self) -> Position:
        """Where the reader stands that is furthest behind the last message of its filters."""
        head = await self._log.head()
        behind = [0]
        for reader in tuple(self._readers):
            ends = [await self._end(filter_) for filter_ in reader.filters] or [head]
            behind.append(max(ends) - reader.sequence)
        return Position(head - max(behind), head)

    async def _end(self, filter: str) -> int:  # noqa: A002
        last = await self._log.last(filter)
        return last.sequence if last else 0


class FollowedBus:
    """A bus that knows how far its service got; implements `BusPort`."""

    def __init__(self, bus: BusPort, ear: Ear | None = None) -> None:
        """Follow what is read through this bus from now on, and tell the ear what is said."""
        self.run, self.service, self.instance, self.blobs = bus.run, bus.service, bus.instance, bus.blobs
        self._bus, self._ev, self._calls = bus, FollowedLog(bus.ev, ear), FollowedLog(bus.calls, ear)
        self._works = False

    @property
    def ev(self) -> Log:
        """See `BusPort`."""
        return self._ev

    @property
    def calls(self) -> Log:
        """See `BusPort`."""
        return self._calls

    def queue(self, name: QueueName) -> Queue:
        """See `BusPort`."""
        self._works = True
        return self._bus.queue(name)

    def parked(self) -> AsyncGenerator[Parked, None]:
        """See `BusPort`."""
        return self._bus.parked()

    async def tell(self, subject: str, body: bytes) -> None:
        """See `BusPort`."""
        await self._bus.tell(subject, body)

    def listen(self, subject: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """See `BusPort`."""
        return self._bus.listen(subject)

    async def close(self) -> None:
        """See `BusPort`."""
        await self._bus.close()

    async def position(self) -> Position:
        """Where the service stands in EV; at 0 until it has begun to read or to work."""
        if not self._ev.used and not self._works:
            return Position(0, await self._ev.head())
        return await self._ev.position()

    async def positions(self) -> dict[str, Position]:
        """Where the service stands in each log that it reads."""
        found = {"EV": await self.position()}
        if self._calls.used:
            found["CALL"] = await self._calls.position()
        return found
