"""What a command has started, found from its first process on: where no control group counts it."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Family:
    """A process and what descends from it; who left it for a session of its own and lost its parent is not seen."""

    processes: int
    memory_bytes: int
    """Resident and not shared."""


def family(leader: int, most: int) -> Family:
    """Count, and look no further once there are more than `most` processes."""
    processes = pages = 0
    for pid in (leader, *itertools.islice(descendants(leader), most)):
        pages += _private_pages(pid)
        processes += 1
    return Family(processes, pages * _PAGE_BYTES)


def descendants(pid: int) -> Iterator[int]:
    """The children of a process, theirs, and so on."""
    pending = children(pid)
    while pending:
        found = pending.pop()
        yield found
        pending += children(found)


def children(pid: int) -> list[int]:
    """The children of all threads of a process, if it is there."""
    found: list[int] = []
    try:
        for thread in os.listdir(_PROC / str(pid) / "task"):  # noqa: PTH208 (names, not paths)
            found += map(int, (_PROC / str(pid) / "task" / thread / "children").read_text().split())
    except OSError:
        pass
    return found


def _private_pages(pid: int) -> int:
    try:
        _, resident, shared, *_ = (_PROC / str(pid) / "statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return int(resident) - int(shared)
