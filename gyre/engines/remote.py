"""A generator in another process, by HTTP (the form in `wire`, served by `services.engine_server`)."""

from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from gyre.engines.blocks import KvBlocks
from gyre.engines.port import EngineUnavailable, GenerateRequest, Generation, Health, KvRefused
from gyre.engines.wire import (
    AbortBody,
    ErrorBody,
    GenerateBody,
    GenerationBody,
    HealthBody,
    KvBody,
    KvReleaseBody,
    KvTakeBody,
    KvTakenBody,
)

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""For all but a generation and a cache on its way, which take as long as they take: whoever asks bounds them."""


class RemoteEngine:
    """A `Generator` at a URL. It holds no weights: swapping those is the matter of the cell that owns the engine.

    Nothing is retried here: EngineUnavailable tells the caller to choose an engine again. Cancelling `generate` closes
    the connection, by which the server aborts the request; cancelling `take_kv` ends the fetching there likewise.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._opened: aiohttp.ClientSession | None = None

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Generator`."""
        body = GenerateBody.of(request).model_dump_json()
        answer = await self._ask("POST", "/generate", body, None)
        return GenerationBody.model_validate_json(answer).generation()

    async def abort(self, request_id: str) -> None:
        """See `Generator`."""
        await self._ask("POST", "/abort", AbortBody(request_id=request_id).model_dump_json(), ANSWER_SECONDS)

    async def abort_all(self) -> None:
        """See `Generator`. Other clients' requests end too."""
        await self._ask("POST", "/abort", AbortBody(request_id=None).model_dump_json(), ANSWER_SECONDS)

    async def health(self) -> Health:
        """See `Generator`."""
        body = HealthBody.model_validate_json(await self._ask("GET", "/health", None, ANSWER_SECONDS))
        return Health(body.version, body.running, body.context, body.admitting)

    async def export_kv(self, key: str, version: int) -> KvBlocks:
        """See `Generator`."""
        body = KvBody(key=key, version=version).model_dump_json()
        answer = await self._ask("POST", "/kv/export", body, None)
        try:
            return KvBlocks.unpacked(answer)
        except ValueError as error:
            raise KvRefused(f"engine at {self._url}: what it sent cannot be read: {error}") from error

    async def release_kv(self, key: str) -> None:
        """See `Generator`."""
        await self._ask("POST", "/kv/release", KvReleaseBody(key=key).model_dump_json(), ANSWER_SECONDS)

    async def take_kv(self, key: str, source: str) -> int:
        """See `Generator`."""
        body = KvTakeBody(key=key, source=source).model_dump_json()
        return KvTakenBody.model_validate_json(await self._ask("POST", "/kv/take", body, None)).tokens

    async def close(self) -> None:
        """Close the connections; the engine lives on."""
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    async def _ask(self, method: str, path: str, body: str | None, seconds: float | None) -> bytes:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, self._url + path, data=body, headers=headers, timeout=timeout
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnavailable(f"engine at {self._url}: {type(error).__name__}: {error}") from error
        if response.status != 200:  # noqa: PLR2004  HTTP's word for success
            raise self._error(response.status, answer)
        return answer

    def _error(self, status: int, answer: bytes) -> Exception:
        try:
            return ErrorBody.model_validate_json(answer).exception()
        except ValidationError:
            return EngineUnavailable(f"engine at {self._url} answered {status}: {answer[:200]!r}")

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._opened
