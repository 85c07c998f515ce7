"""A command that runs somewhere else: its box, its output, and what ends it: itself, its deadline, a stop, a limit."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gyre.sandboxes.folders import measure, too_deep
from gyre.sandboxes.nameless import nameless
from gyre.sandboxes.port import OUTPUT_BYTES, Command, Ending, Limits

_BREATH_SECONDS = 0.02  # after 64 KiB: a flood leaves the processor to others


async def first_ending(
    exited: "asyncio.Future[Any]",
    command: Command,
    stop: asyncio.Event | None,
    limits: Mapping[Ending, Awaitable[None]],
) -> Ending:
    """Wait for whatever ends a command first.

    `exited` is done once it has ended. `limits` holds, for each ending, what returns when that limit is reached, and
    is cancelled in the end; what fails in it is raised.
    """
    watches: dict[asyncio.Future[None], Ending] = {
        asyncio.ensure_future(each): ending for ending, each in limits.items()
    }
    if stop is not None:
        watches[asyncio.ensure_future(_set(stop))] = "stopped"
    try:
        first = asyncio.FIRST_COMPLETED
        everything: list[asyncio.Future[Any]] = [exited, *watches]
        await asyncio.wait(everything, timeout=command.deadline_seconds, return_when=first)
        if exited.done():
            return "exited"
        done = [watch for watch in watches if watch.done()]
        for watch in done:
            watch.result()
        return watches[done[0]] if done else "timeout"
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


def said_of(ending: Ending, deadline_seconds: float, limits: Limits) -> str:
    """What contained a command, in one line; empty when it simply exited."""
    return {
        "exited": "",
        "timeout": f"ended at its deadline of {deadline_seconds:g} s",
        "stopped": "ended because its cancellation was asked for",
        "disk": f"ended because of its files: more than {limits.disk_bytes >> 20} MB or {limits.files}, or too deep",
        "memory": f"ended because it used more than {limits.memory_bytes >> 20} MB of memory",
        "processes": f"ended because it started more than {limits.processes} processes",
        "output": f"ended because it wrote more than {limits.output_bytes >> 20} MB of output",
    }[ending]


def furnish(box: Path, user: int, group: int) -> None:
    """Make a box's private folders, and where this process is root, give all of it to who works in it."""
    for name in ("home", "tmp"):
        (box / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.getuid() == 0:
        for parent, folders, files in os.walk(box):
            for path in (parent, *(f"{parent}/{name}" for name in (*folders, *files))):
                os.lchown(path, user, group)


class Output:
    """The last 64 KiB of what a command writes, read no faster than a flood of it may come."""

    def __init__(self, limits: Limits) -> None:
        """Nothing was read yet."""
        self._most, self._too_much = limits.output_bytes, asyncio.Event()
        self.kept = bytearray()

    async def take(self, pieces: AsyncIterator[bytes]) -> None:
        """Read to the end."""
        total = since = 0
        async for piece in pieces:
            self.kept += piece
            del self.kept[:-OUTPUT_BYTES]
            total, since = total + len(piece), since + len(piece)
            if total > self._most:
                self._too_much.set()
            if since >= OUTPUT_BYTES:
                since = 0
                await asyncio.sleep(_BREATH_SECONDS)

    async def too_much(self) -> None:
        """Returns when it was more than it may be."""
        await self._too_much.wait()


async def overfull(box: Path, limits: Limits, processes: Callable[[], Iterable[int]] = tuple) -> None:
    """Returns when a box holds more than it may, in bytes or in files, or nests them too deeply to be counted.

    Files that `processes` deleted and still hold count, of those that can be seen here.
    """

    def full() -> bool:
        size, held = measure(box, limits.files), nameless(processes(), box, limits.files)
        too_large = size.size_bytes + held.disk_bytes > limits.disk_bytes
        return too_large or size.entries + held.files > limits.files or too_deep(size)

    while True:
        await asyncio.sleep(limits.look_seconds)
        if await asyncio.to_thread(full):
            return


async def _set(event: asyncio.Event) -> None:
    await event.wait()
