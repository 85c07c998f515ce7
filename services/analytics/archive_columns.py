"""The columnar part of an archive: taken where it fits the archive, else made of it.

Columns lie beside the archive, in `NAME.jsonl.zst.columns`; where that folder cannot be written, they are made in a
folder that goes afterwards. A run's own warehouse, where it holds exactly what the archive does, saves reading the log
again.
"""

import asyncio
import errno
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bus.archive_file import Summary, summary
from bus.archive_log import open_archive
from gyre.warehouse import columns, engine
from gyre.warehouse.clickhouse import Warehouse
from services.analytics.service import FOLDER, OtherLog, catch_up
from services.source import Source

SUFFIX = ".columns"
OWN_PATIENCE_SECONDS = 2.0
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
"""A folder, or a whole file system, that only can be read."""


def beside(archive: Path) -> Path:
    """Where an archive's columns lie."""
    return archive.with_name(archive.name + SUFFIX)


@asynccontextmanager
async def columns_of(archive: Path) -> AsyncIterator[tuple[Summary, columns.Columns]]:
    """What an archive is, and its columns, made if need be. Raises `ArchiveError`, `WarehouseError`."""
    found = await asyncio.to_thread(summary, archive)
    folder = beside(archive)
    if not await asyncio.to_thread(columns.fits, folder, found.digest):
        try:
            await make_columns(archive)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            with tempfile.TemporaryDirectory(prefix="gyre-columns-") as name:
                async with _opened(await _made(archive, Path(name), found)) as opened:
                    yield found, opened
            return
    async with _opened(folder) as opened:
        yield found, opened


async def make_columns(archive: Path, run_folder: Path | None = None) -> Path:
    """Make an archive's columns beside it, of the run's own warehouse if it has one that fits; returns the folder.

    Raises:
        ArchiveError: the archive is not what it should be.
        WarehouseError: the embedded engine is not installed, or failed.
    """
    found = await asyncio.to_thread(summary, archive)
    work = Path(tempfile.mkdtemp(dir=archive.parent, prefix=f".{archive.name}."))
    try:
        made = await _made(archive, work, found, run_folder)
        await asyncio.to_thread(columns.replace, beside(archive), made)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    await _keep_rows(archive)
    return beside(archive)


async def _keep_rows(archive: Path) -> None:
    """Of a large one the dashboard's rows too, made of the columns once."""
    from services.dashboard.filling import is_large  # which asks columns, and so needs this module
    from services.dashboard.kept import keep_rows

    if await asyncio.to_thread(is_large, str(archive)):
        await keep_rows(archive)


async def _made(archive: Path, work: Path, found: Summary, run_folder: Path | None = None) -> Path:
    made = work / "made"
    made.mkdir()
    own = run_folder / FOLDER if run_folder is not None else None
    if own is None or not own.is_dir() or not await _is_written(archive, own, made):
        await _write(archive, Warehouse(str(work / "warehouse")), made)
    await asyncio.to_thread(columns.seal, made, found.digest, found.run)
    return made


async def _is_written(archive: Path, own: Path, made: Path) -> bool:
    """Whether a run's warehouse could be brought to where the archive ends, and its columns were written."""
    try:
        await _write(archive, Warehouse(str(own), OWN_PATIENCE_SECONDS), made)
    except (engine.WarehouseAway, OtherLog):  # its sink holds it, or it goes on beyond the archive
        return False
    return True


async def _write(archive: Path, warehouse: Warehouse, made: Path) -> None:
    try:
        with open_archive(archive) as log:
            await catch_up(warehouse, Source(log.run, log.ev, log.calls, log.blobs, None))
        await asyncio.to_thread(warehouse.write_columns, log.run, made)
    finally:
        await asyncio.to_thread(warehouse.close)


@asynccontextmanager
async def _opened(folder: Path) -> AsyncIterator[columns.Columns]:
    opened = await asyncio.to_thread(columns.Columns, folder)
    try:
        yield opened
    finally:
        await asyncio.to_thread(opened.close)
