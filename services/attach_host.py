"""A run as somebody's attached consumer needs it: a user of its own, consumers made for it, a server that serves.

The server of a run that ended, or ends meanwhile, is kept serving for as long as somebody reads (`services.serving`).
"""

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bus import credentials, subjects, users
from bus.errors import BusError, Unavailable
from bus.jetstream import Bus
from bus.log import Stored
from gyre.errors import GyreError
from schemas.runs import RunFinished
from schemas.speakers import Stream
from services.place import Note, new_instance
from services.serving import is_supervised, locked, serving

FOLDER = "attached"
"""Of the run folder: positions, and the places that are taken."""
_LOOK_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
_TRIES = 12
_STREAMS: tuple[Stream, ...] = ("EV", "CALL")


class AttachError(GyreError):
    """A consumer cannot be attached here; one line with the way out."""


@dataclass(slots=True)
class Host:
    """A run, and the user that reads it."""

    note: Note
    folder: Path
    bus: Bus
    user: str
    own: bool
    """Whether the run has a server for itself."""
    filters: dict[Stream, str] = field(default_factory=dict)
    """Log -> the filter under which the consumer reads it, once it has asked."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has."""
    at_rest: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once nothing more can come."""

    async def is_over(self) -> bool:
        """Whether nothing more can come, as far as can be said now."""
        if self.own:
            return not is_supervised(self.folder)
        last = await self.bus.ev.last(subjects.ev(self.note.run, "scheduler", "run"))
        return last is not None and _says_finished(last)

    async def until(self) -> dict[str, int]:
        """Log -> the last sequence there is for this consumer."""
        logs = {"EV": self.bus.ev, "CALL": self.bus.calls}
        found: dict[str, int] = {}
        for stream, filter_ in self.filters.items():
            last = await logs[stream].last(filter_)
            found[stream] = last.sequence if last else 0
        return found

    async def give(self, stream: Stream, after: int, filter: str) -> None:  # noqa: A002 - the word of the Log port
        """Make the consumer anew."""
        await self.bus.grant(stream, self.user, after, filter)
        self.filters[stream] = filter
        self.asked.set()

    def login(self) -> credentials.Login:
        """The consumer's own. Raises `AttachError` where only a login that may do more is to be had."""
        found = credentials.login(self.bus.url, self.folder, self.user)
        if found.user not in ("", self.user):
            raise AttachError(
                f"user {self.user}: has no password here, and {found.user} may do too much for a consumer of yours; "
                f"set {credentials.ELSEWHERE} to DIR/users of `gyre users {self.note.run} --out DIR`"
            )
        return found


@asynccontextmanager
async def hosted(folder: Path) -> AsyncIterator[Host]:
    """A place at the run in this folder, served until the end. Raises `AttachError`, `BusError`."""
    note = Note.read(folder)
    with place_for(folder) as user:
        async with serving(folder, note) as url:
            host = Host(note, folder, await _connected(folder, note, url), user, note.server(folder) is not None)
            watching = asyncio.create_task(_watch(host))
            try:
                yield host
                await _dropped(host.bus, user)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await host.bus.close()


@contextmanager
def place_for(folder: Path) -> Iterator[str]:
    """One of the users for attached consumers, until this process ends at the latest. Raises `AttachError`."""
    (folder / FOLDER).mkdir(exist_ok=True)
    for user in users.ATTACHED:
        with (folder / FOLDER / f"{user}.lock").open("w") as file:
            if locked(file.fileno(), fcntl.LOCK_EX):
                yield user
                return
    raise AttachError(f"run {folder.name}: {len(users.ATTACHED)} consumers are attached, which is all there may be")


async def _watch(host: Host) -> None:
    """Tell when nothing more can come."""
    if host.own:
        # once whoever supervised has gone, it is served again
        while is_supervised(host.folder) or not host.bus.connected:  # noqa: ASYNC110 - both are plain facts
            await asyncio.sleep(_LOOK_SECONDS)
    else:
        await _finished(host.bus)
    host.at_rest.set()


async def _finished(bus: Bus) -> None:
    """Returns when the run has said its last word."""
    said = bus.ev.read(0, subjects.ev(bus.run, "scheduler", "run"))
    async with contextlib.aclosing(said):
        async for stored in said:
            if _says_finished(stored):
                return


def _says_finished(stored: Stored) -> bool:
    return stored.commit is not None and any(isinstance(event, RunFinished) for event in stored.commit.events)


async def _connected(folder: Path, note: Note, url: str) -> Bus:
    """Connect; a server that was adopted may have been about to stop, and is started again then."""
    for left in reversed(range(_TRIES)):
        instance = new_instance(users.READER)
        try:
            return await Bus.connect(url, note.run, users.READER, instance, folder, patience_seconds=_CONNECT_SECONDS)
        except Unavailable:
            if not left:
                raise
    raise AssertionError("the last try raises")


async def _dropped(bus: Bus, user: str) -> None:
    """What the server would forget by itself a minute later."""
    with contextlib.suppress(BusError, TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS):
            for stream in _STREAMS:
                await bus.revoke(stream, user)
