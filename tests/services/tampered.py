"""A recorded run with something changed in it, as a source that any reader takes."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.archive import export
from bus.archive_log import open_archive
from services.source import Source, open_source

Json = dict[str, Any]
Message = tuple[str, Json]
"""Subject, and the commit as it is stored; no message of the recorded runs is a claim check."""
Change = Callable[[list[Message], list[Message]], None]
"""What is done to the messages of EV and CALL, in place."""


@dataclass(frozen=True)
class Kept:
    """A stream in memory: a `RawLog`."""

    messages: list[Message] = field(default_factory=list)

    async def head(self) -> int:
        return len(self.messages)

    async def raw(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        for sequence, (subject, commit) in enumerate(self.messages, 1):
            yield sequence, subject, json.dumps(commit).encode()


@asynccontextmanager
async def tampered(archive: Path, folder: Path, change: Change) -> AsyncIterator[Source]:
    """Everything else of the archive stays as it is, and its index and footer are right."""
    path = folder / "tampered.jsonl.zst"
    with open_archive(archive) as recorded:
        ev, calls = [
            Kept([(subject, json.loads(data)) async for _, subject, data in log.raw()])
            for log in (recorded.ev, recorded.calls)
        ]
        change(ev.messages, calls.messages)
        await export(path, recorded.run, ev, calls, recorded.blobs)
    async with open_source(str(path), folder) as source:
        yield source


def first(messages: list[Message], kind: str, place: int = 0) -> int:
    """Index of the message with the n-th event of this kind."""
    return [index for index, (_, commit) in enumerate(messages) if any(e["type"] == kind for e in commit["events"])][
        place
    ]


def event(messages: list[Message], kind: str, place: int = 0) -> Json:
    """The n-th event of this kind."""
    found: Json = next(e for e in messages[first(messages, kind, place)][1]["events"] if e["type"] == kind)
    return found
