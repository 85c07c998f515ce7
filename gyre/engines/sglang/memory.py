"""A server's memory: released and taken back, and which of the two also whoever comes next can tell.

SGLang (0.5.23) does not say whether its memory is released, and ends over weights loaded into it then, and over a
resume of what was not released. A cell may end at any moment and leave a server that is not its own; so the state is
noted where it is true, in the server, as the name of its weights' version: one that was started anew has forgotten it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from gyre.engines.port import EngineFailed
from gyre.engines.sglang.client import Client

TAGS = ("kv_cache", "weights")
_CHANGING, _RELEASED, _HELD = "gyre: memory changes", "gyre: memory released", "none"
Change = Callable[[tuple[str, ...]], Awaitable[None]]


class Memory:
    """As one engine uses it."""

    def __init__(self, client: Client) -> None:
        """Nothing is known of it yet."""
        self._client = client
        self.held = False
        """Whether the server may have it by our doing."""
        self.released = False
        """Whether it is released by our doing."""

    async def release(self) -> None:
        """Of an idle server. EngineError: whether it is released is in doubt."""
        await _to_its_end(self._become(_RELEASED, self._client.release))

    async def resume(self) -> None:
        """Whoever released it. EngineError: whether it is taken back is in doubt."""
        self.held = True
        await _to_its_end(self._become(_HELD, self._client.resume))

    async def _become(self, state: str, change: Change) -> None:
        noted = (await self._client.info()).weight_version
        if noted == _CHANGING:
            doubt = "whoever released its memory, or took it back, broke off, and nobody can tell how far that came"
            raise EngineFailed(f"SGLang at {self._client.url}: {doubt}; start it anew")
        if (noted == _RELEASED) != (state == _RELEASED):
            await self._client.rename(_CHANGING)
            await change(TAGS)
            await self._client.rename(state)
        self.released = state == _RELEASED
        self.held = not self.released


async def _to_its_end(change: Awaitable[None]) -> None:
    """Also when whoever asked for it is cancelled: half-way, nobody can go on."""
    changing = asyncio.ensure_future(change)
    try:
        await asyncio.shield(changing)
    except asyncio.CancelledError:
        await asyncio.gather(changing, return_exceptions=True)
        raise
