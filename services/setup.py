"""Open a run: its folder, its server, its streams, its tasks, policy version 0, and RunStarted as the first fact."""

import asyncio
import contextlib
import fcntl
import importlib.metadata
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bus import credentials, subjects
from bus.errors import Conflict, Unavailable
from bus.jetstream import Bus
from bus.log import Expect
from bus.server import NatsServer
from bus.streams import Limits
from gyre.config import Config
from gyre.errors import ConfigError, GyreError, Problem
from gyre.tasks.fitting import refuse_unfit
from gyre.tasks.folder import Task
from gyre.tasks.sources import bring
from schemas.refs import WeightsRef
from schemas.runs import RunStarted
from services.exits import is_full
from services.place import NOTE, Durability, Note, Place, named, new_instance
from services.preflight import preflight
from services.starting import start
from services.tasks.images import refuse_missing

HELDOUT_SEED = 7
LEASE_SECONDS = 10.0
"""How long a killed worker's entries wait for another one; claims lie in the log, so a lease too short costs little."""
OPEN_SECONDS = 20.0
"""Patience with a server that does not answer, before there is a run that could wait for it."""


_OPENING = ".opening"
"""Lies in a folder that an opening made, until its note does: only what holds it is ours to remove."""
_BEFORE_NOTE = {_OPENING, "tasks", "users", "nats", "weights", "proxy.key", f"{NOTE}.part", "blobs"}
"""All that an opening makes before its note, and what may be left of one that failed after it."""


class SetupError(GyreError):
    """A run cannot be opened here; one line with the way out."""


class PerhapsBegun(SetupError):
    """The run's first word was sent to a server that did not answer any more: its folder stays, whichever it is."""


class BegunElsewhere(SetupError):
    """The server holds a log of this name already. No folder is removed for that: it might be that run's."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that is ready for its services."""

    folder: Path
    run: str
    url: str
    server: NatsServer | None
    """None when the configuration names a server of its own."""


def run_folder(config: Config, run: str) -> Path:
    """The folder of a run."""
    return (Path(config.run.folder) / run).absolute()


def new_run_name(config: Config) -> str:
    """The configured name, or one that sorts by time."""
    return config.run.name or f"run-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Be the one that opens a run in this folder, for as long as this lasts; until a run is begun, no other lock is.

    The lock lies beside the folder, which is not there yet, and may be removed again.

    Raises:
        SetupError: another process is.
    """
    path = folder.with_name(f".{folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        if is_full(error):
            raise
        why = f"no run can be kept there ({error.strerror})"
        raise SetupError(f"folder of runs {path.parent}: {why}; choose another by run.folder or --runs") from error
    try:
        while not _locked(file.fileno(), path, folder.name):
            file.close()
            file = path.open("a")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        file.close()


def _locked(descriptor: int, path: Path, run: str) -> bool:
    """Whether what was locked still is the file at this path: who had it before may have removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SetupError(f"run {run}: another gyre opens it just now; wait for it, or take another name") from None
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


async def open_run(config: Config) -> Opened:
    """Open a new run. Whatever it raises, nothing that it started is running then, and a folder that it made is gone.

    Raises:
        PerhapsBegun, BegunElsewhere: here the folder stays.
        SetupError, ConfigError, TaskError, ModelError, BusError: one line with the way out.
    """
    preflight(config)
    run = new_run_name(config)
    folder = run_folder(config, run)
    with opening(folder):
        return await open_alone(config, run, folder)


async def open_alone(config: Config, run: str, folder: Path) -> Opened:
    """As `open_run`, after its `preflight`, for who holds its lock (`opening`)."""
    if (folder / NOTE).exists():
        way = f"`gyre resume {named(folder)}`, or another name"
        raise SetupError(f"run.name = {run}: folder {folder} holds a run already; {way}")
    made = is_vacant(folder)
    if made and folder.exists():  # a server that was killed beside its opening would live on in a folder that is gone
        credentials.server_of(folder, run, config.bus.durability).stop()
        _remove(folder)
    elif (folder / "tasks").exists():
        raise SetupError(
            f"run.name = {run}: {folder} is what a run left that did not begin; remove it, or another name"
        )
    try:
        return await _opened(config, run, folder)
    except (PerhapsBegun, BegunElsewhere):
        raise
    except BaseException:
        if made:
            _remove(folder)
        raise


