"""Control groups: the kernel counts the memory and the processes of a whole command, and knows all that is in it.

They are there where this process may make some: for root, in containers that were given them, and below a user's own
service manager. Both versions are known. A group is named after its owner, so that what a killed one left is found.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gyre.sandboxes.orphans import kill
from gyre.sandboxes.port import Limits

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 100_000  # microseconds in which processor time is measured out
_LEAVE_PAUSES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_COUNTER = itertools.count()

# Runs before a command, so that not even its first child is outside: `sh -c ENTER gyre FILE... -- COMMAND...`
ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 126; shift; done; shift; exec "$@"'


@dataclass(frozen=True, slots=True)
class Group:
    """The groups of one command, one in each hierarchy."""

    folders: Mapping[str, Path]
    """Controller -> folder; all the same one under version 2."""

    @property
    def entries(self) -> tuple[str, ...]:
        """Files to write to for entering."""
        return tuple(str(folder / "cgroup.procs") for folder in _apart(self.folders))

    def limit(self, limits: Limits) -> None:
        """Set what all of the command together may use."""
        memory, quota = str(limits.memory_bytes), round((limits.cpus or 0) * _PERIOD)
        _write(self.folders, "memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"), memory)
        _write(self.folders, "memory", ("memory.swap.max",), "0")
        _write(self.folders, "pids", ("pids.max",), str(limits.processes))
        if quota:
            _write(self.folders, "cpu", ("cpu.cfs_quota_us",), str(quota))
            _write(self.folders, "cpu", ("cpu.max",), f"{quota} {_PERIOD}")

    @property
    def refused(self) -> int:
        """Processes that were not started because there were too many."""
        return _count(self.folders, "pids", "pids.events", "max")

    @property
    def killed(self) -> int:
        """Processes that were ended because memory ran out."""
        return max(_count(self.folders, "memory", name, "oom_kill") for name in ("memory.oom_control", "memory.events"))

    @property
    def members(self) -> set[int]:
        """Processes in it."""
        return {pid for folder in _apart(self.folders) for pid in _members(folder)}

    def kill(self) -> bool:
        """Kill all that is in it, and let nothing more be started; False once nothing was."""
        with contextlib.suppress(OSError):
            _write(self.folders, "pids", ("pids.max",), "0")
        found = self.members
        for pid in found:
            kill(pid)
        return bool(found)

    def remove(self) -> None:
        """Take the groups away, once nothing is in them."""
        for folder in _apart(self.folders):
            for pause in _LEAVE_PAUSES:  # what was reaped a moment ago may still be counted
                time.sleep(pause)
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    continue


class Groups:
    """Makes them, where that can be done."""

    def __init__(self) -> None:
        """Find the place for groups, and clear away what owners left who are gone."""
        self._places = here()
        self._owner = _owner(os.getpid())
        for group in _left(self._places):
            for pause in _LEAVE_PAUSES:
                if not group.kill():
                    break
                time.sleep(pause)
            group.remove()

    def open(self, limits: Limits) -> Group | None:
        """Groups for one command with its limits; None where there can be none."""
        name = f"{self._owner}-{next(_COUNTER)}"
        group = Group({controller: place / name for controller, place in self._places.items()})
        if not self._places:
            return None
        try:
            for folder in _apart(group.folders):
                folder.mkdir()
            group.limit(limits)
        except OSError:
            group.remove()
            return None
        return group


def here() -> dict[str, Path]:
    """Controller -> where this process can make groups of it."""
    return places(Path("/proc/self/cgroup").read_text(), _ROOT)


def places(own: str, root: Path) -> dict[str, Path]:
    """Where groups of each controller can be made: below the nearest group of this process that lets one.

    Args:
        own: what /proc/self/cgroup says.
        root: where the hierarchies are mounted.
    """
    found: dict[str, Path] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers:
            for controller in {"pids", "memory", "cpu"} & set(controllers.split(",")):
                folder = root / controller / path.lstrip("/")
                if os.access(folder, os.W_OK) and (folder / "cgroup.procs").exists():
                    found[controller] = folder
    if found:
        return found if "pids" in found else {}
    unified = next((line.split(":", 2)[2] for line in own.splitlines() if line.startswith("0::")), None)
    return {} if unified is None else _unified(root / unified.lstrip("/"), root)


def _unified(own: Path, root: Path) -> dict[str, Path]:
    """Version 2: a group that gives controllers to its children holds no processes, so ours is never the one."""
    for folder in (own, *own.parents):
        try:
            given = (folder / "cgroup.subtree_control").read_text().split()
        except OSError:
            given = []
        if "pids" in given and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK):
            return dict.fromkeys(sorted({"pids", "memory", "cpu"} & set(given)), folder)
        if folder == root:
            break
    return {}


def _owner(pid: int) -> str:
    """A name for a process that no other ever has on this machine since it started."""
    return f"gyre-{os.stat('/proc/self/ns/pid').st_ino}-{pid}-{_started(pid)}"  # noqa: PTH116 (a link that is no path)


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return ""


def _left(places: Mapping[str, Path]) -> list[Group]:
    """Groups whose owner, of this pid namespace, is gone."""
    namespace = _owner(0).split("-")[1]
    names = {path.name for place in _apart(places) for path in place.glob(f"gyre-{namespace}-*-*-*")}
    gone = [name for name in names if _started(int(name.split("-")[2])) != name.split("-")[3]]
    return [Group({controller: place / name for controller, place in places.items()}) for name in gone]


def _apart(folders: Mapping[str, Path]) -> list[Path]:
    return sorted(set(folders.values()))


def _members(folder: Path) -> list[int]:
    try:
        # 0 stands for a process of another pid namespace; to kill it would be to kill ourselves.
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split() if pid != "0"]
    except OSError:
        return []


def _write(folders: Mapping[str, Path], controller: str, names: tuple[str, ...], value: str) -> None:
    """Into those files that this version has."""
    for name in names:
        path = folders[controller] / name if controller in folders else None
        if path is not None and path.exists():
            path.write_text(value)


def _count(folders: Mapping[str, Path], controller: str, name: str, key: str) -> int:
    if controller not in folders:
        return 0
    with contextlib.suppress(OSError):
        for line in (folders[controller] / name).read_text().splitlines():
            if line.startswith(f"{key} "):
                return int(line.split()[1])
    return 0
