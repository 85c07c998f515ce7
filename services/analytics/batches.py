"""Rows of a log in batches, read ahead by one: while a batch is written, the next one fills."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from bus.blobs import Blobs
from bus.codec import body_of
from bus.log import Raw, ReadLog
from gyre.warehouse.rows import lines, unreadable
from schemas.speakers import Stream
from schemas.upcast import Malformed

ROWS, BYTES = 64_000, 48 << 20
"""A batch is full at either. Every message has a row, so it spans fewer sequences than `tables.DOUBTFUL_SEQUENCES`."""
LINGER_SECONDS = 0.5
"""How long a batch that is not full waits for more."""


@dataclass(slots=True)
class Batch:
    """Rows of whole messages."""

    rows: list[bytes] = field(default_factory=list)
    size: int = 0
    """Bytes."""
    last: int = 0
    """Sequence of the last message."""

    @property
    def full(self) -> bool:
        """Whether nothing more should be added."""
        return len(self.rows) >= ROWS or self.size >= BYTES


@dataclass(slots=True)
class Inbox:
    """Rows on their way; whoever puts some in waits while it is full."""

    batch: Batch = field(default_factory=Batch)
    ended: bool = False
    """Nothing more will come."""
    hurried: int = 0
    """How many wait for what comes: then no batch waits for more."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, rows: list[bytes], last: int) -> None:
        """All rows of some messages, up to sequence `last`: none is torn apart."""
        if self.batch.full:
            async with self.changed:
                await self.changed.wait_for(lambda: not self.batch.full)
        first = not self.batch.rows
        self.batch.rows += rows
        self.batch.size += sum(map(len, rows))
        self.batch.last = last
        if first or self.batch.full or self.hurried:
            await self._tell()

    async def end(self) -> None:
        """Say that nothing more will come."""
        self.ended = True
        await self._tell()

    async def take(self, linger_seconds: float) -> Batch:
        """A batch, once it is full, hurried, or its first row has waited so long; one without rows at the end."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.batch.rows or self.ended)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(linger_seconds):
                    await self.changed.wait_for(lambda: self.batch.full or self.ended or self.hurried)
            taken, self.batch = self.batch, Batch()
            self.changed.notify_all()
            return taken

    @contextlib.asynccontextmanager
    async def hurry(self) -> AsyncGenerator[None, None]:
        """Let no batch wait meanwhile."""
        self.hurried += 1
        await self._tell()
        try:
            yield
        finally:
            self.hurried -= 1

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read: a stream of a run after a sequence, up to another one (None: for ever)."""

    run: str
    stream: Stream
    log: ReadLog
    blobs: Blobs
    after: int
    until: int | None = None


async def batches(reading: Reading, inbox: Inbox) -> AsyncGenerator[Batch, None]:
    """Rows of a log in batches; ends with the log, or with the error that ended it."""
    filling = asyncio.ensure_future(_fill(reading, inbox))
    try:
        while (batch := await inbox.take(LINGER_SECONDS)).rows:
            yield batch
        await filling
    finally:
        filling.cancel()
        await asyncio.wait([filling])


async def _fill(reading: Reading, inbox: Inbox) -> None:
    try:
        if reading.until is not None and reading.after >= reading.until:
            return
        async with aclosing(reading.log.chunks(reading.after)) as chunks:
            async for chunk in chunks:
                wanted = chunk if reading.until is None else [each for each in chunk if each[0] <= reading.until]
                await inbox.put(_rows(reading, wanted), wanted[-1][0])
                if wanted[-1][0] == reading.until:
                    return
    finally:
        await inbox.end()


def _rows(reading: Reading, chunk: list[Raw]) -> list[bytes]:
    rows: list[bytes] = []
    for sequence, subject, data in chunk:
        try:
            body = body_of(data, reading.blobs)
        except Malformed as error:
            rows.append(unreadable(reading.run, reading.stream, sequence, subject, error.reason))
        else:
            rows += lines(reading.run, reading.stream, sequence, subject, body)
    return rows
