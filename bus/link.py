"""One connection to the server that reconnects for ever, and tells who asks when it did.

nats-py ends its read loop when an error callback raises, and gives up after 60 tries by default; neither may happen
here.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus import answers
from bus.errors import Denied, NoStream, Unavailable
from bus.pipeline import Pipeline

LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_CLOSE_SECONDS = 5.0
_PENDING_BYTES = 8 << 20
Who = tuple[str, str]
"""User and password."""
NOBODY: Who = ("", "")
_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)


class LostError(Exception):
    """A request was not answered: the connection changed, or time is up."""


class Link:
    """A connection; `generation` counts how often it was made anew."""

    def __init__(self, url: str, patience_seconds: float, who: Callable[[], Who] = lambda: NOBODY) -> None:
        """Remember where to; `open` connects. `who` is asked each time: another server may want another login."""
        self.url, self.patience_seconds, self._who = url, patience_seconds, who
        self.nc = Client()
        self.generation = 0
        self.up = asyncio.Event()
        self._trouble = ""
        self._watchers: set[Callable[[], None]] = set()
        self._refusals: set[Callable[[str], bool]] = set()
        self._told: set[str] = set()
        self._opened = False
        self._subscriptions: set[Subscription] = set()

    async def open(self, name: str, inbox: str) -> "Link":
        """Connect; `Unavailable` when no server answers within patience, `Denied` when it does not take the login."""
        connecting = self.nc.connect(
            servers=[self.url],
            name=name,
            user=lambda: self._who()[0],
            password=lambda: self._who()[1],
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
        except Denied:
            await self.close()
            raise
        except (TimeoutError, nats.errors.Error, OSError) as error:
            await self.close()
            why = self._trouble or line(error)
            raise Unavailable(
                f"url {self.url}: no NATS server answers ({why}); start one or correct the URL"
            ) from error
        self._opened = True
        self.pipeline = Pipeline(self.nc)
        await self.subscribe(self.pipeline.filter, self.pipeline.on_answer)
        self.up.set()
        return self

    @property
    def user(self) -> str:
        """As whom, for messages."""
        return self._who()[0] or "without a name"

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call this (must not raise) whenever the connection was lost or made anew."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Stop calling it."""
        self._watchers.discard(watcher)

    def watch_refusals(self, watcher: Callable[[str], bool]) -> None:
        """Call this (must not raise) with each subject, in lower case, on which the server lets us say nothing.

        It tells whether that was its own; what is nobody's is logged.
        """
        self._refusals.add(watcher)

    def unwatch_refusals(self, watcher: Callable[[str], bool]) -> None:
        """Stop calling it."""
        self._refusals.discard(watcher)

    def denied(self, subject: str) -> Denied:
        """The error for a subject that this user may not use."""
        return Denied(
            f"subject {subject}: user {self.user} may not publish there on {self.url}; "
            "`gyre users` tells what each user may do"
        )

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

    async def exchange(
        self, send: Callable[[int], Awaitable[None]], seconds: float, subjects: Collection[str] = ()
    ) -> Msg:
        """Send under a pipeline token and wait for its answer.

        Raises:
            LostError: the connection changed first, or time is up.
            Denied: this user may not publish on one of the `subjects` that are sent on.
        """
        outcome: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def lost() -> None:
            if not outcome.done():
                outcome.set_exception(LostError("the connection was lost"))

        def refused(subject: str) -> bool:
            ours = [each for each in subjects if each.lower() == subject]
            if ours and not outcome.done():
                outcome.set_exception(self.denied(ours[0]))
            return bool(ours)

        token = self.pipeline.expect(lambda message: None if outcome.done() else outcome.set_result(message))
        self.watch(lost)
        self.watch_refusals(refused)
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
            self.unwatch_refusals(refused)
            self.pipeline.forget(token)
            if not outcome.cancel() and not outcome.cancelled():
                outcome.exception()  # seen, even where sending failed first

    async def ask(self, subject: str, request: dict[str, Any] | None = None) -> Msg:
        """One repeatable request to the server. Raises `Denied`, or `Unavailable` without an answer in patience."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_seconds
        body = orjson.dumps(request) if request else b""
        while True:
            try:
                message = await self.exchange(
                    lambda token: self.pipeline.send(token, subject, body), _ANSWER_SECONDS, (subject,)
                )
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
        """The last sequence of a stream. Raises as `stream` does."""
        return int((await self.stream(stream))["state"]["last_seq"])

    async def stream(self, name: str) -> dict[str, Any]:
        """State and configuration of a stream.

        Raises:
            NoStream: there is none.
            Unavailable: its servers have not chosen a leader in patience.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_seconds
        while True:
            answer = await self.api(f"STREAM.INFO.{name}")
            if "error" not in answer:
                return answer
            why = answer["error"]["description"]
            if answer["error"]["err_code"] == answers.STREAM_NOT_FOUND:
                raise NoStream(f"stream {name} is not on {self.url}: provision the run first ({why})")
            if loop.time() > deadline:
                raise Unavailable(f"url {self.url}: stream {name} tells nothing of itself ({why})")
            await asyncio.sleep(_PAUSE_SECONDS)

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
        """Must not raise once there is a connection; before, raising ends the tries."""
        self._trouble = line(error)
        LOG.debug("nats: %s", self._trouble)
        if found := _DENIED.search(self._trouble):
            self._refuse(*found.groups())
        elif not self._opened and "authorization violation" in self._trouble.lower():
            raise Denied(
                f"url {self.url}: the server does not take user {self.user} with this password; see `gyre users --help`"
            )

    def _refuse(self, how: str, subject: str) -> None:
        publishing = how.lower() == "publish"
        told = [watcher(subject.lower()) for watcher in tuple(self._refusals)] if publishing else []
        if not any(told) and f"{how} {subject}" not in self._told:
            self._told.add(f"{how} {subject}")
            LOG.warning("user %s: no permission for %s to %s", self.user, how.lower(), subject)

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
