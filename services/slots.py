"""Which cell a process is, where nobody says: the lowest index that no other process of the run holds.

A slot is a locked file in the run folder, which the kernel lets go of when its process ends, however it ends. Slots
only spread indices over processes on one file system; which of two processes is a cell, the log decides
(`CellReplaced`). Processes beyond the run's cells stand by, and take the place of the next one that ends. A run without
cell 0 cannot train, so an index that nobody comes back for is filled from above: the process of the highest one ends,
and returns.
"""

import asyncio
import fcntl
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

from gyre.errors import GyreError
from services.alongside import until_one_ends

log = logging.getLogger("gyre")
LOOK_SECONDS = 1.0
PATIENCE_LOOKS = 20
"""Looks at which a lower slot was free before somebody moves there: longer than a process takes to be started again."""


class LowerSlot(GyreError):
    """A lower index is free for good: this process ends, to take it when it is started again."""


async def in_slot(folder: Path, count: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Take a slot, once there is one, and do the work of its cell until cancelled. Raises `LowerSlot`."""
    async with held(folder, count) as index:
        await until_one_ends(work(index), until_lower(folder, index))


@asynccontextmanager
async def held(folder: Path, count: int) -> AsyncIterator[int]:
    """The lowest free index below `count`; waits while there is none."""
    taken = take(folder, count)
    if taken is None:
        log.info("all %d cells of the run are there; standing by", count)
    while taken is None:
        await asyncio.sleep(LOOK_SECONDS)  # no one call waits for whichever of several files is free first
        taken = take(folder, count)
    index, file = taken
    log.info("cell %d", index)
    with file:
        yield index


async def until_lower(folder: Path, index: int) -> NoReturn:
    """Wait until a lower slot was free for long and no higher one is held. Raises `LowerSlot`."""
    looks = 0
    while looks < PATIENCE_LOOKS:
        await asyncio.sleep(LOOK_SECONDS)
        looks = looks + 1 if _should_move(folder, index) else 0
    raise LowerSlot(f"cell {index}: a lower one is missing; it comes again in that place")


def take(folder: Path, count: int) -> tuple[int, BinaryIO] | None:
    """The lowest free slot and its lock, held until that file is closed."""
    for index in range(count):
        if (file := _locked(_path(folder, index))) is not None:
            return index, file
    return None


def _should_move(folder: Path, index: int) -> bool:
    higher = (int(path.name) for path in _path(folder, 0).parent.iterdir() if int(path.name) > index)
    return any(_free(folder, each) for each in range(index)) and all(_free(folder, each) for each in higher)


def _free(folder: Path, index: int) -> bool:
    file = _locked(_path(folder, index))
    if file is not None:
        file.close()
    return file is not None


def _locked(path: Path) -> BinaryIO | None:
    path.parent.mkdir(exist_ok=True)
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _path(folder: Path, index: int) -> Path:
    return folder / "slots" / str(index)
