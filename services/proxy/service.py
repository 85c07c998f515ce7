"""The proxy: the APIs that harnesses speak, in front of the cells, at /x/<token>/...

The only thing that a harness knows of gyre: it never sees a cell change its role, fail or be replaced (design §7). A
log or a disk that takes no more is told to whoever asks, and waited for where nobody does.
"""

import asyncio
import contextlib
import errno
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from bus.consumers import SnapshotFile
from bus.errors import StreamFull
from bus.log import BusPort
from bus.ports import lasting_port
from gyre.addresses import at, listener
from gyre.core.routes import Routes
from gyre.engines.remote import RemoteEngine
from gyre.models.load import find_model
from gyre.process import take_descriptors
from gyre.proxy.adapters.registry import find_adapter
from gyre.proxy.bounds import BOUNDS, Bounds
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.errors import TemplateUnusable
from gyre.proxy.session import Limits, Session
from gyre.proxy.template import Template
from services.address import listening, reached
from services.alongside import until_one_fails
from services.exits import Hopeless
from services.hearing import snapshot_file
from services.place import Place
from services.proxy.calls import Calls
from services.proxy.draw import Engines
from services.proxy.gate import Gate
from services.proxy.http import OneLine, proxy_app
from services.proxy.moves import Connect, Moves
from services.proxy.routes import RouteSpeech
from services.proxy.world import ADAPTER, World
from services.speaker import Speaker

KEEP_ALIVE_SECONDS = 10.0
PORT = "GYRE_PROXY_PORT"
_BIND_SECONDS = 10.0
_SHUTDOWN_SECONDS = 2.0
_SEAL_PAUSE_SECONDS = 1.0
_IDLE_PAUSE_SECONDS = 0.2
_MOST_HEADERS = 64
_UNREAD_BYTES = 1 << 16
"""Of each connection, about twice: what came while nobody reads, which no bound counts."""
_LOG = logging.getLogger(__name__)


class ProxyFailed(Hopeless):
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
    address: str = ""
    """What harnesses are told instead of `host`, where they are elsewhere."""
    port: int = 0
    """From `GYRE_PROXY_PORT`, where a network's rules name one. 0: the one that `proxy.url` names, so that a restarted
    proxy is found again; else any free one."""
    harness: str = "auto"
    """Whose marks tell main calls, sub-agents and summaries apart: see `gyre.proxy.adapters.registry.find_adapter`."""
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    tool_parser: str = "auto"
    thinking_parser: str = "auto"
    """As `rollout.tool_parser` and `rollout.thinking_parser` say."""
    handoff_seconds: float = 2.0
    """As `cells.handoff_seconds` says."""
    trainers: int = 0
    """Cells 0..trainers-1 serve nobody."""
    bounds: Bounds = BOUNDS


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
        tool_parser=config.rollout.tool_parser,
        thinking_parser=config.rollout.thinking_parser,
        harness=config.harness.adapter,
        host=listening(),
        address=reached(),
        port=int(os.environ.get(PORT, "0")),
        handoff_seconds=config.cells.handoff_seconds,
        trainers=config.cells.trainers,
    )
    file = snapshot_file(place, "proxy", ADAPTER, 1)
    await serve_proxy(bus, settings, snapshots=file)


