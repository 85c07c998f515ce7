"""What of a task's tests and solution a workspace holds, as a file or as an object of its repository."""

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

from gyre.tasks.folder import Task

_LEAST_BYTES = 16  # shorter ones are equal by chance
_LAID = "lay"


def exposed(task: Task, workspace: Path) -> list[str]:
    """Names of hidden files whose very content the workspace holds.

    A file that tests lay over the work may be the repository's own: one of the same name and content doesn't count.
    """
    held = {_digest(path.read_bytes()) for path in _files(workspace)} | set(_objects(workspace))
    return [
        str(path.relative_to(task.path))
        for top in (task.tests, task.solution.parent)
        for path in _files(top)
        if not _own(path, task, workspace) and len(body := path.read_bytes()) >= _LEAST_BYTES and _digest(body) in held
    ]


def _own(path: Path, task: Task, workspace: Path) -> bool:
    laid = task.tests / _LAID
    if not path.is_relative_to(laid):
        return False
    same = workspace / path.relative_to(laid)
    return same.is_file() and same.read_bytes() == path.read_bytes()


def _files(top: Path) -> Iterator[Path]:
    if top.is_dir():
        yield from (path for path in sorted(top.rglob("*")) if path.is_file() and not path.is_symlink())


def _objects(workspace: Path) -> Iterator[str]:
    """Contents of a repository's loose objects; one that is handed over has no others."""
    for path in _files(workspace / ".git/objects"):
        try:
            body = zlib.decompress(path.read_bytes())
        except (OSError, zlib.error):
            continue
        yield _digest(body.partition(b"\0")[2])


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
