"""A supervised process ends with its supervisor, however that one ended (design §10).

The supervisor holds the writing end of a pipe that is the process's standard input, and never writes: its end is the
pipe's end, also after SIGKILL. So two generations of services never meet.
"""

import contextlib
import os
import signal
import threading
import time

LAST_SECONDS = 8.0


def hold_leash(descriptor: int) -> None:
    """End this process once the pipe ends: by SIGTERM, and by SIGKILL if it has not ended by then."""
    threading.Thread(target=_watch, args=(descriptor,), name="leash", daemon=True).start()


def _watch(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
