"""Work that goes on side by side in one process, and ends together."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def until_one_ends(*works: Awaitable[Any]) -> None:
    """Do all of it until the first is done; the others are cancelled. Raises what that one raised."""
    await _until(asyncio.FIRST_COMPLETED, works)


async def until_one_fails(*works: Awaitable[Any]) -> None:
    """Do all of it until all is done, or one raises: then the others are cancelled and that is raised."""
    await _until(asyncio.FIRST_EXCEPTION, works)


async def _until(when: str, works: tuple[Awaitable[Any], ...]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=when)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
