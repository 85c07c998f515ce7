"""A bad network in front of the proxy: one request of an execution is refused, or loses its connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

DROP_SECONDS = 0.5
"""How long a request that loses its connection has been with the proxy by then."""
_HOP = frozenset(("connection", "content-length", "host", "keep-alive", "transfer-encoding"))


class Faults:
    """Passes everything on, but for one request of each execution that has a fault."""

    def __init__(self, proxy: str, http: aiohttp.ClientSession) -> None:
        self._proxy, self._http = proxy, http
        self._pending: dict[str, Mapping[str, Any]] = {}
        self.struck: set[str] = set()
        """Tokens whose fault has happened."""

    def plan(self, token: str, fault: Mapping[str, Any]) -> None:
        """The next request of this token that holds ``after`` is refused with ``status``; 0: its connection goes."""
        self._pending[token] = fault

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request of a client."""
        token, body = request.match_info["token"], await request.read()
        fault = self._pending.get(token)
        if fault is None or fault["after"].encode() not in body:
            return await self._pass(request, body)
        del self._pending[token]
        self.struck.add(token)
        if fault["status"]:
            return web.json_response({"error": {"message": "injected"}}, status=fault["status"])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._lost(request, body), DROP_SECONDS)
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=499)  # nobody is there to read it

    async def _pass(self, request: web.Request, body: bytes) -> web.StreamResponse:
        async with self._ask(request, body) as found:
            kept = [(name, value) for name, value in found.headers.items() if name.lower() not in _HOP]
            response = web.StreamResponse(status=found.status, headers=dict(kept))
            await response.prepare(request)
            async for chunk in found.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def _lost(self, request: web.Request, body: bytes) -> None:
        async with self._ask(request, body) as found:
            await found.read()

    def _ask(self, request: web.Request, body: bytes) -> "AbstractAsyncContextManager[aiohttp.ClientResponse]":
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        return self._http.request(request.method, self._proxy + request.raw_path, headers=headers, data=body)


@asynccontextmanager
async def network(proxy: str) -> AsyncIterator[tuple[Faults, str]]:
    """Faults in front of a proxy, and the URL to use instead of the proxy's."""
    endless = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=endless, auto_decompress=False) as http:
        faults = Faults(proxy, http)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/x/{token}{path:(?:/.*)?}", faults.handle)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield faults, f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()
