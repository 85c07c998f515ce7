"""One connection to the server that reconnects for ever, and tells who asks when it did.

nats-py ends its read loop when an error callback raises, and gives up after 60 tries by default; neither may happen
here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.errors import NoStream, Unavailable
from bus.pipeline import Pipeline

LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_CLOSE_SECONDS = 5.0
_PENDING_BYTES = 8 << 20


class LostError(Exception):
    """A request was not answered: the connection changed, or time is up."""


class Link:
    """A connection; `generation` counts how often it was made anew."""

    def __init__(self, url: str, patience_seconds: float) -> None:
        """Remember where to; `open` connects."""
        self.url, self.patience_seconds = url, patience_seconds
        self.nc = Client()
        self.generation = 0
        self.up = asyncio.Event()
        self._trouble = ""
        self._watchers: set[Callable[[], None]] = set()
        self._subscriptions: set[Subscription] = set()

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
            async with asyncio.timeout(self.patience_seconds):
                await connecting
        except (TimeoutError, nats.errors.Error, OSError) as error:
            await self.close()
            why = self._trouble or line(error)
            raise Unavailable(
                f"url {self.url}: no NATS server answers ({why}); start one or correct the URL"
            ) from error
        self.pipeline = Pipeline(self.nc)
        await self.subscribe(self.pipeline.filter, self.pipeline.on_answer)
        self.up.set()
        return self

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call this (must not raise) whenever the connection was lost or made anew."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Stop calling it."""
        self._watchers.discard(watcher)

    async def subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Listen, across reconnects, until `unsubscribe` or the end."""
        subscription = await self.nc.subscribe(subject, cb=callback, pending_bytes_limit=0)
        self._subscriptions.add(subscription)
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Stop listening; harmless without a connection."""
        self._subscriptions.discard(subscription)
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()

    async def exchange(self, send: Callable[[int], Awaitable[None]], seconds: float) -> Msg:
        """Send under a pipeline token and wait for its answer; `LostError` when the connection changes first."""
        outcome: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def lost() -> None:
            if not outcome.done():
                outcome.set_exception(LostError("the connection was lost"))

        token = self.pipeline.expect(lambda message: None if outcome.done() else outcome.set_result(message))
        self.watch(lost)
        try:
            if not self.up.is_set():
                raise LostError("not connected")
            async with asyncio.timeout(seconds):
                await send(token)
                return await outcome
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise LostError(line(error)) from error
        finally:
            self.unwatch(lost)
            self.pipeline.forget(token)
            if not outcome.cancel() and not outcome.cancelled():
                outcome.exception()  # seen, even where sending failed first

    async def ask(self, subject: str, request: dict[str, Any] | None = None) -> Msg:
        """One repeatable request to the server; `Unavailable` when it does not answer within patience."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_seconds
        body = orjson.dumps(request) if request else b""
        while True:
            try:
                message = await self.exchange(lambda token: self.pipeline.send(token, subject, body), _ANSWER_SECONDS)
                if not _nobody(message):
                    return message
                why = "nobody answers there"
            except LostError as error:
                why = str(error)
            if self.nc.is_closed or loop.time() > deadline:
                raise Unavailable(f"url {self.url}: no answer to {subject} ({why})")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def api(self, call: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call of `$JS.API`; the answer may hold an `error` with `err_code` and `description`."""
        answer: dict[str, Any] = orjson.loads((await self.ask(f"$JS.API.{call}", request)).data)
        return answer

    async def last_sequence(self, stream: str) -> int:
        """The last sequence of a stream; `NoStream` where there is none."""
        answer = await self.api(f"STREAM.INFO.{stream}")
        if "error" in answer:
            why = answer["error"]["description"]
            raise NoStream(f"stream {stream} is not on {self.url}: provision the run first ({why})")
        return int(answer["state"]["last_seq"])

    async def close(self) -> None:
        """Flush what was said and disconnect."""
        self.up.clear()
        for subscription in tuple(self._subscriptions):
            await self.unsubscribe(subscription)
        # RuntimeError: what is left to say is written to a connection that a killed server has closed already (uvloop).
        with contextlib.suppress(TimeoutError, nats.errors.Error, OSError, RuntimeError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.nc.close()

    async def _on_error(self, error: Exception) -> None:
        self._trouble = line(error)
        LOG.debug("nats: %s", self._trouble)

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


def line(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _nobody(message: Msg) -> bool:
    return not message.data and (message.headers or {}).get("Status") == "503"
