"""Runs one shell command: bounded in time and in output, with nothing of it left behind."""

import contextlib
import os
import select
import signal
import subprocess
import time

SECRETS = ("OPENAI_", "GYRE_")


def run(command: str, folder: str, timeout: float, limit: int) -> tuple[str, int | None]:
    """What a command says (stdout and stderr together, at most `limit` bytes) and its exit code, None if stopped.

    It is stopped after `timeout` seconds. Whatever is left of its process group is killed when it ends.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(SECRETS)}
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            output, ended = _collect(process, process.stdout.fileno(), time.monotonic() + timeout, limit)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    return output.decode(errors="replace"), code if ended else None


def _collect(process: subprocess.Popen[bytes], pipe: int, deadline: float, limit: int) -> tuple[bytes, bool]:
    """Read until the command is over or the deadline passes; a flood is read but not kept."""
    kept = b""
    while True:
        over = process.poll() is not None
        left = deadline - time.monotonic()
        ready = select.select([pipe], [], [], 0.0 if over else min(max(left, 0.0), 0.05))[0]
        piece = os.read(pipe, 65536) if ready else b""
        kept += piece[: limit - len(kept)]
        if over and (not piece or len(kept) >= limit):
            return kept, True
        if not over and left <= 0:
            return kept, False
        if ready and not piece:  # it closed its output and goes on
            return kept, _ends(process, deadline)


def _ends(process: subprocess.Popen[bytes], deadline: float) -> bool:
    try:
        process.wait(max(deadline - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True
