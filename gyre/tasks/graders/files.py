"""The work's files and folders as a grader handles them: copied, laid over, removed; hostile in number, depth, mode."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDINGS = (".pth", ".egg-link", ".pyc", ".egg-info", ".dist-info")
ENTRY_BYTES = 4096  # what a file counts for in the size of the work, besides its own size
DISCARD_SECONDS = 2.0


def copy_work(source: Path, target: Path, guarded: set[str], most: float) -> int:
    """Copy the work without its repository, without what would run by itself, and without what is too deep to name.

    The size of it all. Raises OSError, also where that is over `most` bytes.
    """
    target.mkdir(parents=True)
    total, folders = 0, [(str(source), str(target))]
    while folders:  # not by a function that calls itself: folders are nested deeper than calls can be
        here, there = folders.pop()
        for path, found in within(here, guarded):
            total += ENTRY_BYTES + found.st_size * stat.S_ISREG(found.st_mode)
            if total > most:
                raise OSError(errno.EFBIG, "more than twice of what the work was", path)
            new = os.path.join(there, os.path.basename(path))
            with suppress_only(errno.ENAMETOOLONG):
                copy_one(path, new, found)
                if stat.S_ISDIR(found.st_mode):
                    folders.append((path, new))
    return total


def within(folder: str, guarded: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """(path, what it is) of all in a folder that is wanted in a copy of the work: files, folders, links to either."""
    if not os.access(folder, os.R_OK | os.X_OK):  # whatever modes the agent gave to what is ours now
        os.chmod(folder, 0o700)
    with os.scandir(folder) as entries:  # one by one: there may be more than memory holds
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if not unwanted(entry.name, guarded) and (os.path.isfile(path) or os.path.isdir(path)):
                yield path, os.lstat(path)


def unwanted(name: str, guarded: set[str]) -> bool:
    """Whether it is what Python or a test runner would run by itself, or a repository."""
    return name in guarded or name.endswith(ENDINGS) or name in (".git", "__pycache__")


def copy_one(path: str, new: str, found: os.stat_result) -> None:
    """Copy a file or a link, or make a folder."""
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(path), new)
    elif stat.S_ISDIR(found.st_mode):
        os.mkdir(new)
    else:
        if not found.st_mode & 0o400:
            os.chmod(path, found.st_mode | 0o400)
        shutil.copy2(path, new)


@contextmanager
def suppress_only(number: int) -> Iterator[None]:
    """Of errors of the system this one is none."""
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; at least from its place."""
    if path.is_dir() and not path.is_symlink():
        aside = path.with_name(secrets.token_hex(16))
        path.rename(aside)
        discard(aside)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def no_further_than_a_link(work: Path, name: str) -> Path:
    """What a name is in the work, or the link on the way to it: what lies behind one is not the work's."""
    path = work
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            break
    return path


def discard(folder: Path) -> None:
    """Remove a folder as far as that can be done in a while: it may be nested deeper and hold more than we bear."""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["rm", "-rf", str(folder)]
        subprocess.run(command, stderr=subprocess.DEVNULL, timeout=DISCARD_SECONDS, check=False)


def hold(folder: Path) -> None:
    """See to it that a folder of ours is one and can be used, whatever the work has made of it. Raises OSError."""
    if folder.is_symlink() or not folder.is_dir():
        remove(folder)
        folder.mkdir()
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        folder.chmod(0o700)


def reopen(*paths: Path) -> None:
    """Folders of ours on the way to them can be gone through, whatever modes the work has given those."""
    for path in paths:
        for folder in reversed(path.parents):
            if not os.access(folder, os.X_OK):
                with suppress(OSError):
                    folder.chmod(0o700)


def write_new(path: Path, text: str) -> None:
    """Write a new file in the place of whatever lies there, never through a link. Raises OSError."""
    remove(path)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def lay_over(source: Path, target: Path) -> None:
    """Copy the task's files over the work; never through a link that the agent left."""
    for path in sorted(source.rglob("*")):
        inside = target / path.relative_to(source)
        if inside.is_symlink() or (inside.exists() and inside.is_dir() != path.is_dir()):
            remove(inside)
        if path.is_dir():
            inside.mkdir(exist_ok=True)
        else:
            if inside.exists():
                inside.unlink()
            shutil.copyfile(path, inside)
            inside.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
