"""The dashboard's HTTP face: the page, its data as JSON, and what is new as server-sent events. Read-only."""

import asyncio
import errno
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files

import orjson
from aiohttp import web

from bus.errors import BusError
from gyre.errors import GyreError
from services.dashboard import looks, panels_rollout
from services.dashboard.guard import HEALTH, Guard
from services.dashboard.listing import BadQuestion, Question, executions
from services.dashboard.page import ASSETS, TYPES
from services.dashboard.runs import Runs, UnknownRun
from services.dashboard.watch import Watch
from services.execution_log import ExecutionNotFound
from services.views.call_view import CallNotFound
from services.views.samples_view import NoSamples

ALIVE_SECONDS = 10.0
REST = 2.0
"""Times the processor time that an update took, before the next: a large run takes a third of a core at most."""
LEAST_SECONDS = 0.1
LATEST = 1e12
"""Seconds, and below it digits of a number: more than any run or list has."""
DIGITS = 9
_NOT_FOUND = (UnknownRun, ExecutionNotFound, CallNotFound, NoSamples)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RUNS = web.AppKey("runs", Runs)


class CannotListen(GyreError):
    """The address is not to be had; one line with the way out."""


def application(runs: Runs, guard: Guard) -> web.Application:
    """The app; it lets its runs go when it is cleaned up."""
    app = web.Application(middlewares=[guard.middleware, _refusals])
    app[RUNS] = runs
    run = "/api/runs/{run}"
    app.router.add_get("/", _page)
    app.router.add_get(HEALTH, _health)
    app.router.add_get("/assets/{name}", _asset)
    app.router.add_get("/api/runs", _runs)
    app.router.add_get(f"{run}/overview", _overview)
    app.router.add_get(f"{run}/live", _live, allow_head=False)
    app.router.add_get(f"{run}/executions", _executions)
    app.router.add_get(f"{run}/tasks", _tasks)
    app.router.add_get(f"{run}/tree/{{execution}}", _tree)
    app.router.add_get(f"{run}/sample/{{execution}}/{{leaf}}", _sample)
    app.router.add_get(f"{run}/call/{{call}}", _call)
    app.on_response_prepare.append(guard.sign)
    app.on_shutdown.append(_close)
    return app


async def _close(app: web.Application) -> None:
    await app[RUNS].close()


@dataclass(frozen=True, slots=True)
class _Problem:
    status: int
    text: str


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What people can mend as one line of JSON."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        problem = _Problem(error.status, error.reason)
    except BadQuestion as error:
        problem = _Problem(400, str(error))
    except _NOT_FOUND as error:
        problem = _Problem(404, str(error))
    except (GyreError, BusError, sqlite3.Error) as error:
        problem = _Problem(503, str(error))
    return _json({"error": problem.text}, problem.status)


async def _page(_: web.Request) -> web.StreamResponse:
    return _file("index.html")


async def _health(_: web.Request) -> web.StreamResponse:
    return _json({"ok": True})


