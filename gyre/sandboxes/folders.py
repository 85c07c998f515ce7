"""Folders that a hostile command filled: measured and removed, however many, deep or odd the things in them are."""

import contextlib
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

_DEEP = 3000  # bytes of a path; the kernel takes 4096
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Size:
    """What a folder holds."""

    size_bytes: int
    """On disk."""
    entries: int
    deepest: int
    """Bytes of the longest path."""


def measure(folder: Path, most: int | None = None) -> Size:
    """The size of a folder that may change meanwhile; not counted on beyond so many entries, nor below `_DEEP`."""
    size = entries = deepest = 0
    linked = set[int]()
    pending = [os.fsencode(folder)]
    while pending:
        path = pending.pop()
        deepest = max(deepest, len(path))
        for entry in _entries(path):
            entries += 1
            with contextlib.suppress(OSError):
                found, folder_too = entry.stat(follow_symlinks=False), entry.is_dir(follow_symlinks=False)
                if folder_too or found.st_nlink == 1 or found.st_ino not in linked:  # a file of many names counts once
                    size += found.st_blocks * _BLOCK
                if folder_too and len(path) <= _DEEP:
                    pending.append(entry.path)
                elif found.st_nlink > 1:
                    linked.add(found.st_ino)
            if most is not None and entries > most:
                return Size(size, entries, deepest)
    return Size(size, entries, deepest)


def too_deep(size: Size) -> bool:
    """Whether there may be more below than was counted."""
    return size.deepest > _DEEP


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, whatever modes, names and depth it has; nothing may work in it any more.

    What cannot be removed is left: what belongs to somebody else, and whatever is mounted below.
    """
    root = os.fsencode(folder)
    if folder.is_symlink() or not folder.is_dir():
        _unlink(root)
        return
    mounted, emptied, pending = _mounted_below(root), list[bytes](), [root]
    while pending:
        path = pending.pop()
        emptied.append(path)
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)  # noqa: PTH101 (a path of bytes that need not be text)
        for entry in _entries(path):
            if not entry.is_dir(follow_symlinks=False):
                _unlink(entry.path)
            elif entry.path not in mounted:
                pending.append(_nearer(root, entry.path))
    for path in reversed(emptied):
        with contextlib.suppress(OSError):
            os.rmdir(path)  # noqa: PTH106


def _nearer(root: bytes, path: bytes) -> bytes:
    """A folder's path, or where it was moved because paths below it could not be named."""
    if len(path) <= _DEEP:
        return path
    nearer = next(name for number in itertools.count() if not os.path.lexists(name := root + b"/.deep-%d" % number))
    try:
        os.rename(path, nearer)  # noqa: PTH104
    except OSError:
        return path
    return nearer


def _mounted_below(root: bytes) -> set[bytes]:
    """Mount points in a folder; their names may be written with octal escapes."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return set()
    points = {re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split()[4]) for line in lines}
    return {point for point in points if point.startswith(root + b"/")}


def _entries(path: bytes) -> "list[os.DirEntry[bytes]]":
    """What is in a folder; nothing where it is gone, or cannot be opened or named."""
    try:
        with os.scandir(path) as found:
            return list(found)
    except OSError:
        return []


def _unlink(path: bytes) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108
