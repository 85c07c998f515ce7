"""A command in namespaces of its own, set up by bubblewrap (`bwrap`).

It sees its box, the system's programs and what it is shown; it reaches its `reach` and nothing else, and ends whole
with the first process of its namespace. Nothing of it needs root; it needs user namespaces. Memory, processes and
processors are counted by control groups where those can be made; else a watch counts, a little later.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from gyre.sandboxes import doorway, seccomp
from gyre.sandboxes.family import children, descendants
from gyre.sandboxes.local import Launch, Local, bounded, cpu_seconds
from gyre.sandboxes.orphans import kill_leftovers
from gyre.sandboxes.port import Command, Ended, Limits, SandboxError, starting
from gyre.sandboxes.view import interpreter, view

_FIXED = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"),
    *("--disable-userns", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"),
    *("--die-with-parent", "--hostname", "sandbox"),
)
_SMALL_SHARE, _SMALL_BYTES = 8, 256 << 20  # what folders in memory may hold: an eighth of the memory, at most this
_DOOR, _ENTER = "/run/gyre/door", "/run/gyre/enter.py"
_PROBE_SECONDS = 20.0
_EXITED, _STATUS_BYTES = b'"exit-code"', 4096  # what bwrap says, where no command hears it, of one that it started
_KINDS = {
    "core": resource.RLIMIT_CORE,
    "data": resource.RLIMIT_DATA,
    "fsize": resource.RLIMIT_FSIZE,
    "nofile": resource.RLIMIT_NOFILE,
}


class BubblewrapSandbox:
    """Implements `Sandbox`; one for a whole process, made before it starts children of its own."""

    def __init__(
        self, limits: Limits | None = None, visible: tuple[Path, ...] = (), hidden: Path | None = None
    ) -> None:
        """Adopt orphans from now on.

        Args:
            limits: of each command.
            visible: shown to every command besides what it asks for itself.
            hidden: never shown as a whole, also where it lies in something visible: the run's folder.

        Raises:
            SandboxError: a program that it needs is not there.
        """
        self._limits = limits or Limits()
        self._local = Local(self._limits)
        self._bwrap, self._prlimit = needed("bwrap", "bubblewrap"), needed("prlimit", "util-linux")
        self._visible, self._hidden = visible, hidden
        self._filter = seccomp.compiled()

    def address(self, url: str) -> str:
        """At its own loopback, where its doorway listens."""
        return doorway.inside(url)

    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Ended:
        """See `Sandbox`. An exit code above 128 may be the signal that ended it, plus 128."""
        with starting(command.arguments[0]):
            command.box.mkdir(parents=True, exist_ok=True)
            async with _reaching(command) as door:
                with self._filtered() as filters, _memory_file() as status:
                    arguments = self._arguments(command, door, filters, status)
                    launch = Launch(arguments, _ask, own_limits=True, descriptors=(*filters, status))
                    ended = await self._local.run(command, launch, stop)
                    begun = _EXITED in os.pread(status, _STATUS_BYTES, 0)
        if (ended.ending, ended.exit_code, begun) == ("exited", 1, False):
            raise SandboxError(f"command {command.arguments[0]!r}: cannot be started: {ended.last_line}")
        return ended

    async def end_leftovers(self, box: Path) -> int:
        """See `Sandbox`."""
        return await asyncio.to_thread(kill_leftovers, box)

    async def close(self) -> None:
        """Let go of the filter; each call of `run` has ended with all that its command started."""
        if self._filter is not None:
            os.close(self._filter)
            self._filter = None

    @contextlib.contextmanager
    def _filtered(self) -> Iterator[tuple[int, ...]]:
        """The filter, opened anew: who reads it to its end moves nobody else's place in it."""
        if self._filter is None:
            yield ()
            return
        descriptor = os.open(f"/proc/self/fd/{self._filter}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield (descriptor,)
        finally:
            os.close(descriptor)

    def _arguments(self, command: Command, door: Path | None, filters: tuple[int, ...], status: int) -> tuple[str, ...]:
        python, needs = interpreter()
        shown = (*self._visible, *command.visible, *(needs if door else ()))
        small = min(self._limits.memory_bytes // _SMALL_SHARE, _SMALL_BYTES)
        places = [word for each in filters for word in ("--seccomp", str(each))]
        places += ["--json-status-fd", str(status), "--chdir", str(command.folder)]
        entering: tuple[str, ...] = ()
        if door:
            places += ["--ro-bind", str(door), _DOOR, "--ro-bind", str(doorway.ENTER), _ENTER]
            entering = (python, "-I", "-S", _ENTER, _DOOR, str(doorway.PORT))
        places += view(command.box, shown, self._hidden, small, command.places)
        return (self._bwrap, *_FIXED, *places, "--", *self._limited(command), *entering, *command.arguments)

    def _limited(self, command: Command) -> tuple[str, ...]:
        """Limits are set inside: bwrap itself has none, and processes of the namespace count by themselves."""
        own = bounded(self._limits)
        values = {name: own[kind] for name, kind in _KINDS.items()}
        values |= {"cpu": cpu_seconds(command), "nproc": self._limits.processes}
        return (self._prlimit, *(f"--{name}={value}:{value}" for name, value in values.items()), "--")


def check_bubblewrap() -> None:
    """Run nothing in namespaces, to see whether that can be done here. Raises SandboxError with the way out."""
    bwrap = needed("bwrap", "bubblewrap")
    needed("prlimit", "util-linux")
    # As the first process of its namespace, so that none is left for this process to bury.
    view_of_all = ("--as-pid-1", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
    arguments = (bwrap, *_FIXED, *view_of_all, "--", "true")
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"bwrap does not work here: {error}") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SandboxError(f"{said}: allow user namespaces (in a container: seccomp and AppArmor unconfined)")


def needed(program: str, package: str) -> str:
    """Where a program is. Raises SandboxError naming the package that has it."""
    found = shutil.which(program)
    if found is None:
        raise SandboxError(f"{program} is not installed: install the package {package}")
    return found


@contextlib.contextmanager
def _memory_file() -> Iterator[int]:
    descriptor = os.memfd_create("gyre-status")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def _reaching(command: Command) -> AsyncIterator[Path | None]:
    if not command.reach:
        yield None
        return
    async with doorway.doorway(command.reach, command.box) as door:
        yield door


def _ask(leader: int) -> None:
    """Ask all processes inside; bwrap itself, outside, would only die, and everything with it."""
    for init in children(leader):
        for pid in descendants(init):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
