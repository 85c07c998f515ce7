"""The bus in memory: the public twin of `bus.jetstream` for tests, examples and simulations in one process.

It keeps what the server guarantees (order, conditions, limits, leases, bounded redelivery) and nothing on disk but
blobs. Processes share nothing: all buses of one `MemoryBroker` live on one event loop.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from bus import codec, streams, subjects
from bus.blobs import Blobs
from bus.errors import Conflict, NoStream, StreamFull, Unavailable
from bus.log import Expect, QueueName, Raw, Stored
from bus.memory_queue import Bell, MemoryPoison, MemoryQueue, QueueState
from bus.streams import Limits
from schemas.envelope import Commit


class MemoryStream:
    """Stored bytes in order; refuses beyond a size."""

    def __init__(self, name: str, max_bytes: int) -> None:
        """Begin empty."""
        self.name, self.max_bytes = name, max_bytes
        self.messages: list[tuple[str, bytes]] = []
        self.bell = Bell()
        self._size = 0
        self._ids: dict[str, int] = {}

    def store(self, subject: str, data: bytes, commit_id: str = "") -> int:
        """Append bytes and return their sequence; a commit id that is already there returns its first one."""
        if commit_id in self._ids:
            return self._ids[commit_id]
        if self._size + len(subject) + len(data) > self.max_bytes:
            raise StreamFull(f"subject {subject}: the stream is full; raise its size limit and resume the run")
        self.messages.append((subject, data))
        self._size += len(subject) + len(data)
        if commit_id:
            self._ids[commit_id] = len(self.messages)
        self.bell.ring()
        return len(self.messages)

    def last(self, filter: str) -> int:  # noqa: A002 (the word of the Log protocol)
        """The last sequence under a filter; 0 for none."""
        for sequence in range(len(self.messages), 0, -1):
            if not filter or subjects.matches(filter, self.messages[sequence - 1][0]):
                return sequence
        return 0

    def next(self, after: int, filters: tuple[str, ...]) -> int:
        """The first sequence after this one under one of the filters (none: any subject); 0 for none."""
        for sequence in range(after + 1, len(self.messages) + 1):
            if subjects.under(filters, self.messages[sequence - 1][0]):
                return sequence
        return 0


@dataclass(slots=True)
class _RunState:
    ev: MemoryStream
    calls: MemoryStream
    queues: dict[QueueName, QueueState]


class MemoryBroker:
    """What a server is to `bus.jetstream`: the place where runs live."""

    def __init__(self) -> None:
        """Begin without runs."""
        self._runs: dict[str, _RunState] = {}
        self._listeners: list[tuple[str, asyncio.Queue[tuple[str, bytes]]]] = []

    def provision(self, run: str, limits: Limits) -> None:
        """Make a run's streams, or bring existing ones to these limits."""
        if run not in self._runs:
            ev = MemoryStream(streams.ev_stream(run), limits.ev_bytes)
            calls = MemoryStream(streams.call_stream(run), limits.call_bytes)
            self._runs[run] = _RunState(ev, calls, {queue: QueueState(run, queue, limits) for queue in streams.QUEUES})
        self.run(run).ev.max_bytes, self.run(run).calls.max_bytes = limits.ev_bytes, limits.call_bytes

    def run(self, run: str) -> _RunState:
        """A run's streams; `NoStream` before it is provisioned."""
        if run not in self._runs:
            raise NoStream(f"run {run}: not in this broker; provision it first")
        return self._runs[run]

    def store(self, run: str, subject: str, data: bytes, commit_id: str = "") -> int:
        """Store bytes as any client could, commit or not, and feed the queues."""
        state = self.run(run)
        stream = state.ev if subjects.matches(subjects.everything(run), subject) else state.calls
        before = len(stream.messages)
        sequence = stream.store(subject, data, commit_id)
        if stream is state.ev and sequence > before:
            for queue in state.queues.values():
                queue.offer(sequence, subject, data)
        return sequence

    def tell(self, subject: str, body: bytes) -> None:
        """Give what may be lost to who listens."""
        for filter_, heard in self._listeners:
            if subjects.matches(filter_, subject) and not heard.full():
                heard.put_nowait((subject, body))

    async def listen(self, subject: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """See `BusPort`."""
        listener = (subject, asyncio.Queue[tuple[str, bytes]](4096))
        self._listeners.append(listener)
        try:
            while True:
                yield await listener[1].get()
        finally:
            self._listeners.remove(listener)


class MemoryLog:
    """One stream; implements `bus.log.Log`."""

    def __init__(self, broker: MemoryBroker, run: str, stream: MemoryStream, prefix: str, blobs: Blobs) -> None:
        """`prefix` is what every subject of the stream begins with."""
        self._broker, self._run, self._stream, self._prefix, self._blobs = broker, run, stream, prefix, blobs
        self.closed = False

    async def append(self, subject: str, commit: Commit, expect: Expect | None = None) -> int:
        """See `Log`."""
        if not subject.startswith(self._prefix):
            raise ValueError(f"subject {subject}: stream {self._stream.name} takes {self._prefix}>")
        if self.closed:
            raise Unavailable(f"subject {subject}: the bus is closed")
        data = codec.encode(commit, self._blobs)
        if expect is None:
            return self._broker.store(self._run, subject, data, commit.commit)
        found = self._stream.last(expect.filter)
        if found == expect.sequence:
            return self._broker.store(self._run, subject, data)
        winner = self._stream.next(expect.sequence, (expect.filter,))
        if winner and codec.commit_id(self._stream.messages[winner - 1][1]) == commit.commit:
            return winner
        raise Conflict(expect.filter, expect.sequence, found)

    async def read(self, after: int = 0, *filters: str) -> AsyncGenerator[Stored, None]:
        """See `Log`."""
        wanted = subjects.wanted(filters)
        while True:
            sequence = self._stream.next(after, wanted)
            if sequence:
                after = sequence
                yield self._decoded(sequence)
            else:
                after = len(self._stream.messages)
                await self._stream.bell.heard()

    async def chunks(self, after: int = 0) -> AsyncGenerator[list[Raw], None]:
        """See `Log`."""
        while True:
            there = self._stream.messages[after:]
            if there:
                yield [(after + place, *message) for place, message in enumerate(there, start=1)]
                after += len(there)
            else:
                await self._stream.bell.heard()

    async def last(self, filter: str) -> Stored | None:  # noqa: A002
        """See `Log`."""
        sequence = self._stream.last(filter)
        return self._decoded(sequence) if sequence else None

    async def get(self, sequence: int) -> Stored | None:
        """See `Log`."""
        return self._decoded(sequence) if 0 < sequence <= len(self._stream.messages) else None

    async def head(self) -> int:
        """See `Log`."""
        return len(self._stream.messages)

    def _decoded(self, sequence: int) -> Stored:
        return codec.decode(sequence, *self._stream.messages[sequence - 1], self._blobs)


class MemoryBus:
    """A service's view of one run; implements `bus.log.BusPort`."""

    def __init__(self, broker: MemoryBroker, run: str, service: str, instance: str, folder: Path) -> None:
        """Use `MemoryBus.connect`."""
        self.run, self.service, self.instance = run, service, instance
        self.blobs = Blobs(folder / "blobs")
        self._broker, self._state = broker, broker.run(run)
        self.ev = MemoryLog(broker, run, self._state.ev, f"ev.{run}.", self.blobs)
        self.calls = MemoryLog(broker, run, self._state.calls, f"call.{run}.", self.blobs)

    @classmethod
    async def connect(
        cls,
        broker: MemoryBroker,
        run: str,
        service: str,
        instance: str,
        folder: Path,
        create: bool = False,
        *,
        limits: Limits | None = None,
    ) -> "MemoryBus":
        """Connect to a broker and, with `create`, provision the run there; `NoStream` where it never was."""
        subjects.everything(run)
        if create:
            broker.provision(run, limits or Limits())
        return cls(broker, run, service, instance, folder)

    def queue(self, name: QueueName) -> MemoryQueue:
        """See `BusPort`."""
        return MemoryQueue(self._state.queues[name], self.blobs)

    async def parked(self) -> AsyncGenerator[MemoryPoison, None]:
        """See `BusPort`."""
        told: set[tuple[QueueName, int]] = set()
        while True:
            for name, state in self._state.queues.items():
                for entry in state.poison():
                    if (name, entry.sequence) not in told:
                        told.add((name, entry.sequence))
                        yield MemoryPoison(state, entry, self.blobs)
            await self._any_queue_changed()

    async def _any_queue_changed(self) -> None:
        changes = [asyncio.create_task(state.changed()) for state in self._state.queues.values()]
        try:
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for change in changes:
                change.cancel()

    async def tell(self, subject: str, body: bytes) -> None:
        """See `BusPort`."""
        self._broker.tell(subject, body)

    def listen(self, subject: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """See `BusPort`."""
        return self._broker.listen(subject)

    async def close(self) -> None:
        """See `BusPort`."""
        self.ev.closed = self.calls.closed = True
