"""A sink answers for the warehouse whose folder it holds: questions in SQL, and how far it is.

The protocol is in `gyre.warehouse.live`. The socket lies in a folder of its own, since a run's folder may have a longer
path than a socket can have; the note that names it lies in the warehouse's folder for as long as the sink serves.
"""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.engine import WarehouseError
from gyre.warehouse.live import DESK, PATIENCE_SECONDS
from schemas.speakers import Stream
from services.analytics.batches import Inbox

MOST_BYTES = 1 << 20
"""Of a question."""
_PREFIX = "gyre-desk-"


@dataclass(slots=True)
class Desk:
    """A warehouse that is being filled, and how far it is."""

    warehouse: Warehouse
    inboxes: Mapping[Stream, Inbox]
    positions: dict[Stream, int] = field(default_factory=dict)
    """Sequence up to which each stream is there; absent before that was found out."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def reached(self, stream: Stream, sequence: int) -> None:
        """Say that a stream is there up to a sequence."""
        async with self.changed:
            self.positions[stream] = sequence
            self.changed.notify_all()

    async def reach(self, wanted: Mapping[str, int]) -> dict[Stream, int]:
        """Wait until so much is there, or for as long as anyone would; returns how much is there."""

        def there() -> bool:
            return all(self.positions.get(stream, 0) >= wanted.get(stream, 0) for stream in self.inboxes)

        async with AsyncExitStack() as stack:
            for inbox in self.inboxes.values():
                await stack.enter_async_context(inbox.hurry())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS / 2), self.changed:
                    await self.changed.wait_for(there)
        return dict(self.positions)

    async def answer(self, line: bytes) -> bytes:
        """What to say to one line."""
        try:
            body = await self._body(json.loads(line))
        except WarehouseError as error:
            return json.dumps({"error": str(error), "kind": type(error).__name__}).encode() + b"\n"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return json.dumps({"error": f"not a question ({error!r})", "kind": "QueryRefused"}).encode() + b"\n"
        return json.dumps({"size": len(body)}).encode() + b"\n" + body

    async def _body(self, asked: Mapping[str, Any]) -> bytes:
        if "reach" in asked:
            return json.dumps(await self.reach(asked["reach"])).encode()
        return await asyncio.to_thread(self.warehouse.query, asked["sql"], asked["parameters"], asked["form"])


@asynccontextmanager
async def desk(at: Desk) -> AsyncIterator[None]:
    """Answer for an embedded warehouse meanwhile; a server answers for itself."""
    if at.warehouse.folder is None:
        yield
        return
    _clear_left(at.warehouse.folder / DESK)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as place:
        path = str(Path(place) / "s")
        server = await asyncio.start_unix_server(lambda *ends: _attend(at, *ends), path, limit=MOST_BYTES)
        try:
            with _noted(at.warehouse.folder / DESK, path):
                yield
        finally:
            server.close()


def _clear_left(note: Path) -> None:
    """Remove the socket's folder of a sink that was killed: who serves a warehouse now holds it alone."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        place = Path(json.loads(note.read_text())["socket"]).parent
        if place.name.startswith(_PREFIX):
            shutil.rmtree(place)


@contextlib.contextmanager
def _noted(note: Path, path: str) -> Iterator[None]:
    said = json.dumps({"socket": path})
    note.parent.mkdir(parents=True, exist_ok=True)
    partial = note.with_suffix(".part")
    partial.write_text(said)
    partial.replace(note)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if note.read_text() == said:
                note.unlink()


async def _attend(at: Desk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One who asks, one question after the other; a line too long ends it."""
    with contextlib.suppress(OSError, ValueError):
        while line := await reader.readline():
            writer.write(await at.answer(line))
            await writer.drain()
    writer.close()
