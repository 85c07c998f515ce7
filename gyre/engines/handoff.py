"""What engines share in handing keys and values over: the fetching side, pins, and an engine that has none."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from gyre.engines.blocks import KvBlocks, KvSequence
from gyre.engines.port import (
    Engine,
    EngineError,
    EngineUnavailable,
    GenerateRequest,
    Health,
    KvRefused,
    RequestRefused,
    check_context,
)
from gyre.engines.remote import RemoteEngine

Result = TypeVar("Result")
_MOST_SOURCES = 64
"""Cells come again under other addresses."""
_WORTH_A_THREAD_BYTES = 2**21


async def fetch(engine: Engine, key: str, source: str) -> int:
    """`take_kv` of an engine in this process: fetched from a URL, kept here, acknowledged there."""
    async with RemoteEngine(source) as other:
        try:
            tokens = await engine.import_kv(await other.export_kv(key, engine.version))
        except KvRefused:
            await other.release_kv(key)
            raise
        await other.release_kv(key)
    return tokens


class Sources:
    """Engines that this one fetches from, their connections kept open: `fetch`, but quicker.

    Whoever waits for a cache does not wait for its acknowledgement, which goes out by itself.
    """

    def __init__(self) -> None:
        """None is known."""
        self._clients: dict[str, RemoteEngine] = {}
        self._acknowledging: set[asyncio.Task[None]] = set()

    async def fetch(self, engine: Engine, key: str, source: str) -> int:
        """As the function of that name; the acknowledgement follows."""
        other = await self._client(source)
        try:
            tokens = await engine.import_kv(await other.export_kv(key, engine.version))
        except KvRefused:
            self._acknowledge(other, key)
            raise
        self._acknowledge(other, key)
        return tokens

    async def close(self) -> None:
        """Let the last acknowledgements out, and hang up."""
        await asyncio.gather(*self._acknowledging)
        for client in self._clients.values():
            await client.close()

    async def _client(self, source: str) -> RemoteEngine:
        if source not in self._clients and len(self._clients) == _MOST_SOURCES:
            oldest = next(iter(self._clients))
            await self._clients.pop(oldest).close()
        return self._clients.setdefault(source, RemoteEngine(source))

    def _acknowledge(self, other: RemoteEngine, key: str) -> None:
        task = asyncio.create_task(_released(other, key))
        self._acknowledging.add(task)
        task.add_done_callback(self._acknowledging.discard)


async def _released(other: RemoteEngine, key: str) -> None:
    with contextlib.suppress(EngineError):  # one that is gone holds nothing any more
        await other.release_kv(key)


async def apart(size: int, work: Callable[[], Result]) -> Result:
    """Work on so many bytes: in a thread of its own where that takes longer than coming to one."""
    return await asyncio.to_thread(work) if size > _WORTH_A_THREAD_BYTES else work()


class Pins:
    """Cache keys that are held until somebody took what is kept under them."""

    def __init__(self) -> None:
        """Nothing is held."""
        self._held: set[str] = set()
        self._none = asyncio.Event()
        self._none.set()

    def hold(self, keys: Collection[str]) -> None:
        """Hold these too."""
        self._held |= set(keys)
        self._tell()

    def narrow(self, kept: Collection[str]) -> None:
        """Under the others nothing is kept: nobody has to come for them."""
        self._held &= set(kept)
        self._tell()

    def drop(self, key: str) -> None:
        """Hold this one no more."""
        self._held.discard(key)
        self._tell()

    def clear(self) -> None:
        """Hold nothing."""
        self._held.clear()
        self._tell()

    async def wait(self) -> None:
        """Until nothing is held."""
        await self._none.wait()

    def _tell(self) -> None:
        (self._none.clear if self._held else self._none.set)()


class Remembered:
    """What engines that compute nothing share: their standing, and a handoff for which the last history stands.

    Who inherits keeps `_seen`, `_flights`, `_version` and `_down` up to date, and clears with `_forget`.
    """

    _flights: Mapping[str, object]
    """Request id -> a request in flight."""

    def __init__(self, version: int, context: int) -> None:
        """Nothing is remembered yet; `context` is the longest prompt + output, tokens."""
        self._version, self._context = version, context
        self._down = ""
        self._seen: dict[str, bytes] = {}
        """Cache key -> the packed token ids of its last history."""
        self._pins = Pins()

    @property
    def version(self) -> int:
        """See `Engine`."""
        return self._version

    @property
    def running(self) -> int:
        """See `Engine`."""
        return len(self._flights)

    @property
    def context(self) -> int:
        """See `Engine`."""
        return self._context

    async def health(self) -> Health:
        """See `Generator`."""
        return Health(self._version, self.running, self._context, admitting=not self._down)

    async def export_kv(self, key: str, version: int) -> KvBlocks:
        """See `Generator`."""
        self._refuse_kv(version)
        seen = self._seen.get(key)
        return KvBlocks(key, version, () if seen is None else (KvSequence(seen, (0, 0, 0), b""),))

    async def release_kv(self, key: str) -> None:
        """See `Generator`."""
        self._seen.pop(key, None)
        self._pins.drop(key)

    async def import_kv(self, blocks: KvBlocks) -> int:
        """See `Engine`."""
        self._refuse_kv(blocks.version)
        for sequence in blocks.sequences:
            if sequence.shape != (0, 0, 0):
                raise KvRefused(f"shape {sequence.shape}: this engine computes nothing, and keeps nothing computed")
            self._seen[blocks.key] = sequence.token_ids
        return blocks.tokens

    async def pin_kv(self, keys: Collection[str]) -> None:
        """See `Engine`."""
        self._pins.hold(keys)

    async def unpinned(self) -> None:
        """See `Engine`."""
        self._pins.narrow(self._seen.keys())
        await self._pins.wait()

    def _check(self, request: GenerateRequest) -> None:
        if self._down:
            raise EngineUnavailable(f"engine is {self._down}: send the request to another one")
        if request.request_id in self._flights:
            raise RequestRefused(f"request_id: {request.request_id!r} is in flight already; use a new id")
        check_context(request, self._context)

    def _forget(self) -> None:
        self._seen.clear()
        self._pins.clear()

    def _refuse_kv(self, version: int) -> None:
        if self._down:
            raise EngineUnavailable(f"engine is {self._down}: it has no cache")
        if version != self._version:
            raise KvRefused(f"version {version}: this engine has version {self._version}; compute it anew")
