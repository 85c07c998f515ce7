"""Work queues of the bus in memory: leases by the event loop's clock, bounded redelivery, poison."""

import asyncio
import contextlib
from dataclasses import dataclass

from bus import codec, streams, subjects
from bus.blobs import Blobs
from bus.log import Delivery, QueueName, Stored
from bus.streams import Limits


class Bell:
    """Wakes everybody who waits when something changed."""

    def __init__(self) -> None:
        """Nobody waits yet."""
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake them."""
        self._event.set()
        self._event = asyncio.Event()

    async def heard(self) -> None:
        """Wait for the next ring."""
        await self._event.wait()


@dataclass(slots=True, eq=False)
class Entry:
    """A work item; `free_at` is when its lease or delay ends, on the loop's clock."""

    sequence: int
    subject: str
    data: bytes
    attempts: int = 0
    free_at: float = 0.0


class QueueState:
    """One queue of one run, shared by all who pull from it."""

    def __init__(self, run: str, name: QueueName, limits: Limits) -> None:
        """Begin empty."""
        self.name = name
        self._filter = streams.sources(run, name)[0]
        self._leases, self._most = limits.backoff(name), limits.deliveries(name)
        self._entries: list[Entry] = []
        self._bell = Bell()

    def offer(self, sequence: int, subject: str, data: bytes) -> None:
        """Take what was stored in EV if it is this queue's work."""
        if subjects.matches(self._filter, subject):
            self._entries.append(Entry(sequence, subject, data))
            self._bell.ring()

    def take(self, batch: int) -> list[Entry]:
        """Lease up to so many free items, oldest first."""
        now = _now()
        free = [entry for entry in self._entries if entry.free_at <= now and entry.attempts < self._most][:batch]
        for entry in free:
            entry.attempts += 1
            self.lease(entry)
        return free

    def lease(self, entry: Entry) -> None:
        """Start an item's lease anew."""
        entry.free_at = _now() + self._leases[min(entry.attempts, len(self._leases)) - 1]

    def give_back(self, entry: Entry, delay_seconds: float) -> None:
        """Let others have it after a delay."""
        entry.free_at = _now() + delay_seconds
        self._bell.ring()

    def remove(self, entry: Entry) -> None:
        """Take an item off; twice is as good as once."""
        if entry in self._entries:
            self._entries.remove(entry)
            self._bell.ring()

    def poison(self) -> list[Entry]:
        """Items that were delivered as often as they may be, their last lease over."""
        now = _now()
        return [entry for entry in self._entries if entry.attempts >= self._most and entry.free_at <= now]

    async def changed(self) -> None:
        """Wait for a word about any item, or for the next lease to end."""
        ends = [entry.free_at for entry in self._entries if entry.free_at > _now()]
        patience = max(0.0, min(ends) - _now()) if ends else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._bell.heard()


@dataclass(slots=True)
class MemoryDelivery:
    """A leased item; implements `bus.log.Delivery`."""

    stored: Stored
    attempts: int
    _state: QueueState
    _entry: Entry

    async def ack(self) -> None:
        """See `Delivery`."""
        self._state.remove(self._entry)

    async def nak(self, delay_seconds: float = 0.0) -> None:
        """See `Delivery`."""
        self._state.give_back(self._entry, delay_seconds)

    async def extend(self) -> None:
        """See `Delivery`."""
        self._state.lease(self._entry)

    async def term(self, reason: str) -> None:
        """See `Delivery`."""
        self._state.remove(self._entry)


class MemoryQueue:
    """One worker's end of a work queue; implements `bus.log.Queue`."""

    def __init__(self, state: QueueState, blobs: Blobs) -> None:
        """Many may share a state."""
        self._state, self._blobs = state, blobs

    async def pull(self, batch: int, wait_seconds: float) -> list[Delivery]:
        """See `bus.log.Queue`."""
        taken = self._state.take(batch)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while not taken:
                    await self._state.changed()
                    taken = self._state.take(batch)
        return [self._deliver(entry) for entry in taken]

    def _deliver(self, entry: Entry) -> Delivery:
        stored = codec.decode(entry.sequence, entry.subject, entry.data, self._blobs)
        return MemoryDelivery(stored, entry.attempts, self._state, entry)


@dataclass(slots=True)
class MemoryPoison:
    """An item that ran out of deliveries; implements `bus.log.Parked`."""

    state: QueueState
    entry: Entry
    blobs: Blobs

    @property
    def queue(self) -> QueueName:
        """See `Parked`."""
        return self.state.name

    @property
    def stored(self) -> Stored:
        """See `Parked`."""
        return codec.decode(self.entry.sequence, self.entry.subject, self.entry.data, self.blobs)

    @property
    def attempts(self) -> int:
        """See `Parked`."""
        return self.entry.attempts

    async def remove(self) -> None:
        """See `Parked`."""
        self.state.remove(self.entry)


def _now() -> float:
    return asyncio.get_running_loop().time()
