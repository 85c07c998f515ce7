"""The carrier over an object store: the core puts, the cells fetch, and what nobody needs any more is removed."""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from gyre.weights.port import WeightsUnusable


class ObjectStore(Protocol):
    """Bodies under names; whoever fetches checks what came."""

    async def put(self, name: str, file: Path) -> None:
        """Store a file's content; under a name that is there already it has the same. WeightsUnavailable, OSError."""
        ...

    async def fetch(self, name: str, into: Path) -> None:
        """Write it to a file. WeightsUnavailable, OSError."""
        ...

    async def remove(self, name: str) -> None:
        """Forget it; unknown names are ignored. WeightsUnavailable."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class Stored:
    """The carrier."""

    def __init__(self, store: ObjectStore) -> None:
        """`store`: it becomes this carrier's, which closes it."""
        self._store, self._names = store, set[str]()

    async def put(self, file: Path, name: str) -> None:
        """See `Carrier`."""
        if name not in self._names:
            await self._store.put(name, file)
            self._names.add(name)

    async def keep(self, names: Collection[str]) -> None:
        """See `Carrier`: of what this process put; a core that died leaves at most its last version behind."""
        for name in self._names - set(names):
            await self._store.remove(name)
            self._names.discard(name)

    async def fetch(self, name: str, into: Path) -> Path:
        """See `Carrier`."""
        await self._store.fetch(name, into)
        return into

    async def answer(self, question: bytes) -> bytes:
        """See `Carrier`: nothing is asked."""
        raise WeightsUnusable("weights.transport: cells of one run must have the same; this one uses an object store")

    async def close(self) -> None:
        """See `Carrier`."""
        await self._store.close()
