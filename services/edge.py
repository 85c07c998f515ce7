"""The edge of one service process: health, readiness, metrics and a status command, carried by FastStream.

It says how the process does and never what it decides: nothing here appends to a log, and only the scheduler's edge
reads one, for the numbers of the run as a whole (design §4 rule 9). A subscription to a stream would need
`JStream(name, declare=False)`, or FastStream would rewrite the stream's configuration; there is none. Importing this
module costs about a second, so only `--edge` does.

    GET /health          200 while the process runs
    GET /ready           200 once the replay lag is below READY_LAG, else 503; both with the status as JSON
    GET /metrics         in the Prometheus text format: docs/metrics.md lists what
    GET /asyncapi.json   what is served on NATS
    cmd.<run>.<service>.status   request on core NATS; every process of that service answers with its status
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import cast

import orjson
import uvicorn
from faststream.asgi import AsgiFastStream, AsgiResponse, get
from faststream.asgi.types import Scope
from faststream.nats import NatsBroker
from faststream.security import SASLPlaintext
from faststream.specification import AsyncAPI
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict

from bus import credentials, subjects
from bus.errors import BusError
from bus.log import BusPort
from gyre.addresses import listener
from services.address import listening, url
from services.lag import FollowedBus, Position
from services.meters import Meters
from services.place import Place
from services.run_meters import RunMeters

LOG = logging.getLogger("gyre")
READY_LAG = 1000
"""Sequences that a ready service may be behind."""
_ANSWER_SECONDS = 2.0
_AGAIN_SECONDS = 5.0
PORT = "GYRE_EDGE_PORT"
"""Environment variable: the port to listen at; without it any free one, which is noted in the run folder."""
_JSON = {"content-type": "application/json"}
Positions = Callable[[], Awaitable[Mapping[str, Position]]]
"""Gives log -> where a process stands in it."""


class Status(BaseModel):
    """What a process says of itself."""

    model_config = ConfigDict(frozen=True)

    run: str
    service: str
    instance: str
    sequence: int | None
    """Everything in EV up to here was read; null when the log did not answer in time."""
    lag: int | None
    """Sequences still to be read."""
    ready: bool


@asynccontextmanager
async def beside(place: Place, bus: BusPort, cell: int | None) -> AsyncIterator[BusPort]:
    """An edge beside a service that uses the bus which this gives."""
    meters = Meters(place)
    followed = FollowedBus(bus, meters)
    tasks = [asyncio.create_task(serve_edge(place, followed.positions, cell, meters))]
    if place.service == "scheduler":
        whole = RunMeters(meters, place.config.cells)
        meters.before.append(whole.show)
        tasks.append(asyncio.create_task(whole.follow(bus)))
    try:
        yield followed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve_edge(place: Place, positions: Positions, cell: int | None = None, meters: Meters | None = None) -> None:
    """Serve until cancelled; what goes wrong here is said and tried again, and never ends the service.

    Without a port of its own (`GYRE_EDGE_PORT`) its address stands in `<run folder>/edge/<service>[-<cell>].json`.
    """
    note = place.folder / "edge" / f"{place.service if cell is None else f'{place.service}-{cell}'}.json"
    while True:
        try:
            await _serve(place, positions, note, meters or Meters(place))
        except Exception as error:  # noqa: BLE001 - a process's edge: the service goes on without it
            LOG.warning("edge of %s: %s; trying again in %g s", place.instance, error, _AGAIN_SECONDS)
        await asyncio.sleep(_AGAIN_SECONDS)


async def _serve(place: Place, positions: Positions, note: Path, meters: Meters) -> None:
    broker, app = application(place, positions, meters)
    port = int(os.environ.get(PORT, "0"))
    with listener(listening(), port) as held:  # whoever reads the note may connect at once
        server = _Server(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
            )
        )
        async with broker:
            await broker.start()
            with nullcontext() if port else _noted(note, place, held.getsockname()[1]):
                await _until_cancelled(server, held)


async def _until_cancelled(server: uvicorn.Server, held: socket.socket) -> None:
    serving = asyncio.create_task(server.serve(sockets=[held]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_AGAIN_SECONDS):
                await serving


class _Server(uvicorn.Server):
    """Signals are the service's own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


