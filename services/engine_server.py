"""An engine over HTTP, token-in and token-out: /generate, /abort, /health, /kv/... (see gyre.engines.wire)."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from gyre.engines.handoff import apart
from gyre.engines.port import EngineError, Generator, RequestRefused
from gyre.engines.wire import (
    STATUS,
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

MAX_BODY_BYTES = 64 * 2**20
"""A million tokens are 5.3 MiB."""

Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def engine_app(engine: Generator, admitting: Callable[[], bool]) -> web.Application:
    """Serve any generator.

    Args:
        engine: what generates; it stays the caller's, who closes it.
        admitting: asked before each generation; when False the answer is 503 {"error": "draining"}. Requests under way
            go on, and aborts are always heard, as is who comes for a cache.
    """

    async def generate(request: web.Request) -> web.Response:
        body = _parsed(GenerateBody, await request.read())
        if not admitting():  # asked last: nobody slips in between this and the engine
            return _answer(ErrorBody(error="draining", detail="this cell admits no requests now: use another one"), 503)
        return _answer(GenerationBody.of(await engine.generate(body.request())))

    async def abort(request: web.Request) -> web.Response:
        request_id = _parsed(AbortBody, await request.read()).request_id
        await (engine.abort_all() if request_id is None else engine.abort(request_id))
        return web.json_response({})

    async def health(_: web.Request) -> web.Response:
        now = await engine.health()
        open_now = now.admitting and admitting()
        return _answer(HealthBody(version=now.version, running=now.running, context=now.context, admitting=open_now))

    app = web.Application(middlewares=[_errors], client_max_size=MAX_BODY_BYTES)
    app.add_routes([web.post("/generate", generate), web.post("/abort", abort), web.get("/health", health)])
    app.add_routes(_kv_routes(engine))
    return app


def _kv_routes(engine: Generator) -> list[web.RouteDef]:
    """What engines ask of each other, and who moved an execution of the one that it moved to."""

    async def export(request: web.Request) -> web.Response:
        asked = _parsed(KvBody, await request.read())
        blocks = await engine.export_kv(asked.key, asked.version)
        body = await apart(sum(len(each.data) for each in blocks.sequences), blocks.packed)
        return web.Response(body=body, content_type="application/octet-stream")

    async def release(request: web.Request) -> web.Response:
        await engine.release_kv(_parsed(KvReleaseBody, await request.read()).key)
        return web.json_response({})

    async def take(request: web.Request) -> web.Response:
        asked = _parsed(KvTakeBody, await request.read())
        return _answer(KvTakenBody(tokens=await engine.take_kv(asked.key, asked.source)))

    return [web.post("/kv/export", export), web.post("/kv/release", release), web.post("/kv/take", take)]


def engine_runner(app: web.Application) -> web.AppRunner:
    """A runner under which a client that hangs up cancels its generation, as `engine_app` needs."""
    return web.AppRunner(app, handler_cancellation=True, access_log=None)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except EngineError as error:
        body = ErrorBody.of(error)
        return _answer(body, STATUS[body.error])


def _parsed(kind: type[Body], raw: bytes) -> Body:
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise RequestRefused(f"{where}: {first['msg']}") from error


def _answer(body: BaseModel, status: int = 200) -> web.Response:
    return web.Response(text=body.model_dump_json(), status=status, content_type="application/json")