async def serve_proxy(
    bus: BusPort,
    settings: ProxySettings,
    connect: Connect = RemoteEngine,
    snapshots: SnapshotFile[Routes] | None = None,
) -> None:
    """Serve until cancelled; the URL is in `<run folder>/proxy.url` from the moment that it accepts connections.

    Raises:
        ProxyFailed: no secret, an unusable model folder, or a port in use.
    """
    try:
        secret = settings.secret.read_bytes()
        template = await asyncio.to_thread(lambda: _template(settings))
    except (OSError, TemplateUnusable) as error:
        raise ProxyFailed(f"proxy: cannot start: {error}") from error
    world = World(bus, secret, settings.seed, settings.trainers, snapshots)
    limits = Limits(settings.temperature, settings.max_tokens, settings.context_tokens)
    harness = find_adapter(settings.harness)
    speaker = Speaker(bus)
    routes = RouteSpeech(bus, world, speaker)
    moves = Moves(world, speaker, routes, connect, settings.handoff_seconds)
    engines = Engines(world, moves, bus.instance, template.stop_token_ids)
    calls = Calls(
        bus, world, engines, speaker, routes, lambda name, seed: Session(name, seed, template, limits, harness)
    )
    following = asyncio.create_task(world.follow())
    ready = asyncio.create_task(world.caught_up())
    gate = Gate(settings.bounds)
    runner = _runner(proxy_app(world, calls, gate, ready, settings.context_tokens, settings.keep_alive_seconds))
    try:
        take_descriptors()
        await runner.setup()
        await _listen(runner, settings)
        await until_one_fails(
            following, _seal(world, calls, ready), _move(moves, ready), _shed(runner, gate, world, ready)
        )
    finally:
        following.cancel()
        ready.cancel()
        await calls.close()
        await runner.cleanup()
        await calls.last_words()
        await moves.close()
        world.save()


def _runner(app: web.Application) -> web.AppRunner:
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=OneLine(logging.getLogger("aiohttp.server")),
        shutdown_timeout=_SHUTDOWN_SECONDS,
        read_bufsize=_UNREAD_BYTES,
        max_headers=_MOST_HEADERS,
    )


async def _shed(runner: web.AppRunner, gate: Gate, world: World, ready: "asyncio.Task[None]") -> None:
    """Close connections that ask nothing where there are very many: their clients open others."""
    await asyncio.shield(ready)  # until then, all requests wait, and nobody knows how many may be
    while True:
        await asyncio.sleep(_IDLE_PAUSE_SECONDS)
        connections = runner.server.connections if runner.server else ()
        for connection in gate.idle(connections, world.clients()):
            if connection.transport is not None:
                connection.transport.abort()


async def _move(moves: Moves, ready: "asyncio.Task[None]") -> None:
    await asyncio.shield(ready)
    await moves.run()


def _template(settings: ProxySettings) -> Template:
    return Template(ChatModel.load(settings.model), settings.tool_parser, settings.thinking_parser)


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
                    seals.create_task(_sealed(calls, execution))
                begun = set(closing)
                if world.routes.evaluations is not evaluations:
                    evaluations = world.routes.evaluations
                    await calls.drop_scored()
                if world.sequence == seen:
                    await world.changed()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed


async def _sealed(calls: Calls, execution: str) -> None:
    """Seal one execution, when the log and the disk take it."""
    while True:
        try:
            return await calls.seal(execution)
        except (StreamFull, OSError) as error:
            _LOG.error("execution %s: cannot be sealed yet: %s", execution, error)
        await asyncio.sleep(_SEAL_PAUSE_SECONDS)


async def _listen(runner: web.AppRunner, settings: ProxySettings) -> None:
    """Bind, waiting a little for an earlier proxy to let go of the port, and write the URL."""
    note = settings.folder / "proxy.url"
    port = settings.port or await asyncio.to_thread(_noted_port, note, settings.host)
    deadline = time.monotonic() + _BIND_SECONDS
    while True:
        try:
            await web.SockSite(runner, listener(settings.host, port)).start()
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise ProxyFailed(_unusable(settings, port, error)) from error
        await asyncio.sleep(0.1)
    bound = runner.addresses[0][1]
    partial = note.with_suffix(".url.part")
    partial.write_text(f"http://{at(settings.address or settings.host, bound)}")
    partial.replace(note)
    _LOG.info("proxy listens at http://%s:%d", settings.host, bound)


def _unusable(settings: ProxySettings, port: int, error: OSError) -> str:
    """What is wrong with the port, and the way out: harnesses that run know no other, those of a resumed run do."""
    way = "" if settings.port else f", or delete {settings.folder / 'proxy.url'} and resume: another port is taken"
    return f"proxy: port {port} on {settings.host} cannot be used: {error.strerror}; end what uses it{way}"


def _noted_port(note: Path, host: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(note.read_text().strip().rpartition(":")[2])
    return lasting_port(host)
