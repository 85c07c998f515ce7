"""One reading session: an ephemeral pull consumer that needs no acknowledgements, with overlapping requests.

Without a filter the stream's sequences must be consecutive; with one, the consumer's own must be.

A session ends, for good, at the first sign that something may be missing; the reader then makes a new one from its own
position. nats-py's ordered consumer loses silently at its pending limit and its `fetch` stalls on orphaned requests.
"""

import asyncio
import contextlib
from collections import deque

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus import answers
from bus.errors import BusError, LogDamaged, NoStream, Unavailable
from bus.link import Link
from bus.positions import positions

Raw = tuple[int, str, bytes]
"""(sequence, subject, stored bytes)."""

_BATCH = 256
_CHUNK = 128
_HEARTBEAT_SECONDS = 1.0
_EXPIRES_SECONDS = 30.0
_MISSED_SECONDS = 2.5 * _HEARTBEAT_SECONDS
_IDLE_SECONDS = 30.0
_REQUEST = orjson.dumps(
    {"batch": _BATCH, "expires": int(_EXPIRES_SECONDS * 1e9), "idle_heartbeat": int(_HEARTBEAT_SECONDS * 1e9)}
)


class Session:
    """Messages of one stream after a sequence, checked as they come; at most two batches wait in memory."""

    def __init__(self, link: Link, stream: str, after: int, filter: str, name: str = "") -> None:  # noqa: A002
        """`open` begins. `name` is the consumer's, where it must be a certain one."""
        self._link, self._stream, self._after, self._filter = link, stream, after, filter
        self._inbox = link.nc.new_inbox()
        self._name = name or self._inbox.rpartition(".")[2]
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{self._name}"
        self._subscription: Subscription | None = None
        self._wanted = 0
        self._heard = asyncio.Event()
        self._waiting: deque[Msg] = deque()
        self._taken = 0
        self._given = 0
        self._over = False
        self._denied = False

    async def open(self) -> "Session":
        """Make the consumer and ask for the first two batches."""
        self._link.watch(self._end)
        self._link.watch_refusals(self._on_refusal)
        await self._make_consumer()
        self._subscription = await self._link.subscribe(self._inbox, self._on_message)
        await self._ask()
        await self._ask()
        return self

    async def next(self) -> list[Raw]:
        """The next messages, in order and without a gap; [] once the session is over or has gone silent.

        Raises:
            LogDamaged: a session's very first message is not the one asked for: the stream itself lacks a sequence.
            Denied: this user may not read here.
        """
        await self._more_is_wanted()
        while not self._waiting:
            self._heard.clear()
            if self._denied:
                raise self._link.denied(self._next)
            if self._over or not await self._hear():
                return []
        chunk = [self._waiting.popleft() for _ in range(min(_CHUNK, len(self._waiting)))]
        self._taken += len(chunk)
        return self._in_order(chunk)

    async def close(self) -> None:
        """Drop the consumer (the server would, half a minute later)."""
        self._link.unwatch(self._end)
        self._link.unwatch_refusals(self._on_refusal)
        self._over = True
        if self._subscription is not None:
            await self._link.unsubscribe(self._subscription)
        with contextlib.suppress(nats.errors.Error, OSError):
            if self._link.up.is_set():
                await self._drop_consumer()

    async def _make_consumer(self) -> None:
        config = {
            "name": self._name,
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._after + 1,
            "replay_policy": "instant",
            "mem_storage": True,
            "inactive_threshold": int(_IDLE_SECONDS * 1e9),
        }
        call = f"CONSUMER.CREATE.{self._stream}.{self._name}"
        if self._filter:
            config["filter_subject"] = self._filter
            call += f".{self._filter}"
        answer = await self._link.api(call, {"stream_name": self._stream, "config": config})
        if "error" in answer:
            raise self._no_consumer(answer["error"])

    async def _drop_consumer(self) -> None:
        await self._link.nc.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}")

    def _no_consumer(self, error: dict[str, str | int]) -> BusError:
        if error["err_code"] == answers.STREAM_NOT_FOUND:
            return NoStream(f"stream {self._stream} is not on {self._link.url}: provision the run first")
        return Unavailable(f"stream {self._stream}: cannot be read now ({error['description']})")

    async def _hear(self) -> bool:
        try:
            async with asyncio.timeout(_MISSED_SECONDS):
                await self._heard.wait()
        except TimeoutError:
            return False
        return True

    def _in_order(self, chunk: list[Msg]) -> list[Raw]:
        found: list[Raw] = []
        for message in chunk:
            _, sequence, given = positions(message)
            if given != self._given + 1 or not (self._filter or sequence == self._after + 1):
                self._end()
                self._check_damage(sequence, given)
                break
            self._after, self._given = sequence, given
            found.append((sequence, message.subject, message.data))
        return found

    def _check_damage(self, sequence: int, given: int) -> None:
        if given == 1 and sequence > self._after + 1:
            raise LogDamaged(
                f"stream {self._stream}: sequence {self._after + 1} is missing before {sequence}; restore the store"
            )

    async def _more_is_wanted(self) -> None:
        """Ask for a batch when one batch is all that is still to come."""
        self._wanted -= self._taken
        self._taken = 0
        if self._wanted <= _BATCH and not self._over:
            await self._ask()

    async def _ask(self) -> None:
        self._wanted += _BATCH
        await self._link.nc.publish(self._next, _REQUEST, self._inbox)

    async def _on_message(self, message: Msg) -> None:
        status = message.headers.get("Status") if message.headers else None
        if status is None or message.reply.startswith("$JS.ACK."):
            self._waiting.append(message)
        elif status in ("404", "408"):
            await self._on_expired(message)
        elif status != "100" and (message.headers or {}).get("Description") != "Batch Completed":
            self._end()
        self._heard.set()

    async def _on_expired(self, message: Msg) -> None:
        self._wanted -= int((message.headers or {}).get("Nats-Pending-Messages", _BATCH))
        if not self._over:
            await self._ask()

    def _on_refusal(self, subject: str) -> bool:
        if subject != self._next.lower():
            return False
        self._denied = True
        self._end()
        return True

    def _end(self) -> None:
        self._over = True
        self._heard.set()
