"""A cell's transport of weights, and its way to the core: one question over the cells' own HTTP."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web

from bus.blobs import BlobError, Blobs
from gyre.config import Config
from gyre.core import ledger
from gyre.errors import ConfigError, GyreError, Problem
from gyre.weights.files import Carried, Carrier, FromFolder, Shared
from gyre.weights.port import Ask, Give, Weights, WeightsUnavailable, give
from gyre.weights.store import ObjectStore, Stored
from schemas.refs import BlobRef
from services.address import reached
from services.place import Place

PATH = "/weights"
ASK_SECONDS = 60.0
"""The core looks at its whole file before it answers."""
_REFUSED = 409
_FOLDER = ("file", "tensor")  # transports whose cells read the run folder


def cell_weights(place: Place, index: int, core: Callable[[], str]) -> Weights:
    """What `[weights]` chooses.

    Args:
        place: the cell's.
        index: of the cell.
        core: where the core's cell is reached by now; "" while nobody knows.
    """
    chosen, folder = place.config.weights, place.folder
    if chosen.transport == "group":
        from gyre.weights.group import Grouped

        return Grouped(folder, place.instance, partial(ask, core), reached(), chosen.backend)
    giving: Give = give
    if chosen.transport == "tensor":
        from gyre.weights.tensors import give_tensors

        giving = give_tensors
    if chosen.transport in _FOLDER and not chosen.delta:
        return FromFolder(folder, giving)
    own = folder / "cells" / str(index) / "weights"
    carrier = _carrier(place, partial(ask, core))
    return Carried(carrier, folder, own, delta=chosen.delta, core=index == ledger.CORE, give=giving)


def check_transport(config: Config) -> None:
    """What the chosen transport needs is installed, or in the environment. Raises `ConfigError`."""
    chosen = config.weights
    try:
        if chosen.transport == "mooncake":
            from gyre.weights.mooncake import transfer_engine_class

            transfer_engine_class()
        if chosen.url:
            _store(chosen.url)
    except WeightsUnavailable as error:
        field = "url" if chosen.url else "transport"
        raise ConfigError("", (Problem(f"weights.{field}", getattr(chosen, field), str(error)),)) from error


def _carrier(place: Place, ask: Ask) -> Carrier:
    chosen = place.config.weights
    if chosen.transport == "mooncake":
        from gyre.weights.mooncake import Mooncake, transfer_engine

        host = reached()
        return Mooncake(partial(transfer_engine, host, chosen.protocol, chosen.device), host, ask)
    if chosen.transport in _FOLDER:
        return Shared(place.folder)
    return Stored(_store(chosen.url) if chosen.url else NamedBlobs(place.folder / "objects"))


def _store(url: str) -> ObjectStore:
    if url.startswith("s3://"):
        from gyre.weights.s3 import s3_store

        return s3_store(url, os.environ, lambda: datetime.now(UTC))
    from gyre.weights.http_store import Bearer, HttpStore

    return HttpStore(url, Bearer())


async def ask(core: Callable[[], str], question: bytes) -> bytes:
    """The core's answer. Raises `WeightsUnavailable`."""
    url = core()
    if not url:
        raise WeightsUnavailable("no core is known yet")
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS, sock_connect=5)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url + PATH, data=question) as found:
            answer = await found.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise WeightsUnavailable(f"core at {url}: {type(error).__name__}: {error}") from error
    if found.status != 200:  # noqa: PLR2004  HTTP's word for success
        raise WeightsUnavailable(f"core at {url}: {answer[:300].decode(errors='replace')}")
    return answer


def weights_route(weights: Weights) -> web.RouteDef:
    """Where the core is asked."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return web.Response(body=await weights.answer(await request.read()))
        except (GyreError, OSError) as error:
            return web.Response(text=str(error), status=_REFUSED)

    return web.post(PATH, answer)


class NamedBlobs:
    """An object store in a run's folder: blobs, and files that name them.

    A name appears once its blob is whole and on disk, and what it names is checked whenever it is fetched.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: where blobs and names lie."""
        self._blobs, self._names = Blobs(folder), folder / "names"

    async def put(self, name: str, file: Path) -> None:
        """See `ObjectStore`."""
        await asyncio.to_thread(self._put, name, file)

    async def fetch(self, name: str, into: Path) -> None:
        """See `ObjectStore`."""
        await asyncio.to_thread(self._fetch, name, into)

    async def remove(self, name: str) -> None:
        """See `ObjectStore`."""
        reference = self._read(name)
        if reference is not None:
            (self._names / name).unlink(missing_ok=True)
            self._blobs.path(reference.digest).unlink(missing_ok=True)

    async def close(self) -> None:
        """See `ObjectStore`."""

    def _put(self, name: str, file: Path) -> None:
        reference = self._blobs.put(file.read_bytes())
        self._names.mkdir(exist_ok=True)
        aside = self._names / f"{name}.{os.getpid()}.tmp"
        aside.write_text(reference.model_dump_json())
        aside.replace(self._names / name)

    def _fetch(self, name: str, into: Path) -> None:
        reference = self._read(name)
        if reference is None:
            raise WeightsUnavailable(f"{self._names / name}: is not there")
        try:
            into.write_bytes(self._blobs.get(reference))
        except BlobError as error:
            raise WeightsUnavailable(str(error)) from error

    def _read(self, name: str) -> BlobRef | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return BlobRef.model_validate_json((self._names / name).read_text())
        return None
