"""Workspaces: made from a task's environment, preserved as an archive, restored from one into a fresh folder.

An archive is deterministic: the same files give the same bytes, whoever owned them and whenever they were written. It
holds folders, files and links that stay inside; devices, sockets, pipes, links that lead out and what lies deeper than
paths go are left behind. A link in the place of the workspace itself leads nowhere: it may lead to the host's files.
"""

import contextlib
import io
import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from gyre.errors import GyreError
from gyre.sandboxes.folders import remove
from gyre.sandboxes.orphans import kill_leftovers
from gyre.sandboxes.port import Command, Sandbox
from gyre.tasks.folder import Task
from gyre.tasks.places import working_places
from gyre.tasks.unpack import stays

MOST_BYTES = 64 << 20
MOST_ENTRIES = 20_000
_NAME = 256  # bytes that one name and its slash may take
_LONGEST = 3000  # bytes of a name in an archive: below any folder of ours it is still a path that the kernel takes
_LOOK = 0o500  # to list a folder, and to look at what is in it
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN


class WorkspaceError(GyreError):
    """A workspace cannot be made, preserved or restored."""


def make(task: Task, box: Path) -> Path:
    """A fresh workspace in `box` (vacated first) with the task's environment, modes kept, beside the instruction.

    Raises WorkspaceError.
    """
    vacate(box)
    workspace = box / "ws"
    try:
        box.mkdir(parents=True, mode=0o700)
        if task.environment.is_dir():
            shutil.copytree(task.environment, workspace, symlinks=True)
        else:
            workspace.mkdir()
        for _, folder in working_places(task, workspace, box):
            folder.mkdir(exist_ok=True)
        # A copy: the original lies beside the tests and the solution.
        shutil.copyfile(task.instruction_file, box / "instruction.md")
    except (OSError, shutil.Error) as error:
        raise WorkspaceError(f"task {task.name}: its workspace cannot be made: {error}") from error
    return workspace


async def fill(task: Task, workspace: Path, box: Path, sandbox: Sandbox) -> None:
    """Copy into a workspace what the task's image holds in its workdir, if it begins with that.

    Raises WorkspaceError, SandboxError.
    """
    if not task.from_image:
        return
    words = ("/bin/sh", "-c", 'cp -R -p "$1"/. "$2"/', "sh", task.workdir, str(workspace))
    ended = await sandbox.run(Command(words, workspace, box, {}, task.setup_timeout, image=task.image))
    if ended.exit_code != 0:
        said = ended.reason or ended.last_line
        raise WorkspaceError(f"task {task.name}: {task.workdir} of image {task.image} cannot be copied: {said}")


def vacate(box: Path) -> None:
    """Empty a box that somebody who is gone may have left, processes first."""
    if box.exists():
        kill_leftovers(box)
        clear(box)


def clear(box: Path) -> None:
    """Remove a box with all that is in it, whatever modes, names and depth its folders were given."""
    remove(box)


def preserve(workspace: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The archive of a workspace in which nothing runs any more.

    Raises WorkspaceError for one that is too large, or is no folder (any more).
    """
    if not stat.S_ISDIR(os.lstat(workspace).st_mode):
        raise WorkspaceError("workspace: something else lies in its place; it is not kept")
    body = io.BytesIO()
    left = most_bytes
    with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for count, (path, name) in enumerate(_entries(workspace)):
            if count >= MOST_ENTRIES:
                raise WorkspaceError(f"workspace: more than {MOST_ENTRIES} files; it is not kept")
            left -= _add(archive, path, name, left)
            if left < 0:
                raise WorkspaceError(f"workspace: more than {most_bytes} bytes; it is not kept")
    return body.getvalue()


def restore(archive: bytes, workspace: Path) -> None:
    """Unpack into a folder that is made for it. Raises WorkspaceError for what `preserve` could not have written."""
    modes: list[tuple[Path, int]] = []
    links: list[tuple[Path, str]] = []
    try:
        workspace.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                _unpack(tar, member, workspace, modes, links)
        # Links last: nothing may be written through one. Modes of folders after what is in them, innermost first.
        for path, target in links:
            path.symlink_to(target)
        for path, mode in reversed(modes):
            path.chmod(mode)
    except (OSError, ValueError, tarfile.TarError) as error:
        raise WorkspaceError(f"preserved workspace: cannot be restored: {error}") from error


def _entries(root: Path) -> Iterator[tuple[str, str]]:
    """(path, name in the archive), folders before what is in them, by name: independent of the file system's order."""
    pending = [("", str(root))]
    while pending:
        prefix, folder = pending.pop()
        found = sorted(_listed(folder))
        for name in found:
            yield f"{folder}/{name}", prefix + name
        near = [name for name in found if len(os.fsencode(prefix + name)) + _NAME <= _LONGEST]
        inner = [name for name in near if stat.S_ISDIR(os.lstat(f"{folder}/{name}").st_mode)]
        pending += [(f"{prefix}{name}/", f"{folder}/{name}") for name in reversed(inner)]


def _listed(folder: str) -> list[str]:
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    if mode & _LOOK != _LOOK:
        os.chmod(folder, mode | _LOOK)  # noqa: PTH101 (its own mode is in the archive already)
    return os.listdir(folder)  # noqa: PTH208 (names, not paths)


def _add(archive: tarfile.TarFile, path: str, name: str, left: int) -> int:
    """Add one entry and return its size; what is no file, folder or inner link is left out."""
    found = os.lstat(path)
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(found.st_mode) & 0o777
    if stat.S_ISDIR(found.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(found.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)  # noqa: PTH115
        if not stays(name, member.linkname):
            return 0
    elif stat.S_ISREG(found.st_mode):
        return _add_file(archive, path, member, left)
    else:
        return 0
    archive.addfile(member)
    return tarfile.BLOCKSIZE


def _add_file(archive: tarfile.TarFile, path: str, member: tarfile.TarInfo, left: int) -> int:
    if not member.mode & 0o400:
        os.chmod(path, member.mode | 0o400)  # noqa: PTH101
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | _OPEN), "rb") as file:  # noqa: PTH123 (never through a link)
        body = file.read(left + 1)  # by what is there, not by what its size says
    if len(body) <= left:
        member.size = len(body)
        archive.addfile(member, io.BytesIO(body))
    return len(body) + tarfile.BLOCKSIZE


def _unpack(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    workspace: Path,
    modes: list[tuple[Path, int]],
    links: list[tuple[Path, str]],
) -> None:
    parts = member.name.split("/")
    if posixpath.isabs(member.name) or not all(parts) or {".", ".."} & set(parts):
        raise WorkspaceError(f"preserved workspace: entry {member.name!r} leads out of it")
    path = workspace / member.name
    if member.isdir():
        path.mkdir(mode=0o700)
        modes.append((path, member.mode & 0o777))
    elif member.issym() and stays(member.name, member.linkname):
        links.append((path, member.linkname))
    elif member.isreg():
        content = tar.extractfile(member)
        with contextlib.closing(content) if content else contextlib.nullcontext() as source:
            descriptor = os.open(path, _CREATE, 0o600)
            with open(descriptor, "wb") as file:  # noqa: PTH123 (made here, never through a link)
                file.write(source.read() if source else b"")
                os.fchmod(descriptor, member.mode & 0o777)
    else:
        raise WorkspaceError(f"preserved workspace: entry {member.name!r} is neither file, folder nor inner link")
