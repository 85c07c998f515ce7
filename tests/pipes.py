"""Named pipes, by which a test and a process that it started wait for each other without a clock."""

import asyncio
import os
from pathlib import Path

PATIENCE_SECONDS = 30


async def told(pipe: Path) -> str:
    """What a process says through a pipe, waited for."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ready.wait()
        return os.read(descriptor, 4096).decode()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
