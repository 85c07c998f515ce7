"""Looks at what a running command uses, and says what it took too much of."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path

from gyre.sandboxes.family import family, members
from gyre.sandboxes.folders import measure, too_deep
from gyre.sandboxes.groups import Group
from gyre.sandboxes.nameless import nameless
from gyre.sandboxes.orphans import Orphanage
from gyre.sandboxes.output import Tail
from gyre.sandboxes.port import Ending, Limits

_POLL_SECONDS = 0.25
_NEARLY = 0.9  # the kernel may refuse a process before this many are counted
_SUDDEN = 0.125  # of the disk limit: when the file system loses so much at once, the box is looked at out of turn
_MB = 1 << 20


class Watch:
    """One command under watch."""

    def __init__(self, limits: Limits, box: Path, group: Group | None, tail: Tail, orphans: Orphanage) -> None:
        """Nothing happens before `overrun`."""
        self._limits, self._box, self._group, self._tail, self._orphans = limits, box, group, tail, orphans
        self.reason = ""
        """What was too much, in one line."""

    async def overrun(self, leader: int) -> Ending:
        """Returns when a limit is exceeded: which."""
        looked, free = time.monotonic(), _free(self._box)
        while True:
            await asyncio.sleep(min(_POLL_SECONDS, self._limits.look_seconds))
            self._orphans.bury()
            if ending := self._counted(leader):
                return ending
            now, left = time.monotonic(), _free(self._box)
            if now - looked < self._limits.look_seconds and free - left < _SUDDEN * self._limits.disk_bytes:
                continue
            if ending := await asyncio.to_thread(self._overfull, leader):
                return ending
            # A large box takes long to look at: at most a tenth of the time goes into it.
            looked, free = time.monotonic() + 9 * (time.monotonic() - now), left

    def after(self, exit_code: int | None) -> Ending:
        """How a command ended that nobody asked to: by itself, or because memory ran out."""
        killed = self._group.killed if self._group else 0
        if killed:
            self.reason = f"{killed} of its processes were killed at {self._limits.memory_bytes // _MB} MB of memory"
        elif self._group and self._group.refused:
            self._too_many()
        return "memory" if killed and exit_code else "exited"

    def _counted(self, leader: int) -> Ending | None:
        if self._tail.total > self._limits.output_bytes:
            self.reason = f"ended because it wrote more than {self._limits.output_bytes // _MB} MB of output"
            return "output"
        if self._group is not None:
            return self._too_many() if self._group.refused else None
        found = family(self._leaders(leader), self._limits.processes)
        if found.processes > _NEARLY * self._limits.processes:
            return self._too_many()
        if found.memory_bytes > self._limits.memory_bytes:
            return self._too_large()
        return None

    def _too_many(self) -> Ending:
        self.reason = f"ended because it started more than {self._limits.processes} processes"
        return "processes"

    def _overfull(self, leader: int) -> Ending | None:
        size = measure(self._box, self._limits.files)
        held = nameless(self._processes(leader), self._box, self._limits.files)
        if self._group is None and held.memory_bytes > self._limits.memory_bytes:
            return self._too_large()
        if size.size_bytes + held.disk_bytes > self._limits.disk_bytes:
            what = "its files" if held.disk_bytes <= size.size_bytes else "files that it deleted and keeps open"
            return self._too_full(f"{what} hold more than {self._limits.disk_bytes // _MB} MB")
        if size.entries + held.files > self._limits.files:
            return self._too_full(f"it holds more than {self._limits.files} files")
        return self._too_full("its folders are nested too deeply") if too_deep(size) else None

    def _processes(self, leader: int) -> Iterable[int]:
        if self._group:
            return self._group.members
        return itertools.islice(members(self._leaders(leader)), self._limits.processes)

    def _leaders(self, leader: int) -> tuple[int, ...]:
        """The first process, and those that have lost their parents since."""
        return (leader, *self._orphans.living(leader, self._box))

    def _too_large(self) -> Ending:
        self.reason = f"ended because it used more than {self._limits.memory_bytes // _MB} MB of memory"
        return "memory"

    def _too_full(self, what: str) -> Ending:
        self.reason = f"ended because it filled its disk: {what}"
        return "disk"


def _free(box: Path) -> int:
    """Bytes free where the box lies."""
    with contextlib.suppress(OSError):
        found = os.statvfs(box)
        return found.f_bavail * found.f_frsize
    return 0
