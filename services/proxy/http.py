"""The proxy's HTTP face: the APIs of harnesses at /x/<token>/..., whatever else their clients put into the path.

It only moves bytes: what they mean is in `gyre.proxy`. Streams begin at once and are kept alive until the turn is
whole; a whole body that is long in coming is kept alive by white space, which JSON allows in front.
"""

import asyncio
import hmac
import logging
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from aiohttp import web

from bus.errors import BusError
from gyre.proxy import probes
from gyre.proxy.anthropic import counted
from gyre.proxy.bounds import weight
from gyre.proxy.errors import BadRequest, CallError, EngineTrouble, NotFound, ProxyBroke, TooSlow, Unauthorized
from gyre.proxy.protocols import PROTOCOLS
from gyre.proxy.reply import Opened, Reply, Request, WireProtocol
from gyre.proxy.sent import Sent
from gyre.proxy.sse import CONTENT_TYPE
from services.proxy.calls import Calls
from services.proxy.gate import Gate, Share
from services.proxy.seat import Finished, Job
from services.proxy.world import World

JSON = "application/json"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_MOST_WORDS = 200
_LINE_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


class OneLine(logging.LoggerAdapter[logging.Logger]):
    """What a client sends that is no HTTP is worth a line in the log, and not the trace of its reader.

    One a second at most: anybody who is connected may send any number of them.
    """

    _next = 0.0

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        """Leave out what comes too soon."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LINE_SECONDS
            super().log(level, msg, *args, **more)

    def process(self, msg: str, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        """Put the error behind the message."""
        error = kwargs.pop("exc_info", None)
        return f"{msg}: {' '.join(str(error or '').split())[:_MOST_WORDS].replace('%', '%%')}", kwargs


def proxy_app(
    world: World,
    calls: Calls,
    gate: Gate,
    ready: "asyncio.Task[None]",
    context_tokens: int,
    keep_alive_seconds: float,
) -> web.Application:
    """The application; requests that come before `ready` wait for it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await asyncio.shield(ready)
        path = request.match_info["path"]
        execution = await world.execution(_token(request))
        if request.method in ("GET", "HEAD"):
            seen = probes.look(path, context_tokens)
            if seen is None:
                raise NotFound(f"path: {path} takes POST")
            return web.Response(body=seen if request.method == "GET" else b"", content_type=JSON)
        api = probes.api_of(path)
        if request.method != "POST" or not api:
            apis = ", ".join(f"/v1/{name}" for name in PROTOCOLS)
            raise NotFound(f"path: {request.method} {path} is no API of this proxy; POST to one of {apis}")
        if request.transport is not None:  # what is written is in the kernel's hands, not in a buffer of ours
            request.transport.set_write_buffer_limits(high=0)
        with gate.enter(execution, request.protocol) as share:
            return await answer(request, api, execution, share)

    async def answer(request: web.Request, api: str, execution: str, share: Share) -> web.StreamResponse:
        await calls.prepare(execution)
        body = await share.body(request)
        share.hold(weight(body))
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = PROTOCOLS[api].parse(body, headers, context_tokens)
        if api == probes.COUNT:
            return web.Response(body=counted(await calls.count(execution, asked.asked)), content_type=JSON)
        job = await calls.open(execution, asked.asked, Sent.of(api, headers, body))
        try:
            asked = asked.begun()
            share.hold(len(body))
            send = _streamed if asked.stream else _whole
            response = await send(request, PROTOCOLS[api], asked, job, keep_alive_seconds)
            calls.confirm(job)
        finally:
            calls.leave(job)
        return response

    app = web.Application(middlewares=[_refusals])
    app.router.add_route("*", "/x/{token}{path:(?:/.*)?}", handle)
    return app


async def _await_client(request: web.Request) -> None:
    """Raise `ConnectionResetError` where the client hung up before its answer is written.

    The event loop is let look at the connection first. Afterwards nobody could tell: a client that has read everything
    may close at once. What is written from here on without an error counts as received: HTTP cannot know more.
    """
    for _ in range(2):
        await asyncio.sleep(0)
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client hung up before its answer")


