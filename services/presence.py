"""Which processes are there: each holds a lock in the run folder, which the kernel lets go of at its end."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def present(folder: Path, instance: str) -> Iterator[None]:
    """Be there, for as long as the process lives or this lasts."""
    path = _lock(folder, instance)
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        with contextlib.suppress(OSError):  # a file system without locks: silence has to tell
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def gone(folder: Path, instance: str) -> bool:
    """Whether this instance is surely not there any more; one that hangs is."""
    try:
        with _lock(folder, instance).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _lock(folder: Path, instance: str) -> Path:
    return folder / "present" / instance
