"""Attach somebody's consumer to a run: make what it may read, start its process, answer it, and keep out of its way.

The consumer's process has the login of a user that may ask for its next message and nothing else. What it may not do
for itself, making a consumer for each session, is done here, with the login of `reader`. Nothing of the run waits for
either of them: a consumer that sleeps has its messages wait in the log, one that dies leaves nothing behind.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus import attached, credentials
from bus.errors import BusError
from schemas.speakers import Stream
from services.attach_host import FOLDER, AttachError, Host, hosted
from services.boss import Hello
from services.exits import EXIT_INTERRUPTED
from services.place import way_to
from services.source import SourceNotFound


@dataclass(frozen=True, slots=True)
class Wish:
    """What to attach, to what, from where."""

    target: str
    """A run by name, or an archive by path."""
    consumer: str
    """`module:Class` or `file.py:Class`; "" for a command."""
    command: tuple[str, ...] = ()
    begin: str = "start"
    """`start`, `now`, or the sequence to begin with."""
    durable: str = ""
    """Name under which the position is kept; "" keeps none."""
    options: Mapping[str, str] = field(default_factory=dict)
    stream: Stream = "EV"
    """Which log a command reads."""


@dataclass(slots=True)
class Outcome:
    """How it ended."""

    code: int
    """Exit code of the consumer's process."""
    position: dict[str, int] = field(default_factory=dict)
    """Log -> the last sequence that it handled, where it could say so."""


async def attach(wish: Wish, runs: Path) -> Outcome:
    """Attach until the consumer or its log ends.

    Raises:
        AttachError, SourceNotFound, BusError: one line with the way out.
    """
    path = Path(wish.target)
    if wish.command and shutil.which(wish.command[0]) is None:
        raise AttachError(f"--exec {wish.command[0]}: no such program; install it, or give its path")
    if path.is_file():
        if wish.command:
            raise AttachError(f"{path}: a command reads from a server; `gyre log import {path}` makes a run of it")
        folder = path.with_name(f"{path.name}.{FOLDER}")
        return await _supervised(_hello(wish, folder, archive=str(path.absolute())), None)
    folder = (runs / wish.target).absolute()
    if not (folder / "run.json").is_file():
        raise SourceNotFound(f"{wish.target}: neither an archive nor a run in {runs}; {way_to(wish.target, runs)}")
    async with hosted(folder) as host:
        return await (_command(wish, host) if wish.command else _consumer(wish, host))


async def _consumer(wish: Wish, host: Host) -> Outcome:
    login = host.login()
    heads = {"EV": await host.bus.ev.head(), "CALL": await host.bus.calls.head()}
    hello = _hello(
        wish,
        host.folder / FOLDER,
        run=host.note.run,
        url=login.url,
        user=host.user,
        login=login.user,
        password=login.password,
        blobs=str(host.folder / "blobs"),
        heads=heads,
    )
    return await _supervised(hello, host)


async def _command(wish: Wish, host: Host) -> Outcome:
    """A program in any language: it finds a consumer that is made already, and all it needs in its environment."""
    head = await (host.bus.ev if wish.stream == "EV" else host.bus.calls).head()
    position = _position(host.folder / FOLDER, wish)
    after = _after(wish, position, head)
    await host.bus.grant(wish.stream, host.user, after, kept=True)
    environment = {
        **_environment(host),
        "GYRE_STREAM": attached.name_of(host.note.run, wish.stream),
        "GYRE_CONSUMER": host.user,
        "GYRE_AFTER": str(after),
        "GYRE_POSITION": position,
        "GYRE_UNTIL": str(head) if await host.is_over() else "",
    }
    process = await asyncio.create_subprocess_exec(*wish.command, env=environment)
    try:
        with _passed_on(process) as told:
            return Outcome(_code(await process.wait(), told))
    finally:
        if process.returncode is None:  # the signal came before it could be passed on
            process.terminate()
            await process.wait()


