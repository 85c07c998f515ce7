"""OpenTelemetry: a run's log as traces, sent to a collector over OTLP.

An independent reader of EV and CALL: as a service of a run (`telemetry.otlp_endpoint`, or the standard variables
`OTEL_EXPORTER_OTLP_*`), or over any run or archive: `gyre attach services.traces:Traces RUN --durable traces`. Nothing
of the run waits for it. What a collector does not take is sent again before anything else is read, so that memory is
bounded; a span that was sent twice has the same id both times.
"""

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from bus import codec
from bus.blobs import Blobs
from bus.errors import BusError
from bus.log import BusPort, Log, Stored
from bus.workqueue import decode
from schemas.speakers import Stream
from services.attached import Worker
from services.consumer import At, ConsumerError, NotYet, Position
from services.ending import Ending
from services.place import Place
from services.spans import KINDS, Open, Span, Spans

LOG = logging.getLogger("gyre")
AGAIN_SECONDS = (1.0, 30.0)
"""Before sending again: at first, and at most."""
_MOST_SPANS = 512
_LAST_SECONDS = 5.0


class Traces:
    """An attached consumer that sends spans."""

    reads = KINDS

    def __init__(self, endpoint: str = "") -> None:
        """`endpoint` of a collector (http://host:4318); "" leaves it to the environment."""
        try:
            from services.otlp import Collector
        except ImportError as error:
            raise ConsumerError(f"traces: {error}; install gyre[otel]") from error
        self._collector = Collector(endpoint)
        self._spans: Spans | None = None
        self._kept = Open()
        self._waiting: list[Span] = []
        self._stopping = threading.Event()

    def handle(self, event: Any, at: At) -> None:
        """One event more; what it ends is sent in good time."""
        if self._spans is None:
            self._spans = Spans(at.run, self._kept)
        self._waiting += self._spans.take(event, at.commit.time, at.sequence)
        if len(self._waiting) >= _MOST_SPANS:
            self._send()

    def save(self) -> Any:
        """What is counted as read has been sent. Raises `NotYet`: it was not, and has to be read again."""
        self._send()
        if self._waiting:
            raise NotYet(f"traces: {len(self._waiting)} spans or more were not sent; whoever goes on sends them")
        return dataclasses.asdict(self._spans.open if self._spans else self._kept)

    def load(self, kept: Any) -> None:
        """What had begun."""
        self._kept = Open(**kept)

    def stop(self) -> None:
        """Send no more, even what waits: it is sent by who goes on from what was kept before it."""
        self._stopping.set()

    def close(self) -> None:
        """Let go of the collector."""
        self._collector.close()

    def _send(self) -> None:
        pause, most = AGAIN_SECONDS
        while self._waiting and not self._stopping.is_set():
            batch = self._waiting[:_MOST_SPANS]
            if self._collector.takes(batch):
                del self._waiting[: len(batch)]
                continue
            LOG.warning("traces: the collector does not take them; trying again in %g s", pause)
            self._stopping.wait(pause)
            pause = min(2 * pause, most)


async def serve(place: Place, bus: BusPort) -> None:
    """Send the run's traces until cancelled, and then what there is of them yet."""
    consumer, ending = Traces(place.config.telemetry.otlp_endpoint), Ending()
    position = Position.load(place.folder / "snapshots" / "traces.json", "traces")
    worker = Worker(consumer, position, ending)
    logs: dict[Stream, Log] = {"EV": bus.ev, "CALL": bus.calls}
    begin = {stream: position.sequences.setdefault(stream, 0) for stream in logs}
    working = asyncio.ensure_future(
        worker.run({stream: _decoded(log, bus.blobs, begin[stream]) for stream, log in logs.items()})
    )
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await _finish(working, logs, ending)
        raise
    finally:
        worker.stop()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        position.close()


async def _finish(working: "asyncio.Future[None]", logs: Mapping[Stream, Log], ending: Ending) -> None:
    """A run that is finished ends this process at once: what was said by then is sent, if that can be done soon."""
    with contextlib.suppress(TimeoutError, BusError):
        async with asyncio.timeout(_LAST_SECONDS):
            ending.until |= {stream: await log.head() for stream, log in logs.items()}
            ending.news.set()
            await working


async def _decoded(log: Log, blobs: Blobs, after: int) -> AsyncGenerator[list[Stored], None]:
    async with aclosing(log.chunks(after)) as chunks:
        async for chunk in chunks:
            yield [await decode(*raw, blobs) if codec.is_stub(raw[2]) else codec.decode(*raw, blobs) for raw in chunk]
