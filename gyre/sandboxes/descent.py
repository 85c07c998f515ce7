"""Going through a folder that somebody may still be working in: nothing in it is ever reached through a link.

Each thing is held by a descriptor before it is looked at, and what is read is what is held, whatever lies in its place
by then. Few descriptors are open at a time, however deep the folder goes: the way up is the way that led down, or it is
begun again at the top.
"""

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # opens nothing: no pipe waits, no device notices
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = 256  # bytes that one name and its slash may take
_GONE = (FileNotFoundError, NotADirectoryError)  # or a link by now, which is no folder


@dataclass(frozen=True, slots=True)
class Held:
    """One thing below the top, held until the next one is asked for."""

    name: str
    """Relative to the top, with slashes."""
    found: os.stat_result
    descriptor: int
    ours: bool

    def read(self, most: int) -> bytes:
        """So many bytes of a file. Raises OSError."""
        with _naming(self.name):
            path = _allowed(self.descriptor, 0o400) if self.ours else _path(self.descriptor)
            opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # waits for nobody's lease
            with open(opened, "rb") as file:  # noqa: PTH123 (by its descriptor)
                return file.read(most)

    def target(self) -> str:
        """Where a link leads. Raises OSError."""
        with _naming(self.name):
            return os.readlink("", dir_fd=self.descriptor)


def descend(top: Path, longest: int, most: int, *, ours: bool) -> Generator[Held]:
    """Everything below a folder by name, each folder before what is in it; what goes away meanwhile is passed by.

    Args:
        top: the folder; a link in its place is not followed.
        longest: most bytes of a name: what is in folders that could have longer ones is left out.
        most: of one folder's names, so many and one more are looked at.
        ours: nobody works in it any more, so modes may be widened where they keep its owner out; else a folder that
            is closed to us is told, and what is in it is passed by.

    Raises:
        OSError: NotADirectoryError for what is no folder at the top; or something is there and may not be read. It
            has the name of what it speaks of.
    """
    with _at(top, ours) as way:
        pending = [""]
        while pending:
            prefix = pending.pop()
            try:
                with _naming(prefix[:-1] or os.fspath(top)):
                    found = way.listed(prefix.split("/")[:-1], most)
            except way.passed:
                if not prefix:
                    raise
                continue
            inner: list[str] = []
            for name in found:
                with way.held(prefix, name) as held:
                    if held is None:
                        continue
                    yield held
                    near = len(os.fsencode(held.name)) + _NAME <= longest
                    if near and stat.S_ISDIR(held.found.st_mode):
                        inner.append(f"{held.name}/")
            pending += reversed(inner)


class _Way:
    """Where the descent stands."""

    def __init__(self, top: int, ours: bool) -> None:
        self._top, self._ours = top, ours
        self.passed = _GONE if ours else (*_GONE, PermissionError)
        """Errors of what is passed by."""
        self._here, self._names = os.dup(top), list[str]()
        self._came_by: list[tuple[int, int]] = []
        """Folders from the top to the one above this one, by device and number."""

    def close(self) -> None:
        os.close(self._here)

    def listed(self, names: list[str], most: int) -> list[str]:
        """Go to a folder, and what is in it: sorted, unless there is too much."""
        self._go(names)
        if self._ours:
            _allowed(self._here, 0o500)
        opened = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=self._here)
        try:
            with os.scandir(opened) as entries:
                return sorted({entry.name for entry in islice(entries, most + 1)})  # one that moves may be told twice
        finally:
            os.close(opened)

    @contextmanager
    def held(self, prefix: str, name: str) -> Iterator[Held | None]:
        """What has this name here; None: nothing has it any more, or somebody closed the folder meanwhile."""
        try:
            with _naming(prefix + name):
                descriptor = os.open(name, _HOLD, dir_fd=self._here)
        except self.passed:
            yield None
            return
        try:
            yield Held(prefix + name, os.fstat(descriptor), descriptor, self._ours)
        finally:
            os.close(descriptor)

    def _go(self, names: list[str]) -> None:
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._names, names, strict=False)))
        while len(self._names) > shared:
            self._up()
        for name in names[len(self._names) :]:
            above = _identity(self._here)
            self._stand(os.open(name, _HOLD | _FOLDER, dir_fd=self._here))
            self._names.append(name)
            self._came_by.append(above)

    def _up(self) -> None:
        above = self._came_by.pop()
        self._names.pop()
        with suppress(PermissionError):  # a closed folder has no way up either
            self._stand(os.open("..", _HOLD | _FOLDER, dir_fd=self._here))
            if _identity(self._here) == above:
                return
        # It is closed, or it was moved: above it is now what nobody led us to.
        self._stand(os.dup(self._top))
        self._names, self._came_by = [], []

    def _stand(self, descriptor: int) -> None:
        os.close(self._here)
        self._here = descriptor


@contextmanager
def _at(top: Path, ours: bool) -> Iterator[_Way]:
    descriptor = os.open(top, _HOLD | _FOLDER)
    try:
        way = _Way(descriptor, ours)
        try:
            yield way
        finally:
            way.close()
    finally:
        os.close(descriptor)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Errors have the name of what they speak of, which is reached by a descriptor."""
    try:
        yield
    except OSError as error:
        error.filename = name
        raise


def _allowed(descriptor: int, bits: int) -> str:
    """The path of what is held, with these bits in its mode."""
    path, mode = _path(descriptor), stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & bits != bits:
        os.chmod(path, mode | bits)  # noqa: PTH101
    return path


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
