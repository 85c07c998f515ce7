"""Files that a command deleted and still holds: they fill a disk, or the memory, and no folder shows them.

Seen is what its processes have open or mapped. What only lies in the queue of a socket is not seen, nor is what
belongs to processes that this one may not look into.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_BLOCK = 512
_DELETED = b" (deleted)"


@dataclass(frozen=True, slots=True)
class Nameless:
    """What such files of a command hold."""

    disk_bytes: int = 0
    """On the file system of its box."""
    memory_bytes: int = 0
    """In memory alone: made by `memfd_create`."""
    files: int = 0


def nameless(processes: Iterable[int], box: Path, most: int) -> Nameless:
    """Count those of these processes, each once; no further once there are more than `most`."""
    disk, memory = _device(box), _memory_device()
    sizes = dict[tuple[int, int], int]()
    for pid in processes:
        for found in _open(pid):
            if found.st_nlink == 0 and found.st_dev in (disk, memory):
                sizes[found.st_dev, found.st_ino] = found.st_blocks * _BLOCK
            if len(sizes) > most:
                return _summed(sizes, disk)
        for device, number, end in _mapped(pid):
            if device == disk:  # how much of it is there is not said: as much as is mapped, at most
                sizes.setdefault((device, number), end)
    return _summed(sizes, disk)


def _summed(sizes: dict[tuple[int, int], int], disk: int) -> Nameless:
    on_disk = sum(size for (device, _), size in sizes.items() if device == disk)
    return Nameless(on_disk, sum(sizes.values()) - on_disk, len(sizes))


def _open(pid: int) -> Iterator[os.stat_result]:
    """The regular files that a process has open."""
    folder = f"{_PROC}/{pid}/fd"
    try:
        numbers = os.listdir(folder)  # noqa: PTH208 (names, not paths)
    except OSError:
        return
    for number in numbers:
        try:
            found = os.stat(f"{folder}/{number}")  # noqa: PTH116 (a link that is no path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield found


def _mapped(pid: int) -> Iterator[tuple[int, int, int]]:
    """Device, number and end of what a process has mapped of files that were deleted."""
    try:
        lines = (_PROC / str(pid) / "maps").read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        if line.endswith(_DELETED):
            place, _, offset, device, number, *_ = line.split()
            begin, end = (int(word, 16) for word in place.split(b"-"))
            major, minor = (int(word, 16) for word in device.split(b":"))
            yield os.makedev(major, minor), int(number), int(offset, 16) + end - begin


def _device(box: Path) -> int:
    try:
        return box.stat().st_dev
    except OSError:
        return -1


def _memory_device() -> int:
    try:
        descriptor = os.memfd_create("gyre")
    except OSError:  # no descriptor is left just now: the next look counts
        return -1
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