async def _streamed(
    request: web.Request, protocol: WireProtocol, asked: Request, job: Job, every: float
) -> web.StreamResponse:
    """Headers and the opening at once, an event now and then while the turn is not whole, then all of it."""
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache"})
    await response.prepare(request)
    opened = _opened(job)
    await response.write(protocol.opening(asked, opened))
    answering = asyncio.ensure_future(job.answer())
    beats = 0
    try:
        while not (await asyncio.wait((answering,), timeout=every))[0]:
            await response.write(protocol.keep_alive(asked, opened, beats))
            beats += 1
        *events, last = protocol.events(asked, _reply(opened, answering.result()), beats)
        await _await_client(request)
        for event in events:
            await response.write(event)
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001 (a stream that breaks off may pass for an answer)
        last = protocol.error_event(asked, opened, beats, _refusal(error))
    finally:
        answering.cancel()
    await response.write_eof(last)
    return response


async def _whole(
    request: web.Request, protocol: WireProtocol, asked: Request, job: Job, every: float
) -> web.StreamResponse:
    """One body. Once white space has been sent there is no status left for an error: the connection is closed."""
    answering = asyncio.ensure_future(job.answer())
    response: web.StreamResponse = web.StreamResponse(headers={"Content-Type": JSON})
    try:
        while not (await asyncio.wait((answering,), timeout=every))[0]:
            if not response.prepared:
                await response.prepare(request)
            await response.write(b" ")
        body = protocol.completion(asked, _reply(_opened(job), answering.result()))
    except Exception as error:
        if not response.prepared or request.transport is None:
            raise
        request.transport.abort()
        raise ConnectionResetError(str(error)) from error
    finally:
        answering.cancel()
    await _await_client(request)
    if not response.prepared:
        response = web.Response(body=body, content_type=JSON)
        await response.prepare(request)
        body = b""
    await response.write_eof(body)
    return response


def _opened(job: Job) -> Opened:
    return Opened(job.call, int(time.time()), job.prompt_tokens)


def _reply(opened: Opened, finished: Finished) -> Reply:
    return Reply(
        opened=opened,
        message=finished.message,
        ending=finished.ending,
        completion_tokens=finished.completion_tokens,
        cached_tokens=finished.cached_tokens,
        stop_sequence=finished.stop_sequence,
    )


def _token(request: web.Request) -> str:
    """The token in the path; a key beside it must be the same."""
    token = request.match_info["token"]
    bearer = request.headers.get("Authorization", "")
    scheme, _, key = bearer.partition(" ")
    sent = [key.strip() if scheme.lower() == "bearer" else bearer, request.headers.get("x-api-key", "").strip()]
    keys = [each for each in sent if each]
    if keys and not any(hmac.compare_digest(each.encode("utf-8", "replace"), token.encode()) for each in keys):
        raise Unauthorized("key: is not the token in the path; use the same for both")
    return token


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error in the words of the protocol that the request speaks."""
    try:
        return await handler(request)
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001 (the edge of the process)
        return _refused(request, _refusal(error))  # no name stays for it: its trace holds what was read of the body


def _refused(request: web.Request, refusal: CallError) -> web.StreamResponse:
    anthropic = "anthropic-version" in request.headers
    api = probes.api_of(request.path) or (probes.MESSAGES if anthropic else probes.CHAT)
    later = {"Retry-After": str(math.ceil(refusal.wait_seconds))} if refusal.wait_seconds else None
    body = PROTOCOLS[api].error_body(refusal)
    response = web.Response(body=body, status=refusal.status, content_type=JSON, headers=later)
    if isinstance(refusal, TooSlow):  # what is still to come of its body is no request
        response.force_close()
    return response


def _refusal(error: Exception) -> CallError:
    """What a client is told of an error."""
    if isinstance(error, CallError):
        return error
    if isinstance(error, web.RequestPayloadError):
        return BadRequest("body: is not what its Content-Encoding or Transfer-Encoding says")
    if isinstance(error, web.HTTPException):
        return NotFound("path: must begin with /x/<token>")
    if isinstance(error, BusError | OSError):
        _LOG.error("a request failed: %s", error)
        return EngineTrouble(f"log: cannot be used: {' '.join(str(error).split())[:200]}")
    _LOG.error("a request failed", exc_info=error)
    return ProxyBroke(f"proxy: {type(error).__name__}; its log says more")
