"""An object store by HTTP: PUT, GET and DELETE of `<url>/<name>`."""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from gyre.weights.port import WeightsUnavailable

TOKEN = "GYRE_WEIGHTS_TOKEN"  # noqa: S105 - the name of a variable
_CONNECT_SECONDS, _SILENT_SECONDS = 10.0, 60.0
_PIECE_BYTES = 1 << 20
_DONE, _MISSING = range(200, 300), 404
_BUSY = (429, 500, 502, 503, 504)
_ATTEMPTS, _PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 4, 0.2, 5.0
_SAID_BYTES = 4096


class Access(Protocol):
    """By what right a store is asked."""

    async def headers(self, method: str, url: str, body: Path | None) -> dict[str, str]:
        """What a request has to say for it. WeightsUnavailable, OSError."""
        ...


class Bearer:
    """An `Access` by the bearer token of the environment, if there is one."""

    async def headers(self, method: str, url: str, body: Path | None) -> dict[str, str]:
        """See `Access`."""
        token = os.environ.get(TOKEN)
        return {"Authorization": f"Bearer {token}"} if token else {}


class StoreBusy(WeightsUnavailable):
    """It may well answer when it is asked again."""


class HttpStore:
    """A store at a URL. What is busy, or hangs up, is asked a few times."""

    def __init__(self, url: str, access: Access) -> None:
        """Nothing is sent yet."""
        self._url, self._access = url.rstrip("/"), access
        self._opened: aiohttp.ClientSession | None = None

    async def put(self, name: str, file: Path) -> None:
        """See `ObjectStore`."""
        (await self._asked("PUT", name, file)).release()

    async def fetch(self, name: str, into: Path) -> None:
        """See `ObjectStore`."""
        async with await self._asked("GET", name) as response:
            with into.open("wb") as file, _plainly("GET", str(response.url)):
                async for piece in response.content.iter_chunked(_PIECE_BYTES):
                    await asyncio.to_thread(file.write, piece)

    async def remove(self, name: str) -> None:
        """See `ObjectStore`."""
        (await self._asked("DELETE", name)).release()

    async def close(self) -> None:
        """See `ObjectStore`."""
        if self._opened is not None:
            await self._opened.close()

    async def _asked(self, method: str, name: str, body: Path | None = None) -> aiohttp.ClientResponse:
        patiently = AsyncRetrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS),
            retry=retry_if_exception_type(StoreBusy),
            reraise=True,
        )
        return await patiently(self._asked_once, method, f"{self._url}/{name}", body)

    async def _asked_once(self, method: str, url: str, body: Path | None) -> aiohttp.ClientResponse:
        headers = await self._access.headers(method, url, body)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)
        with body.open("rb") if body else nullcontext() as data, _plainly(method, url):
            response = await self._session.request(method, url, headers=headers, timeout=timeout, data=data)
            if response.status in _DONE or (method == "DELETE" and response.status == _MISSING):
                return response
            async with response:
                why = _why(response, (await response.content.read(_SAID_BYTES)).decode(errors="replace"))
        kind = StoreBusy if response.status in _BUSY else WeightsUnavailable
        raise kind(f"{method} {url}: answered {response.status} {why}")

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession()
        return self._opened


@contextmanager
def _plainly(method: str, url: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:  # it was waited for long enough
        raise WeightsUnavailable(f"{method} {url}: {type(error).__name__}: {error}") from error
    except aiohttp.ClientError as error:
        raise StoreBusy(f"{method} {url}: {type(error).__name__}: {error}") from error


def _why(response: aiohttp.ClientResponse, said: str) -> str:
    """In a line; stores of S3's kind say it as XML."""
    code, message = (re.search(f"<{tag}>([^<]*)</{tag}>", said) for tag in ("Code", "Message"))
    if code is None:
        return str(response.reason)
    if code[1] == "RequestTimeTooSkewed":
        return f"{code[1]}: the store's clock says {response.headers.get('Date')}; set this machine's right"
    return " ".join(f"{code[1]}: {message[1] if message else response.reason}".split())[:300]
