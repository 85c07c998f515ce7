"""Workspaces: made from a task's environment, preserved as an archive, restored from one into a fresh folder.

An archive is deterministic: the same files give the same bytes, whoever owned them and whenever they were written. It
holds folders, files and links that stay inside (absolute ones as relative ones: the workspace has another path when it
is restored); devices, sockets, pipes, links that lead out and what lies deeper than paths go are left behind. A link in
the place of the workspace itself leads nowhere: it may lead to the host's files.
"""

import contextlib
import io
import os
import posixpath
import shutil
import stat
import tarfile
from pathlib import Path

from gyre.errors import GyreError
from gyre.sandboxes.descent import Held, descend
from gyre.sandboxes.folders import remove
from gyre.sandboxes.orphans import kill_leftovers
from gyre.sandboxes.port import Command, Sandbox
from gyre.tasks.folder import Task
from gyre.tasks.places import names_of, working_places
from gyre.tasks.unpack import stays

MOST_BYTES = 64 << 20
MOST_ENTRIES = 20_000
_LONGEST = 3000  # bytes of a name in an archive: below any folder of ours it is still a path that the kernel takes
_LONGEST_TARGET = 4095  # bytes that a link can hold
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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


def preserve(
    workspace: Path, most_bytes: int = MOST_BYTES, *, task: Task | None = None, worked_in: bool = False
) -> bytes:
    """The archive of a workspace.

    Args:
        workspace: nothing in it, nor the folder itself, is reached through a link.
        most_bytes: that it may hold.
        task: whose workspace it is, where that is known: links that lead into it by the task's name for it are kept.
        worked_in: somebody still works in it, so nothing of it is touched and each file is as it was when it was read;
            else modes that keep its owner out are widened.

    Raises:
        WorkspaceError: it is too large, or is no folder (any more).
        OSError: it is not there, or what is in it may not be read.
    """
    names = (os.path.abspath(workspace), *(names_of(task, workspace) if task else ()))  # noqa: PTH100 (through no link)
    body = io.BytesIO()
    left = most_bytes
    found = descend(workspace, _LONGEST, MOST_ENTRIES, ours=not worked_in)
    try:
        with contextlib.closing(found), tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for count, held in enumerate(found):
                if count >= MOST_ENTRIES:
                    raise WorkspaceError(f"workspace: more than {MOST_ENTRIES} files; it is not kept")
                left -= _add(archive, held, names, left)
                if left < 0:
                    raise WorkspaceError(f"workspace: more than {most_bytes} bytes; it is not kept")
    except NotADirectoryError as error:
        raise WorkspaceError("workspace: something else lies in its place; it is not kept") from error
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


def _add(archive: tarfile.TarFile, held: Held, names: tuple[str, ...], left: int) -> int:
    """Add one entry and return its size; what is no file, folder or inner link is left out."""
    member = tarfile.TarInfo(held.name)
    member.mode = stat.S_IMODE(held.found.st_mode) & 0o777
    if stat.S_ISDIR(held.found.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(held.found.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, _from_here(held.name, held.target(), names)
        if not stays(held.name, member.linkname) or len(os.fsencode(member.linkname)) > _LONGEST_TARGET:
            return 0
    elif stat.S_ISREG(held.found.st_mode):
        body = held.read(left + 1)  # by what is there, not by what its size says
        if len(body) <= left:
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
        return len(body) + tarfile.BLOCKSIZE
    else:
        return 0
    archive.addfile(member)
    return tarfile.BLOCKSIZE


def _from_here(name: str, target: str, names: tuple[str, ...]) -> str:
    """A link's target as it leads to the same place from where the link lies, if it names the workspace itself.

    The workspace has another path when it is restored, and where nothing is bound the task's name for it is none.
    """
    for known in names:
        inside = f"{target}/".removeprefix(f"{known.rstrip('/')}/")
        if inside != f"{target}/":
            return "../" * name.count("/") + inside.strip("/") or "."
    return target


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
