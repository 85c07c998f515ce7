"""Who made a container, and whether that process is still there: it holds a lock that the kernel lets go of at its end.

A lock lies beside each box, so whoever sees that can tell, and it is there for as long as any container whose box lies
there: boxes of one owner lie in folders that come and go. Where it cannot be seen (another run's folder, another
machine), a container counts as left once its time is up.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from gyre.sandboxes.port import SandboxError

OWNER, LOCK, BOX, UNTIL = "gyre.owner", "gyre.lock", "gyre.box", "gyre.until"
"""Labels of a container: its owner, the owner's lock, the command's box, and when its time is surely up (UTC, s)."""
DOOR = "gyre.door"
"""Label of a door: its folder, which is its owner's."""
_SPARE_SECONDS = 600.0
_REAP_SECONDS = 30.0
LOG = logging.getLogger(__name__)


class Reaper:
    """Removes what owners that are gone have left: before the first command, and regularly from then on."""

    def __init__(self, reap: Callable[[], Awaitable[None]]) -> None:
        """`reap` looks once, and may raise SandboxError."""
        self._reap = reap
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether anything may have been started."""
        return self._task is not None

    async def begin(self) -> None:
        """Look once, if nobody has; where that fails, the next command tries again. Raises SandboxError."""
        if self._task is None:
            self._task = asyncio.create_task(self._regularly())
            try:
                await self._reap()
            except BaseException:
                self._task.cancel()
                self._task = None
                raise

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _regularly(self) -> None:
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            try:
                await self._reap()
            except SandboxError as error:
                LOG.warning("%s", error)


class Owner:
    """This process, as containers name it."""

    def __init__(self) -> None:
        """Nothing is held before the first label is asked for."""
        self.name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._locks: dict[Path, int] = {}
        """Each that is held -> its descriptor."""

    def labels(self, box: Path, seconds: float) -> dict[str, str]:
        """For a container that works in this box for so long at most."""
        until = int(time.time() + seconds + _SPARE_SECONDS)
        return {OWNER: self.name, LOCK: str(self._held(box.parent)), BOX: str(box), UNTIL: str(until)}

    def left(self, labels: Mapping[str, str], live: bool) -> bool:
        """Whether nobody waits for a container: its owner is gone, or is this one and it is not `live`."""
        if labels.get(OWNER) == self.name:
            return not live
        return gone(Path(labels.get(LOCK, "/"))) or float(labels.get(UNTIL, "inf")) < time.time()

    def close(self) -> None:
        """Be gone."""
        for path, descriptor in self._locks.items():
            path.unlink(missing_ok=True)
            os.close(descriptor)
        self._locks.clear()

    def _held(self, folder: Path) -> Path:
        for each in [each for each in self._locks if not each.exists()]:  # its folder was cleared
            os.close(self._locks.pop(each))
        path = folder / f".owner-{self.name}"
        if path not in self._locks:
            descriptor = self._locks[path] = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            with contextlib.suppress(OSError):  # a file system without locks: time has to tell
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        return path


def gone(lock: Path) -> bool:
    """Whether the owner of this lock is surely not there any more."""
    if not lock.parent.is_dir() or lock.parent == lock:
        return False
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
