"""The carrier over Mooncake's transfer engine: cells read the files out of the core's memory, by RDMA or TCP.

The core holds what it offers in memory that the network may read, from the first time that somebody asks for it until
the next version is offered. A cell asks the core where, reads, and checks what came as any other file.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from gyre.weights.port import Ask, WeightsUnavailable, WeightsUnusable
from schemas.base import Model

INSTALL = "pip install mooncake-transfer-engine (or -non-cuda), with libibverbs and librdmacm of the system"

READ_SECONDS = 600.0
"""Patience with a core that stands still; its thread goes on waiting alone."""


class Engine(Protocol):
    """What is used of `mooncake.engine.TransferEngine` (0.3.13): each answers 0 where it succeeds."""

    def initialize(self, host: str, metadata: str, protocol: str, device: str, /) -> int:
        """Listen."""
        ...

    def get_rpc_port(self) -> int:
        """Where it listens."""
        ...

    def register_memory(self, address: int, length: int, /) -> int:
        """Let peers read there."""
        ...

    def unregister_memory(self, address: int, /) -> int:
        """No more."""
        ...

    def transfer_sync_read(self, peer: str, buffer: int, peer_buffer: int, length: int, /) -> int:
        """Read a peer's memory."""
        ...


class Wanted(Model):
    """Asked of the core."""

    name: str


class Lent(Model):
    """Where it lies."""

    peer: str
    """host:port of the core's engine."""
    address: int
    size: int
    """Bytes."""


def transfer_engine_class() -> Callable[[], Engine]:
    """The package's. Raises WeightsUnavailable where it, or a library that it needs, is not installed."""
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        raise WeightsUnavailable(f"{error}; {INSTALL}") from error
    found: Callable[[], Engine] = TransferEngine
    return found


def transfer_engine(host: str, protocol: str, device: str) -> Engine:
    """An engine that listens at a host of this machine. Raises WeightsUnavailable."""
    engine = transfer_engine_class()()
    if engine.initialize(host, "P2PHANDSHAKE", protocol, device):
        rule = 'set weights.device, or weights.protocol = "tcp"'
        raise WeightsUnavailable(f"weights.protocol = {protocol!r}: Mooncake cannot use it at {host}; {rule}")
    return engine


class Mooncake:
    """The carrier.

    Args:
        make: the engine, when it is first used.
        host: address of this machine that peers reach.
        ask: reaches the core's `answer`.
    """

    def __init__(self, make: Callable[[], Engine], host: str, ask: Ask) -> None:
        self._make, self._host, self._ask = make, host, ask
        self._engine: Engine | None = None
        self._files: Mapping[str, Path] = {}
        self._lent: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._one = asyncio.Lock()

    async def put(self, file: Path, name: str) -> None:
        """See `Carrier`: read into memory once somebody asks."""
        self._files = {**self._files, name: file}

    async def keep(self, names: Collection[str]) -> None:
        """See `Carrier`."""
        async with self._one:
            self._files = {name: file for name, file in self._files.items() if name in names}
            for name in self._lent.keys() - self._files.keys():
                await asyncio.to_thread(self._take_back, name)

    async def fetch(self, name: str, into: Path) -> Path:
        """See `Carrier`."""
        answer = await self._ask(Wanted(name=name).model_dump_json().encode())
        try:
            lent = Lent.model_validate_json(answer)
        except ValidationError as error:
            raise WeightsUnusable(f"the core answers {answer[:100]!r}: is its weights.transport another?") from error
        async with self._one, asyncio.timeout(READ_SECONDS):
            await asyncio.to_thread(self._read, lent, into)
        return into

    async def answer(self, question: bytes) -> bytes:
        """See `Carrier`."""
        try:
            name = Wanted.model_validate_json(question).name
        except ValidationError as error:
            raise WeightsUnusable("the question is not Mooncake's: is the cell's weights.transport another?") from error
        async with self._one:
            return (await asyncio.to_thread(self._lend, name)).model_dump_json().encode()

    async def close(self) -> None:
        """See `Carrier`."""
        await self.keep(())

    def _running(self) -> Engine:
        if self._engine is None:
            self._engine = self._make()
        return self._engine

    def _lend(self, name: str) -> Lent:
        engine = self._running()
        if name not in self._lent:
            if name not in self._files:
                raise WeightsUnavailable(f"{name}: is not offered")
            body = np.fromfile(self._files[name], dtype=np.uint8)
            _done(engine.register_memory(body.ctypes.data, body.nbytes), f"lending {body.nbytes} bytes")
            self._lent[name] = body
        body = self._lent[name]
        return Lent(peer=f"{self._host}:{engine.get_rpc_port()}", address=body.ctypes.data, size=body.nbytes)

    def _take_back(self, name: str) -> None:
        body = self._lent.pop(name)
        _done(self._running().unregister_memory(body.ctypes.data), "taking back memory")

    def _read(self, lent: Lent, into: Path) -> None:
        engine, body = self._running(), np.empty(lent.size, dtype=np.uint8)
        _done(engine.register_memory(body.ctypes.data, body.nbytes), f"room for {body.nbytes} bytes")
        try:
            where = (body.ctypes.data, lent.address, lent.size)
            _done(engine.transfer_sync_read(lent.peer, *where), f"reading {lent.size} bytes from {lent.peer}")
        finally:
            engine.unregister_memory(body.ctypes.data)
        body.tofile(into)


def _done(code: int, what: str) -> None:
    if code:
        raise WeightsUnavailable(f"Mooncake: {what} failed ({code}); its own log says why")
