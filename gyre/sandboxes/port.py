"""What a runner may ask of a sandbox: run one command to its end, within limits, and leave nothing behind."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from gyre.errors import GyreError

Ending = Literal["exited", "timeout", "stopped", "disk", "memory", "processes", "output"]
"""exited by itself, ended at its deadline, ended because it was asked for, or because it took too much of something;
each sandbox tells those that it can."""

OUTPUT_BYTES = 1 << 16
"""How much of the end of a command's output is kept."""

NO_CORE = 1
"""Bytes of a crashed process that are kept: with 0, a program of the host that the kernel hands crashes to (a pipe as
`core_pattern`) would still be given each of them."""


class SandboxError(GyreError):
    """A sandbox does not work here, or a command could not be started in it; one line saying which and why."""


class CommandLost(SandboxError):
    """A command was started, and how it ended is not known: what it did until then counts."""


@contextlib.contextmanager
def starting(name: str) -> Iterator[None]:
    """Around all of one run: what the machine refuses it (descriptors, owners of files) is a `SandboxError`."""
    try:
        yield
    except OSError as error:
        raise SandboxError(f"command {name!r}: cannot be started: {error}") from error


@contextlib.contextmanager
def started() -> Iterator[None]:
    """Around what follows the start of a command in one run: what fails now loses it, which is `CommandLost`."""
    try:
        yield
    except (SandboxError, OSError) as error:
        raise CommandLost(f"its sandbox lost it: {error}") from error


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command and all that it starts may use."""

    memory_bytes: int = 4 << 30
    """Memory of all of it together where the sandbox can count that; else data of one process (RLIMIT_DATA: address
    space that is only reserved does not count)."""
    file_bytes: int = 256 << 20
    """Size of one file."""
    disk_bytes: int = 1 << 30
    """All files in the command's box."""
    files: int = 200_000
    """Files and folders in the command's box."""
    look_seconds: float = 5.0
    """How often they are looked at: what is written in between may be more."""
    output_bytes: int = 1 << 30
    """All that it writes to stdout and stderr."""
    open_files: int = 4096
    """Open files of one process."""
    processes: int = 1024
    """Processes and threads of all of it together where the sandbox can count that; else of the user that runs it
    (the kernel does not hold root to it)."""
    cpus: float | None = None
    """Processors that it may keep busy, where the sandbox can hold it to that; None: as many as there are."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run."""

    arguments: tuple[str, ...]
    folder: Path
    """Its current directory."""
    box: Path
    """Its private folder, unique among all that run: HOME and TMPDIR are made in it, and `folder` may lie in it."""
    environment: Mapping[str, str]
    """Added to the little that every command gets; nothing else of the host's environment is seen."""
    deadline_seconds: float
    grace_seconds: float = 2.0
    """Time between asking it to end and killing it."""
    visible: tuple[Path, ...] = ()
    """What it may read of this machine besides its box and the system's programs, at the same paths: its own code,
    tests when it grades. A sandbox that shares the file system shows everything."""
    reach: str = ""
    """"http://host:port" of the only thing that it may connect to; empty: nothing. One that shares the network does
    not hold it to that."""
    image: str = ""
    """For sandboxes with images; empty: the configured one."""
    places: tuple[tuple[str, Path], ...] = ()
    """(absolute name, folder): further names under which folders are found, such as /tests. Of what lies in the box all
    can be written, of the rest nothing. One that shares the file system has none of them."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    ending: Ending
    exit_code: int | None
    """Negative: the signal that ended it."""
    seconds: float
    output: bytes
    """The last 64 KiB of what it wrote to stdout and stderr."""
    reason: str = ""
    """One line for the log: what contained it; empty when nothing had to."""

    @property
    def last_line(self) -> str:
        """The last line of the output that says something, for people, at most 200 characters."""
        lines = [line.strip() for line in self.output[-4096:].decode(errors="replace").splitlines() if line.strip()]
        return "".join(char if char.isprintable() else "?" for char in lines[-1][:200]) if lines else ""


class Sandbox(Protocol):
    """A place to run commands in; paths are the same inside and outside."""

    def address(self, url: str) -> str:
        """Under what URL a command finds what lies at `url`, its `reach`, outside."""

    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Ended:
        """Run a command to its end: its own, its deadline's, a limit's, or `stop`'s; then nothing of it lives on.

        Cancelling this call kills the command at once. Raises `SandboxError` when it cannot be started, `CommandLost`
        when how it ended cannot be known.
        """

    async def end_leftovers(self, box: Path) -> int:
        """End what still runs in a box whose sandbox is gone, whoever's it was; how many that were."""

    async def close(self) -> None:
        """End what runs; then nothing of this sandbox is left: processes, mounts, containers, sockets."""
