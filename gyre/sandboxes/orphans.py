"""Processes that outlive the command that started them: they are found and killed, however deep they hid.

A command leads a session of its own, and every process inherits GYRE_BOX, the path of the command's private folder. A
child whose parent ended becomes a child of the sandbox's own process (a "subreaper", Linux), where it is found by its
session or its GYRE_BOX. One that leaves its session *and* clears its environment is not told from others and lives
until its limits end it: only a sandbox with a namespace of its own holds that one.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gyre.sandboxes.family import members

MARK = "GYRE_BOX"
_PROC = Path("/proc")
_SET_CHILD_SUBREAPER = 36
_MOST_PASSES = 100


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    zombie: bool
    session: int


class Orphanage:
    """Adopts what the commands of this process leave behind."""

    leaders: ClassVar[set[int]] = set()
    """Commands that are waited for by whoever started them: of every sandbox of this process, or one of them would take
    another's exit code away."""

    def __init__(self) -> None:
        """From now on orphans come to this process; children that it already has are not touched."""
        self._others = set(_children())
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def bury(self) -> None:
        """Reap those of running commands that have ended: until then each counts as a process of its command."""
        for process in self._adopted():
            if process.zombie and process.session in self.leaders:
                _reap(process.pid)

    def living(self, session: int, box: Path) -> list[int]:
        """Those of one command."""
        return [each.pid for each in self._adopted() if not each.zombie and _of(each, session, box)]

    def sweep(self, session: int, box: Path) -> bool:
        """Kill and reap the orphans of one command; False once none was found, so that none can come any more."""
        stopped = self._stopped(session, box)
        for pid in stopped:
            kill(pid)
        found = bool(stopped)
        for process in self._adopted():
            found = found or _of(process, session, box)
            if process.zombie:
                _reap(process.pid)
        return found

    def _stopped(self, session: int, box: Path) -> set[int]:
        """All of them, held: what starts others faster than it can be killed would never end."""
        stopped = set[int]()
        for _ in range(_MOST_PASSES):
            more = set(members(self.living(session, box))) - stopped
            for pid in more:
                signal_to(pid, signal.SIGSTOP)
            stopped |= more
            if not more:
                break
        return stopped

    def _adopted(self) -> Iterator[_Process]:
        for pid in _children():
            if pid not in self._others and pid not in self.leaders and (process := _process(pid)) is not None:
                yield process


def kill_leftovers(box: Path) -> int:
    """Kill what still runs for a box whose sandbox is gone, wherever it is; returns how many processes that were."""
    own = os.getsid(0)
    found = [process for pid in _all_processes() if marked(pid, box) and (process := _process(pid))]
    sessions = {process.session for process in found} - {own}
    victims = {process.pid for process in found}
    victims |= {pid for pid in _all_processes() if sessions and (one := _process(pid)) and one.session in sessions}
    for pid in victims - {os.getpid()}:
        kill(pid)
    return len(victims)


def marked(pid: int, box: Path) -> bool:
    """Whether a process was started for this box."""
    try:
        return f"{MARK}={box}".encode() in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def kill(pid: int) -> None:
    """End a process, if it is there and may be ended."""
    signal_to(pid, signal.SIGKILL)


def signal_to(pid: int, number: int) -> None:
    """Signal a process, if it is there and may be signalled."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _of(process: _Process, session: int, box: Path) -> bool:
    return process.session == session or (not process.zombie and marked(process.pid, box))


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _children() -> list[int]:
    own = os.getpid()
    try:
        return [int(pid) for pid in (_PROC / "self" / "task" / str(own) / "children").read_text().split()]
    except OSError:
        return []


def _all_processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 (thousands of Paths)
    except OSError:
        return []


def _process(pid: int) -> _Process | None:
    try:
        # pid (name) state parent group session ...: the name may hold anything, so begin behind its last bracket.
        words = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return _Process(pid, words[0] == b"Z", int(words[3]))