async def _asset(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    if name not in ASSETS:
        raise web.HTTPNotFound
    return _file(name)


async def _runs(request: web.Request) -> web.StreamResponse:
    return _json(await asyncio.to_thread(request.app[RUNS].listed))


async def _overview(request: web.Request) -> web.StreamResponse:
    watch = _watch(request)
    sections = await watch.sections(_at(request))
    return _body(b"{" + b",".join(b'"%s":%s' % (name.encode(), body) for name, body in sections.items()) + b"}")


async def _live(request: web.Request) -> web.StreamResponse:
    """What is new of a run, section by section, as it comes."""
    watch = _watch(request)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    watch.viewers += 1
    try:
        with suppress(GyreError):  # its rows are lost; the page asks again, and they are read anew
            await _send(watch, response)
    finally:
        watch.viewers -= 1
    return response


async def _send(watch: Watch, response: web.StreamResponse) -> None:
    """For ever: the page goes, or the server does."""
    sent: dict[str, bytes] = {}
    while True:
        version = watch.version
        news = {name: body for name, body in (await watch.sections()).items() if sent.get(name) != body}
        sent |= news
        lines = [b"event: %s\ndata: %s\n\n" % (name.encode(), body) for name, body in news.items()]
        await response.write(b"".join(lines) + b"event: shown\ndata: %d\n\n" % version)
        await asyncio.sleep(max(LEAST_SECONDS, REST * watch.cost))
        await watch.newer(version, ALIVE_SECONDS)


async def _executions(request: web.Request) -> web.StreamResponse:
    watch, asked = _watch(request), request.query
    question = Question(
        status=asked.get("status", ""),
        text=asked.get("text", ""),
        sort=asked.get("sort", "dispatched"),
        descending=asked.get("order", "down") == "down",
        page=_whole(request, "page", 0),
        size=_whole(request, "size", 25),
    )
    return _json(await asyncio.to_thread(executions, watch.store.ask, _moment(request, watch), question))


async def _tasks(request: web.Request) -> web.StreamResponse:
    watch = _watch(request)
    page, text = max(0, _whole(request, "page", 0)), request.query.get("text", "")
    return _json(await asyncio.to_thread(panels_rollout.tasks, watch.store.ask, _moment(request, watch), page, text))


async def _tree(request: web.Request) -> web.StreamResponse:
    return _json(await looks.tree(await _watch(request).opened(), request.match_info["execution"]))


async def _sample(request: web.Request) -> web.StreamResponse:
    named = request.match_info
    start = max(0, _whole(request, "from", 0))
    return _json(await looks.sample(await _watch(request).opened(), named["execution"], named["leaf"], start))


async def _call(request: web.Request) -> web.StreamResponse:
    return _json(await looks.call(await _watch(request).opened(), request.match_info["call"]))


def _watch(request: web.Request) -> Watch:
    return request.app[RUNS].watch(request.match_info["run"])


def _moment(request: web.Request, watch: Watch) -> float:
    at = _at(request)
    return watch.seconds if at is None else at


def _at(request: web.Request) -> float | None:
    """Seconds since the run's first event; None: now."""
    given = request.query.get("at")
    if given is None:
        return None
    try:
        at = float(given)
    except ValueError:
        at = -1.0
    if not 0 <= at < LATEST:
        raise BadQuestion(f"at = {given[:80]}: seconds since the run's first event")
    return at


def _whole(request: web.Request, name: str, default: int) -> int:
    given = request.query.get(name, str(default))
    if not given.isdecimal() or len(given) > DIGITS:
        raise BadQuestion(f"{name} = {given[:80]}: a whole number")
    return int(given)


def _file(name: str) -> web.Response:
    body = (files("services.dashboard") / "assets" / name).read_bytes()
    return web.Response(body=body, content_type=TYPES[name.rpartition(".")[2]], charset="utf-8")


def _json(found: object, status: int = 200) -> web.Response:
    return _body(orjson.dumps(found), status)


def _body(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


@asynccontextmanager
async def served(runs: Runs, guard: Guard, host: str, port: int) -> AsyncIterator[str]:
    """Serve; gives the URL. Raises `CannotListen`."""
    runner = web.AppRunner(application(runs, guard), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await _listen(runner, host, port)
        bound = runner.addresses[0][1]
        yield f"http://[{host}]:{bound}/" if ":" in host else f"http://{host}:{bound}/"
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(f"--port {port}: another program listens there; choose another, or 0 for any") from error
        why = error.strerror or str(error)
        raise CannotListen(f"--host {host} --port {port}: cannot be listened on ({why}); choose others") from error


async def serve(runs: Runs, guard: Guard, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `say` is told the URL. Raises `CannotListen`."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with served(runs, guard, host, port) as url:
        say(url)
        await stopped.wait()
