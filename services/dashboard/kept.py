"""A large archive's rows, kept beside its columns: what is opened again is neither asked nor folded again.

The file holds the dashboard's tables and one line about the run. It is tied to the archive by its digest and to this
program by the shape of what it holds; one that is of anything else is made anew.
"""

import asyncio
import contextlib
import hashlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from bus.archive_file import summary
from gyre.config import Config
from gyre.core.timeline import Lane
from gyre.core.timeline_fold import TimelineFold
from schemas.runs import RunStarted
from services.analytics.archive_columns import beside
from services.dashboard import filling
from services.dashboard.rows import TABLES, Change, changes
from services.dashboard.store import Store

FILE = "dashboard.db"
_SHAPE = hashlib.sha256((TABLES + filling.QUESTIONS).encode()).hexdigest()


class Kept(BaseModel):
    """What a page shows of a run besides the rows."""

    model_config = ConfigDict(frozen=True)

    archive: str
    """Digest of the archive."""
    shape: str = _SHAPE
    zero: int
    """UTC nanoseconds of the first event, and of the latest."""
    latest: int
    head: int
    """Last sequence of EV."""
    begin: dict[str, Any]
    lanes: tuple[Lane, ...]


async def rows_of(archive: Path) -> tuple[Store, Kept]:
    """A large archive's rows, opened where they are kept, else made of its columns and kept if that can be written.

    Raises:
        ArchiveError, WarehouseError: it is not what it should be, or cannot be asked.
    """
    found = await asyncio.to_thread(summary, archive)
    file = beside(archive) / FILE
    if (kept := await asyncio.to_thread(_read, file, found.digest)) is not None:
        return Store(file), kept
    store, kept = _made(await filling.filled(archive), found.digest)
    with contextlib.suppress(OSError, sqlite3.Error):  # a folder that cannot be written, a disk that is full
        await asyncio.to_thread(_keep, store, kept, file)
    return store, kept


async def keep_rows(archive: Path) -> None:
    """Have a large archive's rows lie beside its columns. Raises as `rows_of`."""
    store, _ = await rows_of(archive)
    store.close()


def begun(event: RunStarted) -> dict[str, Any]:
    """Of the configuration only what a page shows: commands and folders are nobody's business."""
    config = Config.recorded(event.config)
    schedule = config.schedule
    return {
        "config": {
            "steps": config.run.steps,
            "kind": schedule.kind,
            "groups": schedule.groups,
            "executions": schedule.executions,
            "phi": schedule.phi,
            "mu": schedule.mu,
            "cells": config.cells.count,
            "standalone": config.cells.standalone,
            "code": event.code_version,
            "seed": event.seed,
        }
    }


def _made(found: filling.Filled, digest: str) -> tuple[Store, Kept]:
    store, fold, begin = Store(), TimelineFold(), dict[str, Any]()
    more: list[Change] = []
    for sequence, when, event in found.told:
        at = (when - found.zero) / 1e9
        fold.add(at, event)
        more += changes(sequence, at, event)
        if isinstance(event, RunStarted) and not begin:
            begin = begun(event)
    store.fill(found.rows)
    store.apply(more)
    store.keep()
    lanes = fold.timeline().lanes
    return store, Kept(archive=digest, zero=found.zero, latest=found.latest, head=found.head, begin=begin, lanes=lanes)


def _keep(store: Store, kept: Kept, file: Path) -> None:
    aside = file.with_suffix(".part")
    aside.unlink(missing_ok=True)
    store.copy(aside, kept.model_dump_json())
    os.replace(aside, file)


def _read(file: Path, digest: str) -> Kept | None:
    try:
        kept = Kept.model_validate_json(Store.note_of(file))
    except (OSError, sqlite3.Error, ValidationError):
        return None
    return kept if (kept.archive, kept.shape) == (digest, _SHAPE) else None