def is_vacant(folder: Path) -> bool:
    """Whether nothing is there, or only what an opening made that was ended before the run's first word."""
    if not folder.exists():
        return True
    names = {each.name for each in folder.iterdir()}
    return _OPENING in names and names <= _BEFORE_NOTE


def _remove(folder: Path) -> None:
    """What an opening made. It says to the last whose that is: this may be cut short too."""
    with contextlib.suppress(OSError):
        (folder / _OPENING).touch()
        (folder / NOTE).unlink(missing_ok=True)
        for each in folder.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            elif each.name != _OPENING:
                each.unlink()
    shutil.rmtree(folder, ignore_errors=True)


async def _opened(config: Config, run: str, folder: Path) -> Opened:
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        (folder / _OPENING).touch()
    config = apart(config, folder)
    kinds = sandboxes_of(config)
    tasks = copy_tasks(config.tasks.train, folder / "tasks" / "train", config.run.seed, kinds)
    heldout = copy_tasks(config.tasks.heldout, folder / "tasks" / "heldout", HELDOUT_SEED, kinds)
    for source, some in ((config.tasks.train, tasks), (config.tasks.heldout, heldout)):
        refuse_missing(config, some, source)
    key = folder / "proxy.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    writing = asyncio.create_task(asyncio.to_thread(initial_weights, folder, config.model.path))
    server = None
    try:
        server = None if config.bus.url else await start_server(folder, run, config.bus.durability)
        url = server.url if server else config.bus.url
        started = RunStarted(
            config=config.table(),
            config_digest=config.digest(),
            seed=config.run.seed,
            code_version=importlib.metadata.version("gyre"),
            weights=await writing,
            tasks=tuple(task.name for task in tasks),
            heldout=tuple(task.name for task in heldout),
        )
        Note(run, url, config.bus.durability).write(folder)
        (folder / _OPENING).unlink(missing_ok=True)
        await _begin(config, run, folder, url, started)
    except BaseException:
        await asyncio.gather(writing, return_exceptions=True)
        if server and not server.adopted:
            server.stop()
        raise
    return Opened(folder, run, url, server)


async def reopen_run(folder: Path, max_bytes: int | None = None) -> Opened:
    """Open a run that was begun: its server serves again, at the address noted in the folder.

    Its queues get the leases of today; its streams keep their sizes unless `max_bytes` gives them another.

    Raises:
        RunNotFound, SetupError, BusError: one line with the way out; a server that was started here is stopped again.
    """
    note = Note.read(folder)
    embedded = (folder / "nats").is_dir()
    server = await start_server(folder, note.run, note.durability) if embedded else None
    try:
        url = server.url if server else note.url
        Note(note.run, url, note.durability).write(folder)
        await _renew(folder, note.run, url, max_bytes)
    except BaseException:
        if server and not server.adopted:
            server.stop()
        raise
    return Opened(folder, note.run, url, server)


def asked_bytes(overrides: Sequence[str]) -> int | None:
    """The one thing about a begun run that may be changed, `bus.max_bytes`, if it is. Raises `ConfigError`."""
    if not overrides:
        return None
    if {each.partition("=")[0].strip() for each in overrides} != {"bus.max_bytes"}:
        rule = "the configuration of a run that was begun stays as it was, but for bus.max_bytes"
        raise ConfigError("", (Problem("--set", " ".join(overrides), rule),))
    return Config.load(None, overrides).bus.max_bytes


