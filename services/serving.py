"""The server of a run for the while of a command: one that serves already is used, else one is started and stopped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.place import Note


@asynccontextmanager
async def serving(folder: Path, note: Note) -> AsyncIterator[str]:
    """The URL of the server that keeps the log of the run in this folder. Raises `BusError`: it does not start."""
    server = note.server(folder)
    if server is None:
        yield note.url
        return
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    try:
        await asyncio.shield(starting)
        yield server.url
    finally:
        await asyncio.wait({starting})  # a command that is ended meanwhile would leave it behind
        if starting.exception() is None and not server.adopted:
            await asyncio.to_thread(server.stop)
