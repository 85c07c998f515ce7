"""A process whose event loop stands still ends, and says where it stood: whoever keeps it up starts another.

Docker starts again what has ended, not what is unhealthy, and the log already tells others that this one is silent. The
alarm is the interpreter's own, in a thread that needs no lock of Python's: it also goes off where compiled code holds
that. A process that was stopped from outside is not noticed.
"""

import asyncio
import contextlib
import faulthandler
import sys
from collections.abc import AsyncIterator

HANG_SECONDS = 120.0
"""Longer than anything that a loop may do in one go."""
_TICKS = 12


@contextlib.asynccontextmanager
async def watched(hang_seconds: float = HANG_SECONDS) -> AsyncIterator[None]:
    """While this lasts, the process exits with 1 once its loop has not turned for so long."""
    ticking = asyncio.create_task(_tick(hang_seconds))
    try:
        yield
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        faulthandler.cancel_dump_traceback_later()


async def _tick(hang_seconds: float) -> None:
    while True:
        faulthandler.dump_traceback_later(hang_seconds, exit=True, file=sys.__stderr__ or sys.stderr)
        await asyncio.sleep(hang_seconds / _TICKS)