@contextmanager
def _noted(note: Path, place: Place, port: int) -> Iterator[None]:
    """Say in the run folder where this edge is, for as long as it is there."""
    said = {"url": url(port), "pid": os.getpid(), "instance": place.instance}
    note.parent.mkdir(exist_ok=True)
    partial = note.with_suffix(f".{os.getpid()}")
    partial.write_bytes(orjson.dumps(said))
    partial.replace(note)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            if json.loads(note.read_bytes())["instance"] == place.instance:
                note.unlink()


class _Renewed(SASLPlaintext):
    """A login that is looked up for each connection: passwords are renewed while a process runs."""

    def __init__(self, place: Place) -> None:
        def now() -> credentials.Login:
            return credentials.login(place.url, place.folder, place.service)

        # FastStream hands them on as they are, and the client below it calls what can be called
        super().__init__(cast("str", lambda: now().user), cast("str", lambda: now().password))


def application(place: Place, positions: Positions, meters: Meters) -> tuple[NatsBroker, AsgiFastStream]:
    """The FastStream broker and app of one process; its owner starts and stops the broker."""
    login = credentials.login(place.url, place.folder, place.service)
    inbox = login.inbox(place.service)
    broker = NatsBroker(
        login.url,
        name=f"{place.instance}-edge",
        security=_Renewed(place) if login.user else None,
        inbox_prefix=f"_INBOX.{inbox}",
        middlewares=(meters.middleware,),
        max_reconnect_attempts=-1,
        reconnect_time_wait=1,
        logger=None,
    )

    @broker.subscriber(subjects.command(place.run, place.service, "status"), inbox_prefix=f"_INBOX.{inbox}.".encode())
    async def status() -> Status:
        return await status_of(place, positions)

    @get
    async def health(_: Scope) -> AsgiResponse:
        return _answer(await status_of(place, positions), 200)

    @get
    async def ready(_: Scope) -> AsgiResponse:
        found = await status_of(place, positions)
        return _answer(found, 200 if found.ready else 503)

    @get
    async def metrics(_: Scope) -> AsgiResponse:
        found = await _positions(positions)
        meters.standing(_is_ready(found), found)
        return AsgiResponse(meters.exposition(), 200, {"content-type": CONTENT_TYPE_LATEST})

    @get
    async def asyncapi(_: Scope) -> AsgiResponse:
        return AsgiResponse(app.schema.to_specification().to_json().encode(), 200, _JSON)

    routes = (("/health", health), ("/ready", ready), ("/metrics", metrics), ("/asyncapi.json", asyncapi))
    described = AsyncAPI(title=f"gyre {place.service}", version="1")
    app = AsgiFastStream(broker, asgi_routes=routes, logger=None, specification=described)
    return broker, app


async def status_of(place: Place, positions: Positions) -> Status:
    """How a process does now; never raises."""
    found = await _positions(positions)
    ev = found.get("EV")
    return Status(
        run=place.run,
        service=place.service,
        instance=place.instance,
        sequence=ev.sequence if ev else None,
        lag=ev.lag if ev else None,
        ready=_is_ready(found),
    )


async def _positions(positions: Positions) -> Mapping[str, Position]:
    """Where the process stands; nothing where its log does not answer in time."""
    with suppress(TimeoutError, BusError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await positions()
    return {}


def _is_ready(found: Mapping[str, Position]) -> bool:
    return "EV" in found and found["EV"].lag < READY_LAG


def _answer(status: Status, code: int) -> AsgiResponse:
    return AsgiResponse(status.model_dump_json().encode(), code, _JSON)
