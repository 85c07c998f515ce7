"""Where a service stands: its run, its folder, its configuration; and the commits it makes there."""

import secrets
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from bus import subjects
from bus.credentials import server_of
from bus.jetstream import Bus
from bus.log import ReadLog
from bus.server import NatsServer
from gyre.config import Config
from gyre.errors import GyreError
from schemas.envelope import Commit, Event, Producer
from schemas.runs import RunStarted

NOTE = "run.json"
Durability = Literal["always", "laptop"]


class RunNotFound(GyreError):
    """There is no such run here."""


@dataclass(frozen=True, slots=True)
class Note:
    """What the run folder says about where its log is: enough to connect."""

    run: str
    url: str
    durability: Durability

    def write(self, folder: Path) -> None:
        """Keep it in the folder."""
        body = orjson.dumps({"run": self.run, "url": self.url, "durability": self.durability})
        partial = folder / f"{NOTE}.part"
        partial.write_bytes(body)
        partial.replace(folder / NOTE)

    @classmethod
    def read(cls, folder: Path) -> "Note":
        """Raises `RunNotFound` naming the folder."""
        try:
            return cls(**orjson.loads((folder / NOTE).read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise RunNotFound(
                f"folder {folder}: holds no run ({NOTE} is missing or damaged); see `gyre runs`"
            ) from error

    def server(self, folder: Path) -> NatsServer | None:
        """The server that this run has for itself, not started by this; None where another one keeps its log."""
        return server_of(folder, self.run, self.durability) if (folder / "nats").is_dir() else None


@dataclass(frozen=True, slots=True)
class Place:
    """One process of one service in one run."""

    service: str
    instance: str
    run: str
    folder: Path
    """The run's own folder, absolute."""
    url: str
    config: Config

    def subject(self, *entity: str | int) -> str:
        """The subject of what this service says about an entity."""
        return subjects.ev(self.run, self.service, *entity)

    def commit(self, events: Iterable[Event], *, as_of: int, correlation: str, causation: int = 0) -> Commit:
        """A new commit of this process, now."""
        return Commit(
            run=self.run,
            producer=Producer(service=self.service, instance=self.instance),
            commit=secrets.token_hex(8),
            causation=causation,
            as_of=as_of,
            correlation=correlation,
            time=time.time_ns(),
            events=tuple(events),
        )


def run_folder(run: str, runs: Path) -> Path:
    """The folder of a run that can be joined, by name. Raises `RunNotFound`: there is none, or it is an archive."""
    folder = (runs / run).absolute()
    if not (folder / NOTE).is_file():
        if Path(run).is_file():
            raise RunNotFound(f"{run}: an archive, which is only read; `gyre log import {run}` makes a run of it")
        raise RunNotFound(f"{run}: no run in {runs}; {way_to(run, runs)}")
    return folder


def way_to(run: str, runs: Path) -> str:
    """What to say of a name that no run has: a folder's path may have been given instead."""
    path = Path(run).absolute()
    if not (path / NOTE).is_file():
        return "`gyre runs` lists them"
    return f"did you mean `{named(path, runs)}`?"


def named(folder: Path, runs: Path = Path("runs")) -> str:
    """How a command line names the run in this folder, quoted for a shell: by name alone where it lies in `runs`."""
    name = shlex.quote(folder.name)
    parent = folder.absolute().parent
    return name if parent == runs.absolute() else f"{name} --runs {shlex.quote(str(parent))}"


def new_instance(service: str) -> str:
    """An id that no other process of any run has."""
    return f"{service}-{secrets.token_hex(4)}"


async def connect(service: str, folder: Path, instance: str = "") -> tuple[Place, Bus]:
    """Join the run in this folder, as a new instance or as this one. Raises `RunNotFound`, or the bus's own errors."""
    note = Note.read(folder)
    instance = instance or new_instance(service)
    bus = await Bus.connect(note.url, note.run, service, instance, folder, sync=note.durability)
    try:
        config = Config.recorded((await started(bus.ev)).config)
    except BaseException:
        await bus.close()
        raise
    return Place(service, instance, note.run, folder.resolve(), note.url, config), bus


async def started(ev: ReadLog) -> RunStarted:
    """What the run was started with: the first event of its log. Raises `RunNotFound`."""
    first = await ev.get(1)
    event = first.commit.events[0] if first and first.commit else None
    if not isinstance(event, RunStarted):
        raise RunNotFound(
            "the run's log does not begin with RunStarted: it was interrupted while starting, and there is nothing to "
            "go on from; remove the run's folder and start it again"
        )
    return event
