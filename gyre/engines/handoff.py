"""What engines share in handing keys and values over: the fetching side, pins, and an engine that has none."""

import asyncio
from collections.abc import Collection

from gyre.engines.blocks import KvBlocks, KvSequence
from gyre.engines.port import Engine, EngineUnavailable, KvRefused
from gyre.engines.remote import RemoteEngine


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
    """The `Engine`'s side of a handoff for one that computes nothing: the last history of each key stands for a cache.

    Who inherits keeps `_seen`, `_version` and `_down` up to date, and clears with `_forget`.
    """

    def __init__(self, version: int) -> None:
        """Nothing is remembered yet."""
        self._version = version
        self._down = ""
        self._seen: dict[str, bytes] = {}
        """Cache key -> the packed token ids of its last history."""
        self._pins = Pins()

    @property
    def version(self) -> int:
        """See `Engine`."""
        return self._version

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

    def _forget(self) -> None:
        self._seen.clear()
        self._pins.clear()

    def _refuse_kv(self, version: int) -> None:
        if self._down:
            raise EngineUnavailable(f"engine is {self._down}: it has no cache")
        if version != self._version:
            raise KvRefused(f"version {version}: this engine has version {self._version}; compute it anew")
