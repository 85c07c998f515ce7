"""A log of many commits of one to three events in both streams, the same each time; and the sink as a program.

As a program: `python -m tests.warehouse.sink_log FOLDER COMMITS ROWS` fills the warehouse in a folder from such a log,
in batches of so many rows, and says a line before each.
"""

import asyncio
import random
import sys
from collections.abc import AsyncGenerator
from functools import cache
from pathlib import Path

from bus.blobs import Blobs
from bus.codec import decode
from bus.log import Raw, Stored
from gyre.warehouse.clickhouse import Warehouse
from schemas.envelope import COMMIT, Event
from schemas.speakers import Stream, stream_of
from services.analytics import batches
from services.analytics import service as analytics
from services.source import Source
from tests.warehouse.told import committed, faulty

RUN = "many"
BLOBS = Blobs(Path("nowhere"), durable=False)


class ToldLog:
    """One stream, read as `bus.log.ReadLog`; it ends."""

    def __init__(self, stream: Stream, commits: int) -> None:
        """The `commits` first of the stream."""
        self.stream, self.commits = stream, commits

    async def read(self, after: int = 0, *_: str) -> AsyncGenerator[Stored, None]:
        for sequence in range(after + 1, self.commits + 1):
            yield self.stored(sequence)

    async def chunks(self, after: int = 0) -> AsyncGenerator[list[Raw], None]:
        for first in range(after + 1, self.commits + 1, 16):
            await asyncio.sleep(0)
            yield [self.raw(sequence) for sequence in range(first, min(first + 16, self.commits + 1))]

    async def last(self, _: str) -> Stored | None:
        return await self.get(self.commits)

    async def get(self, sequence: int) -> Stored | None:
        return self.stored(sequence) if 0 < sequence <= self.commits else None

    async def head(self) -> int:
        return self.commits

    def stored(self, sequence: int) -> Stored:
        return decode(*self.raw(sequence), BLOBS)

    def raw(self, sequence: int) -> Raw:
        """One commit in a hundred cannot be read."""
        subject = f"{self.stream.lower()}.{RUN}.x"
        if sequence % 100 == 0:
            return sequence, subject, b"no JSON"
        events = said(self.stream)
        chance = random.Random(f"{self.stream}{sequence}")
        count = chance.choice((1, 1, 2, 3)) if self.stream == "EV" else 1
        commit = committed(RUN, sequence / 8, *(chance.choice(events) for _ in range(count)))
        return sequence, subject, COMMIT.dump_json(commit)


@cache
def said(stream: Stream) -> tuple[Event, ...]:
    """The events that the log is made of."""
    return tuple(event for event in faulty() if not isinstance(event, str) and stream_of(event.type) == stream)


def source(commits: int) -> Source:
    """Both streams; CALL has half as many commits."""
    logs = ToldLog("EV", commits), ToldLog("CALL", commits // 2)
    return Source(RUN, *logs, BLOBS, None)


class Telling(Warehouse):
    """Says a line before each batch."""

    def insert(self, lines: list[bytes]) -> None:  # type: ignore[override]
        print(len(lines), flush=True)
        super().insert(lines)


def main() -> None:
    folder, commits, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    batches.ROWS = rows
    asyncio.run(analytics.catch_up(Telling(folder), source(commits)))
    print("done", flush=True)


if __name__ == "__main__":
    main()
