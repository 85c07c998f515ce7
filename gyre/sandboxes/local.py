"""A command of this machine from its start to the end of all that it started: what sandboxes without images share."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.sandboxes.groups import ENTER, Group, Groups
from gyre.sandboxes.orphans import MARK, Orphanage
from gyre.sandboxes.output import Tail
from gyre.sandboxes.port import NO_CORE, Command, Ended, Ending, Limits, SandboxError, started, starting
from gyre.sandboxes.watch import Watch

_USERS = 4  # the kernel counts all processes of a user, also those of other commands; root's it does not count
_ROOM_BYTES = 1 << 30  # what threads of this process may take while one starts: an arena each
_AGAIN_PAUSES = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 4.0)
_SWEEP_PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, *(1.0,) * 9)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a sandbox has a command started."""

    arguments: tuple[str, ...]
    """Programs that set up its surroundings, and then the command."""
    ask: Callable[[int], None]
    """Asks the command to end, given the process that was started."""
    own_limits: bool = False
    """Whether `arguments` see to its resource limits."""
    descriptors: tuple[int, ...] = ()
    """Inherited by what is started."""


class Local:
    """Runs commands; one for a whole process, made before it starts children of its own."""

    def __init__(self, limits: Limits) -> None:
        """Adopt orphans from now on."""
        self.limits = limits
        self._orphans = Orphanage()
        self._groups = Groups()

    async def run(self, command: Command, launch: Launch, stop: asyncio.Event | None) -> Ended:
        """See `Sandbox.run`."""
        began = time.monotonic()
        name = command.arguments[0]
        with starting(name):
            tail, group = Tail(), self._groups.open(self.limits)
        try:
            process = await self._started(command, launch, tail, group)
        except BaseException:
            tail.close()
            if group:
                group.remove()
            raise
        watch = Watch(self.limits, command.box, group, tail, self._orphans)
        try:
            try:
                with starting(name), _exit_of(process) as exited, started():
                    ending = await self._ending(process.pid, exited, command, launch, watch, stop)
            finally:
                await self._end(process, command, group)
        finally:
            output = tail.close()
            if group:
                killed_by_memory = watch.after(process.returncode)
                group.remove()
        if ending == "exited" and group:
            ending = killed_by_memory
        reason = watch.reason or _reason(ending, command.deadline_seconds)
        return Ended(ending, process.returncode, time.monotonic() - began, output, reason)

    async def _end(self, process: "subprocess.Popen[bytes]", command: Command, group: Group | None) -> None:
        """Kill it and all that it left behind, also where the call is cancelled or the end could not be waited for."""
        signal_group(process.pid, signal.SIGKILL)
        for pause in _SWEEP_PAUSES:  # a killed process goes at once, unless the kernel holds it
            if process.poll() is not None:
                break
            await asyncio.sleep(pause)
        self._orphans.leaders.discard(process.pid)
        for pause in _SWEEP_PAUSES:  # one that cannot be killed yet (in the kernel) is left after ten seconds
            lively = group.kill() if group else False  # first: from then on nothing more is started in it
            found = self._orphans.sweep(process.pid, command.box)
            if not lively and not found:
                return
            await asyncio.sleep(pause)

    async def _started(
        self, command: Command, launch: Launch, tail: Tail, group: Group | None
    ) -> "subprocess.Popen[bytes]":
        """Start it; where another command of this user is at its most processes just now, a little later."""
        for pause in _AGAIN_PAUSES:
            try:
                return self._start(command, launch, tail, group)
            except SandboxError as error:
                if not isinstance(error.__cause__, BlockingIOError):
                    raise
            await asyncio.sleep(pause)
        return self._start(command, launch, tail, group)

    def _start(self, command: Command, launch: Launch, tail: Tail, group: Group | None) -> "subprocess.Popen[bytes]":
        entering = ("/bin/sh", "-c", ENTER, "gyre", *group.entries, "--") if group else ()
        inherited = {} if launch.own_limits else bounded(self.limits)
        try:
            with _inherited(_bearable(inherited)):
                process = subprocess.Popen(
                    (*entering, *launch.arguments),
                    cwd=command.folder,
                    env=_environment(command),
                    stdin=subprocess.DEVNULL,
                    stdout=tail.sink,
                    stderr=tail.sink,
                    start_new_session=True,
                    pass_fds=launch.descriptors,
                )
        except (OSError, ValueError) as error:
            raise SandboxError(f"command {command.arguments[0]!r}: cannot be started: {error}") from error
        self._orphans.leaders.add(process.pid)
        if not launch.own_limits:
            _harden(process.pid, {**inherited, resource.RLIMIT_CPU: cpu_seconds(command)})
        tail.started()
        return process

    async def _ending(
        self,
        leader: int,
        exited: "asyncio.Future[None]",
        command: Command,
        launch: Launch,
        watch: Watch,
        stop: asyncio.Event | None,
    ) -> Ending:
        """Wait for whatever ends it first, and if that is not itself, ask it to end."""
        overrun = asyncio.ensure_future(watch.overrun(leader))
        stopped = asyncio.ensure_future(stop.wait()) if stop else None
        watches: list[asyncio.Future[Any]] = [exited, overrun, *([stopped] if stopped else [])]
        try:
            first = asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait(watches, timeout=command.deadline_seconds, return_when=first)
            if exited in done:
                return "exited"
            if overrun in done:
                return overrun.result()  # it is not asked: it may be doing harm
            launch.ask(leader)
            await asyncio.wait({exited}, timeout=command.grace_seconds)
            return "stopped" if stopped in done else "timeout"
        finally:
            overrun.cancel()
            if stopped:
                stopped.cancel()


def bounded(limits: Limits) -> dict[int, int]:
    """Resource limits, none above what this process itself may have."""
    wanted = {
        resource.RLIMIT_CORE: NO_CORE,
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: _USERS * limits.processes,
    }
    most = {kind: resource.getrlimit(kind)[1] for kind in wanted}
    return {
        kind: limit if most[kind] == resource.RLIM_INFINITY else min(limit, most[kind])
        for kind, limit in wanted.items()
    }


def cpu_seconds(command: Command) -> int:
    """Most processor time of one of its processes."""
    return int(command.deadline_seconds) + 60


def signal_group(leader: int, number: int) -> None:
    """Signal a process and all of its group, if they are there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _reason(ending: Ending, deadline_seconds: float) -> str:
    said: Mapping[Ending, str] = {
        "timeout": f"ended at its deadline of {deadline_seconds:g} s",
        "stopped": "ended because its cancellation was asked for",
    }
    return said.get(ending, "")


def _harden(pid: int, limits: dict[int, int]) -> None:
    """Make the limits hard, from outside: code between fork and exec would cost four times the launch."""
    with contextlib.suppress(ProcessLookupError):
        for kind, limit in limits.items():
            resource.prlimit(pid, kind, (limit, limit))


def _bearable(limits: dict[int, int]) -> dict[int, int]:
    """Those that this process can be under while it starts another; the rest is given as soon as that one is there.

    Starting opens files, and other threads take memory meanwhile: limits may be lower than what this process has.
    """
    hard = {resource.RLIMIT_NOFILE}
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])  # of data and stacks
    if limits.get(resource.RLIMIT_DATA, 0) < pages * resource.getpagesize() + _ROOM_BYTES:
        hard.add(resource.RLIMIT_DATA)
    return {kind: limit for kind, limit in limits.items() if kind not in hard}


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

    try:
        loop.add_reader(descriptor, ended)
        yield exited
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
