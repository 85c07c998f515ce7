"""Every sandbox that this machine has, made alike, with little to use up."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gyre.sandboxes.bubblewrap import BubblewrapSandbox, check_bubblewrap
from gyre.sandboxes.groups import Groups
from gyre.sandboxes.port import Command, Limits, Sandbox, SandboxError
from gyre.sandboxes.process import ProcessSandbox
from gyre.sandboxes.view import interpreter
from tests.sandboxes.engine import IMAGE, SOCKET, WHY

LIMITS = Limits(
    memory_bytes=128 << 20,
    disk_bytes=16 << 20,
    file_bytes=8 << 20,
    files=1000,
    look_seconds=0.1,
    output_bytes=4 << 20,
    open_files=256,
    processes=48,
)
KINDS = ("process", "bubblewrap", "docker")


@dataclass(frozen=True)
class Stand:
    """One sandbox to attack."""

    kind: str
    sandbox: Sandbox
    python: str
    visible: tuple[Path, ...]

    def command(
        self,
        box: Path,
        script: str,
        *words: str,
        seconds: float = 60.0,
        reach: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Command:
        """A Python script in a box of its own."""
        (box / "ws").mkdir(parents=True, exist_ok=True)
        arguments = (self.python, "-I", "-S", "-c", script, *words)
        return Command(arguments, box / "ws", box, environment or {}, seconds, 0.3, self.visible, reach)


def lacking(kind: str) -> str:
    """Why this machine has no such sandbox; empty where it has."""
    if kind == "docker":
        return WHY
    try:
        if kind == "bubblewrap":
            check_bubblewrap()
    except SandboxError as error:
        return str(error)
    return ""


def has_groups() -> bool:
    """Whether control groups can be made here."""
    group = Groups().open(LIMITS)
    if group:
        group.remove()
    return group is not None


def make(kind: str, limits: Limits = LIMITS) -> Stand:
    """Skips the test where there is none."""
    if why := lacking(kind):
        pytest.skip(why)
    python, needs = interpreter()
    if kind == "process":
        return Stand(kind, ProcessSandbox(limits), python, ())
    if kind == "bubblewrap":
        return Stand(kind, BubblewrapSandbox(limits), python, needs)
    from gyre.config_containers import DockerSection
    from gyre.sandboxes.docker import DockerSandbox

    return Stand(kind, DockerSandbox(DockerSection(socket=str(SOCKET)), IMAGE, limits), "python3", ())


def processes_with(word: str) -> list[int]:
    """Processes of this machine whose command line has a word."""
    found = []
    for pid in (path.name for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(int(pid))
    return found


def mounts_below(folder: Path) -> list[str]:
    """Mount points in a folder."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]
