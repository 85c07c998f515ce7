"""The proxy: an OpenAI endpoint for harnesses in front of the cells, at /x/<token>/v1/...

The only thing that a harness knows of gyre. Streams begin at once and are kept alive by empty chunks, whole turns
follow (design §7); a harness never sees a cell change its role, fail or be replaced.
"""

import asyncio
import contextlib
import errno
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from bus.log import BusPort
from gyre.engines.remote import RemoteEngine
from gyre.errors import GyreError
from gyre.models.load import find_model
from gyre.proxy import chat
from gyre.proxy.adapters.registry import find_adapter
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.errors import CallError, TemplateUnusable, Unauthorized
from gyre.proxy.session import Limits, Session
from gyre.proxy.template import Template
from services.place import Place
from services.proxy_calls import Calls, Finished, Job
from services.proxy_draw import Connect, Engines
from services.proxy_world import World

KEEP_ALIVE_SECONDS = 10.0
MAX_BODY_BYTES = 64 * 2**20
_BIND_SECONDS = 10.0
_SHUTDOWN_SECONDS = 2.0
_LOG = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProxyFailed(GyreError):
    """The proxy cannot start; the message names the setting."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """What a proxy is told."""

    run: str
    folder: Path
    """The run's own folder: the proxy writes `proxy.url` there."""
    model: Path
    """Folder with tokenizer and chat template."""
    secret: Path
    """File with the key that tokens derive from."""
    seed: int
    """Of the run."""
    temperature: float
    max_tokens: int
    context_tokens: int
    host: str = "127.0.0.1"
    port: int = 0
    """0: the one that `proxy.url` names, so that a restarted proxy is found again; else any free one."""
    harness: str = "auto"
    """Whose marks tell main calls, sub-agents and summaries apart: see `gyre.proxy.adapters.registry.find_adapter`."""
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS


async def serve(place: Place, bus: BusPort) -> None:
    """Serve the run at this place until cancelled."""
    config = place.config
    settings = ProxySettings(
        run=place.run,
        folder=place.folder,
        model=find_model(config.model.path),
        secret=place.folder / "proxy.key",
        seed=config.run.seed,
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_tokens,
        context_tokens=config.rollout.context_tokens,
        harness=config.harness.adapter,
    )
    await serve_proxy(bus, settings)


async def serve_proxy(bus: BusPort, settings: ProxySettings, connect: Connect = RemoteEngine) -> None:
    """Serve until cancelled; the URL is in `<run folder>/proxy.url` from the moment that it accepts connections.

    Raises:
        ProxyFailed: no secret, an unusable model folder, or a port in use.
    """
    try:
        secret = settings.secret.read_bytes()
        template = await asyncio.to_thread(lambda: Template(ChatModel.load(settings.model)))
    except (OSError, TemplateUnusable) as error:
        raise ProxyFailed(f"proxy: cannot start: {error}") from error
    world = World(bus, secret, settings.seed)
    limits = Limits(settings.temperature, settings.max_tokens, settings.context_tokens)
    harness = find_adapter(settings.harness)
    engines = Engines(world, connect, bus.instance, template.model.stop_token_ids)
    calls = Calls(bus, world, engines, lambda name, seed: Session(name, seed, template, limits, harness))
    following = asyncio.create_task(world.follow())
    ready = asyncio.create_task(world.caught_up())
    app = proxy_app(settings, world, calls, ready)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    try:
        await runner.setup()
        await _listen(runner, settings)
        sealing = asyncio.create_task(_seal(world, calls, ready))
        await _until_one_fails(following, sealing)
    finally:
        following.cancel()
        ready.cancel()
        await calls.close()
        await runner.cleanup()
        await engines.close()


