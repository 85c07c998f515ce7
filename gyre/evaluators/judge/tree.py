"""Walking and copying a folder that somebody else filled: links are never followed, and no depth is too deep."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def walk(top: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder, each folder before what is in it, by name; what cannot be listed is passed by."""
    pending = [str(top)]
    while pending:
        folders: list[str] = []
        for entry in _entries(pending.pop()):
            yield entry
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
        pending += reversed(folders)


def copy(source: Path, target: Path) -> None:
    """Copy folders, files and links with their modes; anything else, and what has too long a path there, is left out.

    Raises:
        OSError: it is no folder that can be listed, or anything else that keeps it from being copied.
    """
    with os.scandir(source):
        pass
    target.mkdir(parents=True)
    for entry in walk(source):
        place = target / os.path.relpath(entry.path, source)
        try:
            _copy(entry, place)
        except OSError as error:
            if error.errno not in (errno.ENAMETOOLONG, errno.ENOENT):  # the second: below one that was left out
                raise


def _copy(entry: os.DirEntry[str], place: Path) -> None:
    if entry.is_symlink():
        place.symlink_to(os.readlink(entry.path))  # noqa: PTH115 - kept as it is written
    elif entry.is_dir():
        place.mkdir(mode=entry.stat().st_mode & 0o777 | 0o700)
    elif entry.is_file():
        shutil.copy2(entry.path, place, follow_symlinks=False)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []
