"""What a service may ask of the bus: append to a log, read it in order, pull work, park poison.

Implemented by `bus.jetstream` (a real server) and `bus.memory` (its public twin); one contract suite runs over both.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from bus.blobs import Blobs
from schemas.envelope import Commit

QueueName = Literal["rollout", "eval", "step"]
Raw = tuple[int, str, bytes]
"""(sequence, subject, stored bytes)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of a log. `commit` is None where the stored bytes are no commit; `reason` says why in one line."""

    sequence: int
    subject: str
    commit: Commit | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expect:
    """A condition: the last sequence under this subject filter is this one (0: nothing was ever said there)."""

    filter: str
    sequence: int


class ReadLog(Protocol):
    """One stream of a run for those who only read it: on a server, in memory or in an archive."""

    def read(self, after: int = 0, *filters: str) -> AsyncGenerator[Stored, None]:
        """Everything stored after a sequence, in order and each once, then the live tail (of an archive: its end).

        Lost connections, restarts and gaps renew the session inside. Several filters (which must not overlap) give
        what lies under any of them; without one, or with an empty one, all subjects are meant, and then the sequences
        are consecutive. Raises `NoStream`, or `LogDamaged` where a sequence is missing for good.
        """

    def chunks(self, after: int = 0) -> AsyncGenerator[list[Raw], None]:
        """The same as it is stored, under all subjects and many at a time: for who reads much and models little."""

    async def last(self, filter: str) -> Stored | None:  # noqa: A002
        """The last message under a filter ("" for any)."""

    async def get(self, sequence: int) -> Stored | None:
        """The message with this sequence."""

    async def head(self) -> int:
        """The last sequence; 0 for an empty log."""


class Log(ReadLog, Protocol):
    """One stream of a run: EV or CALL."""

    async def append(self, subject: str, commit: Commit, expect: Expect | None = None) -> int:
        """Store a commit durably and return its sequence.

        Safe to repeat with the same commit id. Commits awaited one after the other are stored in that order;
        concurrent ones in any.

        Raises:
            Conflict: the condition does not hold; nothing was stored by this call or an earlier try of it.
            StreamFull: the stream's size limit is reached.
            Denied: this user may not say that.
            Unavailable: no answer within patience; whether it was stored is unknown.
        """


class Delivery(Protocol):
    """A work item, leased to this worker until it is acknowledged or the lease runs out. A hint, never a claim."""

    @property
    def stored(self) -> Stored:
        """The commit as it stands in EV: its sequence and subject there."""

    @property
    def attempts(self) -> int:
        """How often it was delivered, this time included."""

    async def ack(self) -> None:
        """Take it off the queue: whatever it asked for is dealt with in the log."""

    async def nak(self, delay_seconds: float = 0.0) -> None:
        """Give it back, to be delivered again after a delay; counts as an attempt."""

    async def extend(self) -> None:
        """Start the lease anew."""

    async def term(self, reason: str) -> None:
        """Take it off the queue without having dealt with it; the reason is kept by the server's advisories only."""


class Queue(Protocol):
    """Work sourced from EV."""

    async def pull(self, batch: int, wait_seconds: float) -> list[Delivery]:
        """Up to `batch` items: what is there now, or the first to come within the wait; [] when nothing came."""


class Parked(Protocol):
    """Poison: a work item that was delivered as often as it may be and never acknowledged."""

    @property
    def queue(self) -> QueueName:
        """The queue in which it still lies, invisible to workers."""

    @property
    def stored(self) -> Stored:
        """The commit as it stands in EV."""

    @property
    def attempts(self) -> int:
        """How often it was delivered."""

    async def remove(self) -> None:
        """Take it off its queue, once the log says what became of it."""


class BusPort(Protocol):
    """A service's view of one run."""

    run: str
    service: str
    instance: str
    blobs: Blobs

    @property
    def ev(self) -> Log:
        """Control-plane commits: the truth."""

    @property
    def calls(self) -> Log:
        """Request records."""

    def queue(self, name: QueueName) -> Queue:
        """A worker's end of one of the run's work queues; pulls through one end take turns."""

    def parked(self) -> AsyncGenerator[Parked, None]:
        """Poison of all queues that was not removed yet, then what comes; never ends."""

    async def tell(self, subject: str, body: bytes) -> None:
        """Say what may be lost."""

    def listen(self, subject: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """(subject, body) of what is told under a filter from now on; slow listeners miss some."""

    async def close(self) -> None:
        """Let go of the server; appends still waiting fail with `Unavailable`."""
