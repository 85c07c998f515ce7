"""One reading session: an ephemeral pull consumer that needs no acknowledgements, with overlapping requests.

A session ends, for good, at the first sign that something may be missing; the reader then makes a new one from its own
position. nats-py's ordered consumer loses silently at its pending limit and its `fetch` stalls on orphaned requests.
"""

import asyncio
import contextlib
from collections import deque

import nats.errors
import nats.js.errors
import orjson
from nats.aio.msg import Msg
from nats.js import api

from bus.errors import NoStream, Unavailable
from bus.link import Link

_BATCH = 256
_HEARTBEAT_SECONDS = 1.0
_EXPIRES_SECONDS = 30.0
_MISSED_SECONDS = 2.5 * _HEARTBEAT_SECONDS
_IDLE_SECONDS = 30.0
_STREAM_NOT_FOUND = 10059
_REQUEST = orjson.dumps(
    {"batch": _BATCH, "expires": int(_EXPIRES_SECONDS * 1e9), "idle_heartbeat": int(_HEARTBEAT_SECONDS * 1e9)}
)


class Session:
    """Messages of one stream after a sequence, as the server sends them; at most two batches wait in memory."""

    def __init__(self, link: Link, stream: str, after: int, filter: str) -> None:  # noqa: A002
        """`open` begins."""
        self._link, self._stream, self._after, self._filter = link, stream, after, filter
        self._inbox = link.nc.new_inbox()
        self._name = self._inbox.rpartition(".")[2]
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{self._name}"
        self._wanted = 0
        self._heard = asyncio.Event()
        self.waiting: deque[Msg] = deque()
        self.over = False

    async def open(self) -> "Session":
        """Make the consumer and ask for the first two batches."""
        self._link.watch(self._end)
        await self._make_consumer()
        self._subscription = await self._link.nc.subscribe(self._inbox, cb=self._on_message, pending_bytes_limit=0)
        await self._ask()
        await self._ask()
        return self

    async def more(self) -> bool:
        """Wait until something is waiting; False when the session is over or has gone silent."""
        while not self.waiting and not self.over:
            self._heard.clear()
            try:
                await asyncio.wait_for(self._heard.wait(), _MISSED_SECONDS)
            except TimeoutError:
                return False
        return bool(self.waiting)

    async def taken(self, count: int) -> None:
        """So many were taken out of `waiting`: ask for more when one batch is all that is still to come."""
        self._wanted -= count
        if self._wanted <= _BATCH and not self.over:
            await self._ask()

    async def close(self) -> None:
        """Drop the consumer (the server would, half a minute later)."""
        self._link.unwatch(self._end)
        self.over = True
        with contextlib.suppress(nats.errors.Error, OSError, AttributeError):
            await self._subscription.unsubscribe()
        with contextlib.suppress(nats.errors.Error, OSError):
            if self._link.up.is_set():
                await self._link.nc.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}")

    async def _make_consumer(self) -> None:
        config = api.ConsumerConfig(
            name=self._name,
            ack_policy=api.AckPolicy.NONE,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._after + 1,
            filter_subject=self._filter or None,
            mem_storage=True,
            inactive_threshold=_IDLE_SECONDS,
        )
        try:
            await self._link.js.add_consumer(self._stream, config)
        except nats.js.errors.NotFoundError as error:
            raise NoStream(f"stream {self._stream} is not on {self._link.url}: provision the run first") from error
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise Unavailable(f"stream {self._stream}: cannot be read now ({error})") from error

    async def _ask(self) -> None:
        self._wanted += _BATCH
        await self._link.nc.publish(self._next, _REQUEST, self._inbox)

    async def _on_message(self, message: Msg) -> None:
        status = message.headers.get("Status") if message.headers else None
        if status is None or message.reply.startswith("$JS.ACK."):
            self.waiting.append(message)
        elif status in ("404", "408"):
            await self._on_expired(message)
        elif status != "100" and not (message.headers or {}).get("Description", "").startswith("Batch Completed"):
            self._end()
        self._heard.set()

    async def _on_expired(self, message: Msg) -> None:
        self._wanted -= int((message.headers or {}).get("Nats-Pending-Messages", _BATCH))
        if not self.over:
            await self._ask()

    def _end(self) -> None:
        self.over = True
        self._heard.set()