async def start_server(folder: Path, run: str, durability: Durability) -> NatsServer:
    """The run's own server, with a user for each service."""
    return await start(credentials.server_of(folder, run, durability))


def apart(config: Config, folder: Path) -> Config:
    """The configuration without the password that `bus.url` may hold: neither the log nor the note shall have it."""
    login = credentials.apart(config.bus.url)
    if not login.user:
        return config
    credentials.keep(folder, login)
    return config.model_copy(update={"bus": config.bus.model_copy(update={"url": login.url})})


def initial_weights(folder: Path, model: str) -> WeightsRef:
    """Policy version 0, written by a process of its own. Raises `SetupError` with that process's one line."""
    command = [sys.executable, "-m", "services.initial", str(folder), model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGKILL:  # by the kernel, which leaves no word
        raise SetupError(f"model.path = {model}: writing its weights was killed, most likely for memory; give it more")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise SetupError(lines[-1])
    return WeightsRef.model_validate_json(done.stdout.strip().splitlines()[-1])


def sandboxes_of(config: Config) -> dict[str, str]:
    """Kinds of the sandboxes that agents and tests run in, by the setting that chooses them."""
    chosen: dict[str, str] = {"sandbox.kind": config.sandbox.kind}
    if config.evaluator.sandbox:
        chosen["evaluator.sandbox"] = config.evaluator.sandbox
    return chosen


def copy_tasks(source: str, target: Path, seed: int, sandboxes: Mapping[str, str]) -> tuple[Task, ...]:
    """The run's own copy of its tasks, so that a resumed run has the ones it began with.

    Raises `TaskError`, also for a task that a sandbox of these kinds cannot run.
    """
    tasks = bring(source, target, seed)
    for setting, kind in sandboxes.items():
        refuse_unfit(tasks, kind, setting)
    return tasks


async def _renew(folder: Path, run: str, url: str, max_bytes: int | None) -> None:
    """Provision a run that is there. Raises `SetupError` where a log holds more than it may have."""
    instance = new_instance("control")
    bus = await Bus.connect(url, run, "control", instance, folder, patience_seconds=OPEN_SECONDS)
    try:
        ev, calls = await bus.room()
    finally:
        await bus.close()
    used = max(ev.used, calls.used)
    if max_bytes is not None and max_bytes <= used:
        raise SetupError(f"bus.max_bytes = {max_bytes}: the log of run {run} holds {used} bytes already; give it more")
    limits = Limits(max_bytes or ev.limit, max_bytes or calls.limit, ack_wait_seconds=LEASE_SECONDS)
    await (await Bus.connect(url, run, "control", instance, folder, create=True, limits=limits)).close()


async def _begin(config: Config, run: str, folder: Path, url: str, started: RunStarted) -> None:
    most = config.bus.max_bytes
    limits = Limits(most, most, ack_wait_seconds=LEASE_SECONDS, replicas=config.bus.replicas)
    instance = new_instance("control")
    sync = config.bus.durability
    bus = await Bus.connect(
        url, run, "control", instance, folder, create=True, sync=sync, limits=limits, patience_seconds=OPEN_SECONDS
    )
    try:
        place = Place("control", instance, run, folder, url, config)
        commit = place.commit((started,), as_of=0, correlation=run)
        await bus.ev.append(place.subject("run"), commit, Expect(subjects.everything(run), 0))
    except Conflict as conflict:
        (folder / NOTE).unlink(missing_ok=True)  # what is here is not what that run began with
        raise BegunElsewhere(
            f"run.name = {run}: its log is on {url} already, but {folder} is not its folder; restore that, "
            f"or remove {folder} and take another name"
        ) from conflict
    except Unavailable as error:
        if not config.bus.url:  # its log goes with the folder
            raise
        raise PerhapsBegun(
            f"run {run}: it may have begun or not ({error}); `gyre resume {named(folder)}` goes on if it has "
            f"and says so if not: remove {folder} then"
        ) from error
    finally:
        await bus.close()
