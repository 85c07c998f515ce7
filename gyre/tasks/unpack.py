"""Archives of strangers, unpacked into a folder that is made for them: nothing of them lands anywhere else.

Only folders, files and links that stay inside are unpacked. A device, a pipe, a hard link, a name with `..` or a slash
at its beginning, a name twice, more or larger files than the limits allow: any of these refuses the whole archive.
"""

import os
import posixpath
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gyre.tasks.task_file import TaskError

MOST_BYTES = 256 << 20
"""Of all files of an archive together, unpacked."""
MOST_ENTRIES = 50_000
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of an archive; `link` is where a link leads, `body` opens a file."""

    name: str
    kind: str
    executable: bool = False
    link: str = ""
    member: tarfile.TarInfo | zipfile.ZipInfo | None = None


def unpack(archive: Path, target: Path, most_bytes: int = MOST_BYTES, most_entries: int = MOST_ENTRIES) -> None:
    """Unpack `archive` (one of ENDINGS) into the new folder `target`, which is gone again if it is refused.

    Raises TaskError.
    """
    target.mkdir(parents=True)
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as zipped:
                _all(_zip_entries(zipped), zipped.open, target, most_bytes, most_entries)
        else:
            with tarfile.open(archive, "r:*") as tar:
                _all(_tar_entries(tar), tar.extractfile, target, most_bytes, most_entries)
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile, RuntimeError) as error:
        shutil.rmtree(target, ignore_errors=True)
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise TaskError(f"{archive}: cannot be unpacked: {said}") from error
    except TaskError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise TaskError(f"{archive}: {error}; make the archive again without it") from error


def stays(name: str, target: str) -> bool:
    """Whether a link called `name` with this target leads to a place inside, as names go."""
    if posixpath.isabs(target):
        return False
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return reached != ".." and not reached.startswith("../")


def _all(entries: Iterator[_Entry], opened: object, target: Path, left: int, most_entries: int) -> None:
    links: list[_Entry] = []
    for count, entry in enumerate(entries):
        if count >= most_entries:
            raise TaskError(f"holds more than {most_entries} entries")
        path = target / _safe(entry.name)
        if entry.kind == "folder":
            path.mkdir(parents=True, exist_ok=True)
        elif entry.kind == "link":
            links.append(entry)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            left = _file(opened, entry, path, left)  # by what comes out, not by what its header says
    for entry in links:  # last: nothing is written through one
        path = target / _safe(entry.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(entry.link)
    root = Path(os.path.realpath(target))
    for entry in links:  # by where they lead together: each may stay inside by its name alone
        if not Path(os.path.realpath(target / _safe(entry.name))).is_relative_to(root):
            raise TaskError(f"entry {entry.name!r} leads out of it")


def _file(opened: object, entry: _Entry, path: Path, left: int) -> int:
    assert callable(opened)
    source: IO[bytes] | None = opened(entry.member)
    assert source is not None
    with source, path.open("xb") as file:
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                raise TaskError(f"holds more than it may: entry {entry.name!r} is beyond the limit")
            file.write(chunk)
    path.chmod(0o755 if entry.executable else 0o644)
    return left


def _safe(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if posixpath.isabs(name) or ".." in parts or not parts or "\\" in name or "\0" in name:
        raise TaskError(f"entry {name!r} leads out of it")
    return "/".join(parts)


def _tar_entries(tar: tarfile.TarFile) -> Iterator[_Entry]:
    for member in tar:
        if member.isdir():
            if member.name.strip("./"):
                yield _Entry(member.name, "folder")
        elif member.isreg():
            yield _Entry(member.name, "file", bool(member.mode & 0o100), member=member)
        elif member.issym() and stays(_safe(member.name), member.linkname):
            yield _Entry(member.name, "link", link=member.linkname)
        else:
            raise TaskError(f"entry {member.name!r} is neither file, folder nor inner link")


def _zip_entries(zipped: zipfile.ZipFile) -> Iterator[_Entry]:
    for member in zipped.infolist():
        mode = member.external_attr >> 16
        if member.is_dir():
            yield _Entry(member.filename, "folder")
        elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
            yield _Entry(member.filename, "file", bool(mode & 0o100), member=member)
        else:
            raise TaskError(f"entry {member.filename!r} is neither file nor folder")
