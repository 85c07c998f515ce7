"""An object store by HTTP: PUT, GET and DELETE of `<url>/<name>`."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gyre.weights.port import WeightsUnavailable

TOKEN = "GYRE_WEIGHTS_TOKEN"  # noqa: S105 - the name of a variable
_CONNECT_SECONDS, _SILENT_SECONDS = 10.0, 60.0
_PIECE_BYTES = 1 << 20
_REFUSED, _MISSING = 400, 404


class HttpStore:
    """A store at a URL, with the bearer token of the environment if there is one."""

    def __init__(self, url: str) -> None:
        """Nothing is sent yet."""
        self._url = url.rstrip("/")
        self._opened: aiohttp.ClientSession | None = None

    async def put(self, name: str, file: Path) -> None:
        """See `ObjectStore`."""
        with file.open("rb") as body:
            async with self._asked("PUT", name, data=body):
                pass

    async def fetch(self, name: str, into: Path) -> None:
        """See `ObjectStore`."""
        async with self._asked("GET", name) as response:
            with into.open("wb") as file:
                async for piece in response.content.iter_chunked(_PIECE_BYTES):
                    await asyncio.to_thread(file.write, piece)

    async def remove(self, name: str) -> None:
        """See `ObjectStore`."""
        async with self._asked("DELETE", name):
            pass

    async def close(self) -> None:
        """See `ObjectStore`."""
        if self._opened is not None:
            await self._opened.close()

    @asynccontextmanager
    async def _asked(self, method: str, name: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self._url}/{name}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)
        token = os.environ.get(TOKEN)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with self._session.request(method, url, headers=headers, timeout=timeout, **more) as response:
                gone = method == "DELETE" and response.status == _MISSING
                if response.status >= _REFUSED and not gone:
                    raise WeightsUnavailable(f"{method} {url}: answered {response.status} {response.reason}")
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WeightsUnavailable(f"{method} {url}: {type(error).__name__}: {error}") from error

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession()
        return self._opened