def _after(wish: Wish, position: str, head: int) -> int:
    """What a command has read already: what it kept, or else what was asked for."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(Path(position).read_text())["position"][wish.stream])
    return {"start": 0, "now": head}[wish.begin] if wish.begin in ("start", "now") else int(wish.begin) - 1


async def _supervised(hello: Hello, host: Host | None) -> Outcome:
    """Start the consumer's process and answer it until it ends."""
    outcome = Outcome(0)
    async with _started(host) as (process, reader, writer):
        writer.write(hello.model_dump_json().encode() + b"\n")
        answering = asyncio.create_task(_answer(reader, writer, host, outcome))
        telling = asyncio.create_task(_tell_end(host, writer))
        try:
            with _passed_on(process) as told:
                outcome.code = _code(await process.wait(), told)
            await asyncio.wait({answering})
        finally:
            for task in (answering, telling):
                task.cancel()
            await asyncio.gather(answering, telling, return_exceptions=True)
    return outcome


@asynccontextmanager
async def _started(
    host: Host | None,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.StreamWriter]]:
    ours, theirs = socket.socketpair()
    with theirs:
        wire = theirs.fileno()
        command = (sys.executable, "-m", "services.attached", str(wire))
        process = await asyncio.create_subprocess_exec(
            *command, env=_environment(host), pass_fds=(wire,), stdin=asyncio.subprocess.DEVNULL
        )
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        yield process, reader, writer
    finally:
        writer.close()
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: Host | None, outcome: Outcome
) -> None:
    """Until the other end closes."""
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            said: dict[str, Any] = json.loads(line)
            if "done" in said:
                outcome.position = said["done"]
            elif host is not None:
                writer.write(json.dumps(await _given(host, said)).encode() + b"\n")
                await writer.drain()


async def _given(host: Host, said: Mapping[str, Any]) -> dict[str, str]:
    try:
        await host.give(said["give"], said["after"], said["filter"])
        login = host.login()
    except (AttachError, BusError) as error:
        return {"error": str(error)}
    return {"login": login.user, "password": login.password}


async def _tell_end(host: Host | None, writer: asyncio.StreamWriter) -> None:
    """Once nothing more can come, say where each log ends."""
    if host is None:
        return
    await host.at_rest.wait()
    while True:
        host.asked.clear()
        with contextlib.suppress(BusError):  # asked again once the server is back
            writer.write(json.dumps({"until": await host.until()}).encode() + b"\n")
            await writer.drain()
        await host.asked.wait()


def _hello(wish: Wish, folder: Path, **more: Any) -> Hello:
    options = dict(wish.options)
    return Hello(consumer=wish.consumer, options=options, begin=wish.begin, position=_position(folder, wish), **more)


def _position(folder: Path, wish: Wish) -> str:
    return str(folder / f"{wish.durable}.json") if wish.durable else ""


def _environment(host: Host | None) -> dict[str, str]:
    """Ours without any login but the consumer's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GYRE_NATS_")}
    if host is None:
        return kept
    login = host.login()
    return {
        **kept,
        "GYRE_RUN": host.note.run,
        "GYRE_NATS_URL": login.url,
        credentials.USER: login.user,
        credentials.PASSWORD: login.password,
        "GYRE_INBOX": f"_INBOX.{host.user}",
    }


@contextmanager
def _passed_on(process: asyncio.subprocess.Process) -> Iterator[list[int]]:
    """A signal to end is for the consumer, which then ends in order; Ctrl-C once more ends it however busy it is.

    Gives what was passed on so far. (`timeout` says SIGTERM twice, to a process and to its group.)
    """
    loop = asyncio.get_running_loop()
    told: list[int] = []

    def tell(number: signal.Signals) -> None:
        if process.returncode is None:
            told.append(signal.SIGKILL if told and number == signal.SIGINT else signal.SIGTERM)
            process.send_signal(told[-1])

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell, number)
    try:
        yield told
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _code(ended: int, told: list[int]) -> int:
    """What the command ends with: the consumer's own code, or as a shell says it of one that a signal ended."""
    if ended >= 0:
        return ended
    return EXIT_INTERRUPTED if told else 128 - ended