def proxy_app(settings: ProxySettings, world: World, calls: Calls, ready: "asyncio.Task[None]") -> web.Application:
    """The HTTP face; requests that come before `ready` wait for it."""

    async def execution_of(request: web.Request) -> str:
        await asyncio.shield(ready)
        token = request.match_info["token"]
        key = request.headers.get("Authorization", "")
        if key and key.removeprefix("Bearer ").strip() != token:
            raise Unauthorized("key: is not the token in the path; use the same for both")
        return await world.execution(token)

    async def completions(request: web.Request) -> web.StreamResponse:
        execution = await execution_of(request)
        body = await request.read()
        asked = chat.parse(body)
        job = await calls.open(execution, asked.asked, hashlib.sha256(body).digest())
        try:
            if asked.stream:
                response = await _streamed(request, asked, job, settings.keep_alive_seconds)
            else:
                answered = chat.completion(_reply(asked, await job.answer()))
                response = web.Response(body=answered, content_type="application/json")
                await response.prepare(request)
                await response.write_eof()
        finally:
            calls.leave(job)
        calls.confirm(job)
        return response

    async def models(request: web.Request) -> web.Response:
        await execution_of(request)
        return web.Response(body=chat.models_body("policy", settings.context_tokens), content_type="application/json")

    app = web.Application(middlewares=[_refusals], client_max_size=MAX_BODY_BYTES)
    app.add_routes([web.post("/x/{token}/v1/chat/completions", completions), web.get("/x/{token}/v1/models", models)])
    return app


async def _streamed(request: web.Request, asked: chat.ChatRequest, job: Job, every: float) -> web.StreamResponse:
    """Headers at once, an empty chunk now and then while the turn is not whole, then all of it."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    opening = chat.opening(job.call, asked.model, int(time.time()))
    answering = asyncio.ensure_future(job.answer())
    try:
        while True:
            await response.write(opening)
            if (await asyncio.wait((answering,), timeout=every))[0]:
                break
        for chunk in chat.chunks(_reply(asked, answering.result()), include_usage=asked.include_usage):
            await response.write(chunk)
    except CallError as error:
        await response.write(chat.error_event(error))
    finally:
        answering.cancel()
    await response.write_eof()
    return response


def _reply(asked: chat.ChatRequest, finished: Finished) -> chat.Reply:
    return chat.Reply(
        call=finished.call,
        model=asked.model,
        created=int(time.time()),
        message=finished.message,
        length=finished.length,
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=finished.completion_tokens,
        cached_tokens=finished.cached_tokens,
    )


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except CallError as error:
        return web.Response(body=chat.error_body(error), status=error.status, content_type="application/json")


async def _seal(world: World, calls: Calls, ready: "asyncio.Task[None]") -> None:
    """Seal what has terminated, also what an earlier proxy left unsealed; forget evaluations that are scored."""
    await asyncio.shield(ready)
    begun: set[str] = set()
    evaluations = world.routes.evaluations
    try:
        async with asyncio.TaskGroup() as seals:
            while True:
                seen, closing = world.sequence, world.routes.closing
                for execution in [name for name in closing if name not in begun]:
                    seals.create_task(calls.seal(execution))
                begun = set(closing)
                if world.routes.evaluations is not evaluations:
                    evaluations = world.routes.evaluations
                    await calls.drop_scored()
                if world.sequence == seen:
                    await world.changed()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed


async def _listen(runner: web.AppRunner, settings: ProxySettings) -> None:
    """Bind, waiting a little for an earlier proxy to let go of the port, and write the URL."""
    note = settings.folder / "proxy.url"
    port = settings.port or await asyncio.to_thread(_noted_port, note)
    deadline = time.monotonic() + _BIND_SECONDS
    while True:
        site = web.TCPSite(runner, settings.host, port)
        try:
            await site.start()
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise ProxyFailed(f"proxy: port {port} on {settings.host} cannot be used: {error.strerror}") from error
        await asyncio.sleep(0.1)
    bound = runner.addresses[0][1]
    partial = note.with_suffix(".url.part")
    partial.write_text(f"http://{settings.host}:{bound}")
    partial.replace(note)
    _LOG.info("proxy listens at http://%s:%d", settings.host, bound)


def _noted_port(note: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(note.read_text().strip().rpartition(":")[2])
    return 0


async def _until_one_fails(*tasks: "asyncio.Task[None]") -> None:
    """Wait until cancelled; a task that fails ends it with its error."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
