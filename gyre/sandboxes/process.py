"""A command as a process of this machine: its own session, limits, private folders, and nothing left when it ends.

It shares the user, the network and the file system with its sandbox. Starting one costs about a millisecond: it goes
by vfork (no code runs between fork and exec), limits are inherited, and where util-linux has `setpriv`, that little
program sees to it that a command dies with this process and gains no privileges.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gyre.sandboxes.orphans import MARK, Orphanage
from gyre.sandboxes.output import Tail
from gyre.sandboxes.port import Command, Ended, Ending, Limits, SandboxError

_KILL_SECONDS = 10.0  # a killed process goes at once, unless the kernel holds it
_SWEEP_PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class ProcessSandbox:
    """Implements `Sandbox`; one for a whole process, made before it starts children of its own."""

    def __init__(self, limits: Limits | None = None) -> None:
        """Adopt orphans from now on."""
        self._limits = limits or Limits()
        self._orphans = Orphanage()
        setpriv = shutil.which("setpriv")
        self._wrapper = (setpriv, "--pdeathsig", "KILL", "--no-new-privs", "--") if setpriv else ()

    def address(self, url: str) -> str:
        """The same: it shares the network."""
        return url

    async def close(self) -> None:
        """Nothing is left where no call of `run` is: each ends with all that its command started."""

    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Ended:
        """See `Sandbox`."""
        began = time.monotonic()
        tail = Tail()
        try:
            process = self._start(command, tail)
        except BaseException:
            tail.close()
            raise
        try:
            with _exit_of(process) as exited:
                try:
                    ending = await self._ending(process, exited, command, stop)
                finally:
                    await self._end(process, exited, command.box)
        finally:
            output = tail.close()
        reason = self._reason(ending, command.deadline_seconds)
        return Ended(ending, process.returncode, time.monotonic() - began, output, reason)

    def _reason(self, ending: Ending, deadline_seconds: float) -> str:
        """What contained a command, in one line."""
        said = {
            "timeout": f"ended at its deadline of {deadline_seconds:g} s",
            "stopped": "ended because its cancellation was asked for",
            "disk": "ended because it filled its disk",
        }
        return said.get(ending, "")

    async def _end(self, process: "subprocess.Popen[bytes]", exited: "asyncio.Future[None]", box: Path) -> None:
        """Kill it and all that it left behind, also where the call is cancelled."""
        _signal_group(process.pid, signal.SIGKILL)
        await asyncio.wait({exited}, timeout=_KILL_SECONDS)
        process.poll()
        self._orphans.leaders.discard(process.pid)
        await self._bury(process.pid, box)

    def _start(self, command: Command, tail: Tail) -> "subprocess.Popen[bytes]":
        arguments = (*self._wrapper, *command.arguments)
        try:
            environment = _environment(command)
            with _inherited(_bounded(self._limits)):
                process = subprocess.Popen(
                    arguments,
                    cwd=command.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=tail.sink,
                    stderr=tail.sink,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise SandboxError(f"command {command.arguments[0]!r}: cannot be started: {error}") from error
        self._orphans.leaders.add(process.pid)
        self._limit(process.pid, command.deadline_seconds)
        tail.started()
        return process

    def _limit(self, pid: int, deadline_seconds: float) -> None:
        """Make the limits hard, from outside: code between fork and exec would cost four times the launch."""
        wanted = {**_bounded(self._limits), resource.RLIMIT_CPU: int(deadline_seconds) + 60}
        with contextlib.suppress(ProcessLookupError):
            for kind, limit in wanted.items():
                resource.prlimit(pid, kind, (limit, limit))

    async def _ending(
        self,
        process: "subprocess.Popen[bytes]",
        exited: "asyncio.Future[None]",
        command: Command,
        stop: asyncio.Event | None,
    ) -> Ending:
        """Wait for whatever ends it first, and if that is not itself, ask it to end."""
        watches: dict[asyncio.Future[None], Ending] = {asyncio.ensure_future(self._overfull(command.box)): "disk"}
        if stop is not None:
            watches[asyncio.ensure_future(_set(stop))] = "stopped"
        try:
            first = asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait({exited, *watches}, timeout=command.deadline_seconds, return_when=first)
            if exited in done:
                return "exited"
            ending: Ending = next((ending for watch, ending in watches.items() if watch in done), "timeout")
            _signal_group(process.pid, signal.SIGTERM)
            await asyncio.wait({exited}, timeout=command.grace_seconds)
            return ending
        finally:
            for watch in watches:
                watch.cancel()

    async def _overfull(self, box: Path) -> None:
        """Returns when the box holds more than it may."""
        while True:
            await asyncio.sleep(self._limits.look_seconds)
            if await asyncio.to_thread(_size, box) > self._limits.disk_bytes:
                return

    async def _bury(self, session: int, box: Path) -> None:
        """Kill orphans until none is left; one that cannot be killed yet (in the kernel) is left after two seconds."""
        for pause in _SWEEP_PAUSES:
            if not self._orphans.sweep(session, box):
                return
            await asyncio.sleep(pause)


def _bounded(limits: Limits) -> dict[int, int]:
    """Resource limits, none above what this process itself may have."""
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes,
    }
    most = {kind: resource.getrlimit(kind)[1] for kind in wanted}
    return {
        kind: limit if most[kind] == resource.RLIM_INFINITY else min(limit, most[kind])
        for kind, limit in wanted.items()
    }


@contextlib.contextmanager
def _inherited(limits: dict[int, int]) -> "Iterator[None]":
    """What is started in here begins under these limits, which are ours too for that instant."""
    own = {kind: resource.getrlimit(kind) for kind in limits}
    try:
        for kind, limit in limits.items():
            resource.setrlimit(kind, (limit, own[kind][1]))
        yield
    finally:
        for kind, before in own.items():
            resource.setrlimit(kind, before)


def _environment(command: Command) -> dict[str, str]:
    home, scratch = command.box / "home", command.box / "tmp"
    for folder in (home, scratch):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    return {**kept, **command.environment, "HOME": str(home), "TMPDIR": str(scratch), MARK: str(command.box)}


@contextlib.contextmanager
def _exit_of(process: "subprocess.Popen[bytes]") -> "Iterator[asyncio.Future[None]]":
    """A future that is done once the process has ended, without a thread or a signal handler."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[None] = loop.create_future()
    descriptor = os.pidfd_open(process.pid)

    def ended() -> None:
        loop.remove_reader(descriptor)
        if not exited.done():
            exited.set_result(None)

    loop.add_reader(descriptor, ended)
    try:
        yield exited
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _size(folder: Path) -> int:
    """Bytes on disk below a folder that may change meanwhile."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{parent}/{name}").st_blocks * 512
    return total
