"""One connection to the server that reconnects for ever, and tells who asks when it did.

nats-py ends its read loop when an error callback raises, and gives up after 60 tries by default; neither may happen
here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from bus.errors import NoStream, Unavailable

LOG = logging.getLogger(__name__)
API_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_PENDING_BYTES = 8 << 20


class Link:
    """A connection; `generation` counts how often it was made anew."""

    def __init__(self, url: str, patience_seconds: float) -> None:
        """Remember where to; `open` connects."""
        self.url, self.patience_seconds = url, patience_seconds
        self.nc = Client()
        self.js: JetStreamContext = self.nc.jetstream(timeout=API_SECONDS)
        self.generation = 0
        self.up = asyncio.Event()
        self._watchers: set[Callable[[], None]] = set()

    async def open(self, name: str, inbox: str) -> "Link":
        """Connect; `Unavailable` when no server answers within patience."""
        connecting = self.nc.connect(
            servers=[self.url],
            name=name,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            closed_cb=self._on_disconnect,
            connect_timeout=2,
            reconnect_time_wait=0.1,  # type: ignore[arg-type]  # annotated int, slept as it is
            max_reconnect_attempts=-1,
            ping_interval=10,
            pending_size=_PENDING_BYTES,
            inbox_prefix=f"_INBOX.{inbox}",
            skip_subject_validation=True,
        )
        try:
            await asyncio.wait_for(connecting, self.patience_seconds)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            await self.close()
            raise Unavailable(
                f"url {self.url}: no NATS server answers ({_line(error)}); start one or correct the URL"
            ) from error
        self.up.set()
        return self

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call this (must not raise) whenever the connection was lost or made anew."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Stop calling it."""
        self._watchers.discard(watcher)

    async def ask(self, subject: str, request: dict[str, Any] | None = None) -> Msg:
        """One repeatable request to the server; `Unavailable` when it does not answer within patience."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_seconds
        while True:
            try:
                return await self.nc.request(
                    subject, orjson.dumps(request) if request else b"", timeout=_ANSWER_SECONDS
                )
            except (TimeoutError, nats.errors.Error, OSError) as error:
                if self.nc.is_closed or loop.time() > deadline:
                    raise Unavailable(f"url {self.url}: no answer to {subject} ({_line(error)})") from error
            await asyncio.sleep(_PAUSE_SECONDS)

    async def last_sequence(self, stream: str) -> int:
        """The last sequence of a stream; `NoStream` where there is none."""
        answer = orjson.loads((await self.ask(f"$JS.API.STREAM.INFO.{stream}")).data)
        if "error" in answer:
            raise NoStream(
                f"stream {stream} is not on {self.url}: provision the run first ({answer['error']['description']})"
            )
        return int(answer["state"]["last_seq"])

    async def close(self) -> None:
        """Flush what was said and disconnect."""
        self.up.clear()
        with contextlib.suppress(TimeoutError, nats.errors.Error, OSError):
            await asyncio.wait_for(self.nc.close(), API_SECONDS)

    async def _on_error(self, error: Exception) -> None:
        LOG.debug("nats: %s", _line(error))

    async def _on_disconnect(self) -> None:
        self.up.clear()
        self._tell()

    async def _on_reconnect(self) -> None:
        self.generation += 1
        self.up.set()
        self._tell()

    def _tell(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
