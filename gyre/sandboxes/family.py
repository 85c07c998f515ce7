"""What a command has started, found from its first process on: where no control group counts it."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Family:
    """Processes and what descends from them."""

    processes: int
    memory_bytes: int
    """Resident; what some share counts once, by the one that has most of it."""


def family(leaders: Iterable[int], most: int) -> Family:
    """Count them and what descends from them, and look no further once there are more than `most` processes."""
    processes = private = shared = 0
    for pid in itertools.islice(members(leaders), most + 1):
        own, common = _memory(pid)
        private, shared = private + own, max(shared, common)
        processes += 1
    return Family(processes, private + shared)


def members(leaders: Iterable[int]) -> Iterator[int]:
    """Each of these processes and what descends from it."""
    for leader in leaders:
        yield leader
        yield from descendants(leader)


def descendants(pid: int) -> Iterator[int]:
    """The children of a process, theirs, and so on."""
    pending = children(pid)
    while pending:
        found = pending.pop()
        yield found
        pending += children(found)


def children(pid: int) -> list[int]:
    """The children of all threads of a process, if it is there."""
    tasks, found = _PROC / str(pid) / "task", list[int]()
    with contextlib.suppress(OSError):
        for thread in os.listdir(tasks):  # noqa: PTH208 (names, not paths)
            with contextlib.suppress(OSError):  # ended meanwhile: its children have gone to another one
                found += map(int, (tasks / thread / "children").read_text().split())
    return found


def _memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process that are its own, and that others may share: no files, which can be read again."""
    try:
        words = (_PROC / str(pid) / "status").read_bytes()
    except OSError:
        return 0, 0
    return _kilobytes(words, b"\nRssAnon:"), _kilobytes(words, b"\nRssShmem:")


def _kilobytes(words: bytes, name: bytes) -> int:
    """Bytes of one line; a process that has ended has none."""
    _, found, rest = words.partition(name)
    return int(rest.split(None, 1)[0]) << 10 if found else 0
