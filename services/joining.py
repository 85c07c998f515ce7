"""Join a run, live or stopped, as one of its services for the while of a command."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bus.jetstream import Bus
from gyre.config import Config
from services.place import Note, Place, RunNotFound, new_instance, started


@asynccontextmanager
async def joined(service: str, run: str, runs: Path) -> AsyncIterator[tuple[Place, Bus]]:
    """The run's place and bus; a server that was not running serves until the end.

    Raises:
        RunNotFound: no run of that name lies in `runs`; an archive has to be imported first.
        BusError: the server does not start or answer.
    """
    if Path(run).is_file():
        raise RunNotFound(f"{run}: an archive cannot be written to; `gyre log import {run}` makes a run of it")
    folder = (runs / run).absolute()
    if not (folder / "run.json").is_file():
        raise RunNotFound(f"{run}: no run in {runs}; `gyre runs` lists them")
    note = Note.read(folder)
    embedded = note.server(folder)
    server = await asyncio.to_thread(embedded.start) if embedded else None
    try:
        note, instance = replace(note, url=server.url if server else note.url), new_instance(service)
        bus = await Bus.connect(note.url, note.run, service, instance, folder, sync=note.durability)
        try:
            config = Config.recorded((await started(bus.ev)).config)
            yield Place(service, instance, note.run, folder, note.url, config), bus
        finally:
            await bus.close()
    finally:
        if server and not server.adopted:
            await asyncio.to_thread(server.stop)
