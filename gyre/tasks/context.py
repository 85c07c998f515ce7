"""What an engine is given to build a task's image of: files beside its Dockerfile, and a name that follows from them.

Equal files make the same name on every machine: modes are a file's or a program's, owners and times are left out. Tests
and solutions are never part of it, whatever the Dockerfile would copy.
"""

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gyre.tasks.ignore import Ignore
from gyre.tasks.task_file import TaskError
from gyre.tasks.unpack import stays

PREFIX = "localhost/gyre-task/"
"""Of the names of built images: a registry that nobody's image is ever fetched from by chance."""
DOCKERFILE, IGNORE = "Dockerfile", ".dockerignore"
MOST_BYTES = 1 << 30
MOST_ENTRIES = 50_000
_FORM = 1  # of the digest; another one when images of equal files are to be built anew
_WHEN = 946_684_800  # 2000-01-01: archives of some kinds hold nothing before 1980
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Context:
    """A build context."""

    folder: Path
    names: tuple[str, ...]
    """Files, folders and links, relative, in order."""
    arguments: Mapping[str, str]
    """Of the build (ARG)."""

    def digest(self) -> str:
        """SHA-256, hex, of all that an image is made of, but for the image it begins with. Raises TaskError."""
        whole = hashlib.sha256()
        for told in ([_FORM, sorted(self.arguments.items())], *(self._told(name) for name in self.names)):
            whole.update(json.dumps(told).encode() + b"\n")
        return whole.hexdigest()

    def image(self, task: str) -> str:
        """The name of the image that is built of it for a task. Raises TaskError."""
        return f"{PREFIX}{re.sub('[^a-z0-9]+', '-', task.lower()).strip('-')[:80] or 'task'}:{self.digest()[:32]}"

    def write(self, file: IO[bytes]) -> None:
        """Write it as a tar archive. Raises OSError."""
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in self.names:
                path, member = self.folder / name, tarfile.TarInfo(name)
                member.mtime, member.mode = _WHEN, _mode(path)
                if path.is_symlink():
                    member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
                    archive.addfile(member)
                elif path.is_dir():
                    member.type = tarfile.DIRTYPE
                    archive.addfile(member)
                else:
                    with path.open("rb") as body:
                        member.size = os.fstat(body.fileno()).st_size
                        archive.addfile(member, body)

    def _told(self, name: str) -> list[object]:
        path = self.folder / name
        if path.is_symlink():
            return [name, "link", str(path.readlink())]
        if path.is_dir():
            return [name, "folder"]
        try:
            with path.open("rb") as body:
                return [name, _mode(path), hashlib.file_digest(body, "sha256").hexdigest()]
        except OSError as error:
            raise TaskError(f"{path}: not readable: {error}") from error


def read_context(folder: Path, hidden: tuple[str, ...] = (), arguments: Mapping[str, str] | None = None) -> Context:
    """The context in `folder`, without what `.dockerignore` names and without the files and folders `hidden`.

    Raises TaskError: a link leads out of it, it is too large, or a pattern is none.
    """
    file = folder / IGNORE
    ignore = Ignore(file.read_text(encoding="utf-8") if file.is_file() else "", str(file))
    names: list[str] = []
    size = 0
    for name in _walk(folder, hidden):
        if name not in (DOCKERFILE, IGNORE) and ignore.hides(name):
            continue
        path = folder / name
        if path.is_symlink() and not stays(name, str(path.readlink())):
            raise TaskError(f"{path}: links out of the build context, to {path.readlink()}; copy the file")
        size += 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
        names.append(name)
        if size > MOST_BYTES or len(names) > MOST_ENTRIES:
            most = f"{MOST_BYTES} bytes and {MOST_ENTRIES} files"
            raise TaskError(f"{folder}: holds more than a build context may, {most}; name what it needs not in {file}")
    return Context(folder, tuple(names), dict(arguments or {}))


def _walk(folder: Path, hidden: tuple[str, ...]) -> Iterator[str]:
    """Names of all that lies below, folders before what is in them."""
    for top, folders, files in os.walk(folder):
        below = os.path.relpath(top, folder)
        prefix = "" if below == "." else f"{below}/"
        folders[:] = sorted(name for name in folders if f"{prefix}{name}" not in hidden)
        yield from (prefix + name for name in sorted((*folders, *files)) if f"{prefix}{name}" not in hidden)


def _mode(path: Path) -> int:
    return 0o755 if path.is_dir() or path.stat(follow_symlinks=False).st_mode & 0o100 else 0o644
