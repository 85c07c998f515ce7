"""The children of a grader: what they say on a pipe, and that nothing of them lives on."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 16 << 20  # of results
DUMPABLE, SUBREAPER = 4, 36  # prctl: who may read our memory; orphans of our children become ours


def listen(command: list[str], work: Path, mark: str, seconds: float) -> tuple[list[str], bool]:
    """(what the tests said on their pipe, whether they were ended for being late)."""
    ear, mouth = os.pipe()
    environment = {
        "PATH": os.environ.get("PATH", os.defpath), "HOME": str(work.parent), "TMPDIR": str(work.parent),
        "LANG": "C.UTF-8", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "RESULTS": str(mouth),
    }  # fmt: skip
    for name in ("PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH", "CONDA_PREFIX", "VIRTUAL_ENV"):
        if name in os.environ:
            environment[name] = os.environ[name]
    process = subprocess.Popen(
        command, cwd=work, env=environment, stdin=subprocess.PIPE, stdout=sys.stderr, pass_fds=(mouth,),
        start_new_session=True,
    )  # fmt: skip
    os.close(mouth)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(mark.encode())
        process.stdin.close()
    body, late = drained(ear, process, time.monotonic() + seconds)
    os.close(ear)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return body.decode(errors="replace").split("\n"), late


def drained(ear: int, process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bool]:
    """All that comes until the process has ended, whoever else holds the other end of the pipe.

    Of a flood its first line, which says that it began.
    """
    body = b""
    with selectors.DefaultSelector() as selector:
        selector.register(ear, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            if selector.select(0 if ended else min(0.05, max(0.0, deadline - time.monotonic()))):
                chunk = os.read(ear, 1 << 16)
                body += chunk
                if len(body) > MOST_BYTES:
                    return body.partition(b"\n")[0], False
                if not chunk:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, deadline - time.monotonic()))
                    return body, process.poll() is None
            elif ended:
                return body, False
            if not ended and time.monotonic() > deadline:
                return body, True


def prepare() -> None:
    """Whatever the tests start stays a descendant of ours, however it detaches itself, and cannot read what we know."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        ctypes.CDLL(None).prctl(DUMPABLE, 0, 0, 0, 0)


def kill_descendants() -> None:
    """Kill children until there are none: what they leave becomes ours and is next."""
    for _ in range(1000):
        children = own_children()
        if not children:
            return
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def own_children() -> list[int]:
    """Process ids of our children."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry.name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                if parent == os.getpid():
                    found.append(int(entry.name))
    return found
