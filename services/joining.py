"""Join a run, live or stopped, as one of its services for the while of a command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bus.jetstream import Bus
from gyre.config import Config
from services.place import Note, Place, new_instance, run_folder, started
from services.serving import serving


@asynccontextmanager
async def joined(service: str, run: str, runs: Path) -> AsyncIterator[tuple[Place, Bus]]:
    """The run's place and bus; a server that was not running serves until the end.

    Raises:
        RunNotFound: no run of that name lies in `runs`; an archive has to be imported first.
        BusError: the server does not start or answer.
    """
    folder = run_folder(run, runs)
    note = Note.read(folder)
    async with serving(folder, note) as url:
        instance = new_instance(service)
        bus = await Bus.connect(url, note.run, service, instance, folder, sync=note.durability)
        try:
            config = Config.recorded((await started(bus.ev)).config)
            yield Place(service, instance, note.run, folder, url, config), bus
        finally:
            await bus.close()
