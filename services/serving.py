"""The server of a run for as long as somebody reads: one that serves already is used, else one is started.

Whoever supervises a run keeps its server; where nobody does, those who read keep it together. They share a lock on a
file that says which server was started for them: one that ends under them, as with its run, is started again, and who
leaves last stops it, unless somebody else had started it.
"""

import asyncio
import fcntl
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bus.errors import BusError
from bus.jetstream import Bus
from bus.server import NatsServer
from gyre.errors import GyreError
from services.place import Note, new_instance
from services.presence import alive

LOG = logging.getLogger("gyre")
READERS = "nats/readers"
"""In the run folder: locked by all who read, holds the pid of the server that was started for them."""
_LOOK_SECONDS = 0.5


@asynccontextmanager
async def serving(folder: Path, note: Note) -> AsyncIterator[str]:
    """The URL of the server that keeps the log of the run in this folder. Raises `BusError`: it does not start."""
    server = note.server(folder)
    if server is None:
        yield note.url
        return
    with (folder / READERS).open("a") as readers:
        try:
            await _whole(server, lambda: _come(folder, server, readers.fileno()))
            keeping = asyncio.create_task(_keep(folder, server))
            try:
                yield server.url
            finally:
                keeping.cancel()
                await asyncio.wait({keeping})
        finally:
            await _whole(server, lambda: _leave(folder, note, readers.fileno()))


@asynccontextmanager
async def connected(service: str, folder: Path) -> AsyncIterator[Bus]:
    """A service's connection to the run in this folder, served until the end. Raises `RunNotFound`, `BusError`."""
    note = Note.read(folder)
    async with serving(folder, note) as url:
        bus = await Bus.connect(url, note.run, service, new_instance(service), folder)
        try:
            yield bus
        finally:
            await bus.close()


def is_supervised(folder: Path) -> bool:
    """Whether a `gyre` keeps this run's processes alive now, on this machine."""
    try:
        with (folder / "control.lock").open() as file:
            return not locked(file.fileno(), fcntl.LOCK_SH)
    except OSError:
        return False


def locked(descriptor: int, how: int) -> bool:
    """Whether this lock could be had at once."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _come(folder: Path, server: NatsServer, readers: int) -> None:
    fcntl.flock(readers, fcntl.LOCK_SH)  # whoever is just stopping it is waited for
    _start(folder, server)


def _start(folder: Path, server: NatsServer) -> None:
    server.start()
    if not server.adopted:
        (folder / READERS).write_text(str(server.pid))


async def _keep(folder: Path, server: NatsServer) -> None:
    """Start it again whenever it has ended and nobody else will do so."""
    told = False
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if alive(server.pid) or is_supervised(folder):
            continue
        try:
            Note.read(folder)  # what was removed is not made anew
            await _whole(server, lambda: _start(folder, server))
            told = False
        except (GyreError, BusError, OSError) as error:
            if not told:
                LOG.warning("%s; trying again", error)
            told = True


def _leave(folder: Path, note: Note, readers: int) -> None:
    """Stop a server that was started for those who read, if nobody is left who needs it."""
    if is_supervised(folder) or not locked(readers, fcntl.LOCK_EX):
        return
    with suppress(OSError, ValueError, KeyError):
        serves = json.loads((folder / "nats/server.json").read_text())["pid"]
        if (folder / READERS).read_text() == str(serves) and (server := note.server(folder)):
            server.stop()


async def _whole(server: NatsServer, work: Callable[[], None]) -> None:
    """Do it in a thread, to its end: one who is told to end meanwhile would leave a server behind."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        server.give_up()
        raise
    finally:
        await asyncio.wait({doing})
        doing.exception()  # raised above, or nobody's any more: asyncio would print it
