"""Bring an archive back as a run with a server of its own: all of it, or no folder.

One that was cut short by a kill left a folder without a note, which nothing takes for a run: repeating it goes on.
"""

import asyncio
import shutil
from pathlib import Path

from bus.archive import import_run
from bus.archive_log import open_archive
from bus.credentials import server_of
from gyre.errors import GyreError
from services.place import NOTE, Note
from services.setup import opening
from services.starting import start
from services.train import sole

_OURS = {"nats", "users", "blobs", "control.lock", f"{NOTE}.part"}
"""All that an import makes before its note."""


async def bring(path: Path, runs: Path) -> str:
    """Import an archive into its run's folder below `runs`; returns the run's name.

    Raises:
        ArchiveError, BusError: the archive is not what it should be, or the server cannot hold it.
        GyreError: something else lies where the folder would, or somebody else imports into it.
    """
    with open_archive(path) as archive:
        name = archive.run
    folder = (runs / name).absolute()
    with opening(folder):
        await _brought(path, folder, name)
    return name


async def _brought(path: Path, folder: Path, name: str) -> None:
    made = not folder.exists()
    if not made and not _cut_short(folder):
        raise GyreError(f"folder {folder}: exists already; import elsewhere with --runs")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with sole(folder):
            await _fill(path, folder, name)
    except BaseException:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _cut_short(folder: Path) -> bool:
    return folder.is_dir() and {each.name for each in folder.iterdir()} <= _OURS


async def _fill(path: Path, folder: Path, name: str) -> None:
    server = await start(server_of(folder, name, "always"))
    try:
        await import_run(server.url, path, folder)
        Note(name, server.url, "always").write(folder)
    finally:
        await asyncio.to_thread(server.stop)
