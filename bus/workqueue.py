"""Pulling leased work from a queue stream, and finding what was poison.

Each request to the server ends by itself (no_wait, or its own expiry), so that no orphaned request swallows an item;
what still arrives for a caller that was cancelled is given back at once. An acknowledgement proves nothing about
ownership: the claim is an event in the log (design §4 rule 5).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import nats.errors
import orjson
from nats.aio.msg import Msg

from bus import codec, reader, streams
from bus.blobs import Blobs
from bus.link import Link
from bus.log import Delivery, QueueName, Stored
from bus.positions import positions

_SLACK_SECONDS = 2.0


@dataclass(slots=True)
class Item:
    """A delivered work item; implements `bus.log.Delivery`."""

    stored: Stored
    attempts: int
    _link: Link
    _reply: str

    async def ack(self) -> None:
        """See `Delivery`."""
        await self._say(b"+ACK")

    async def nak(self, delay_seconds: float = 0.0) -> None:
        """See `Delivery`."""
        await self._say(b'-NAK {"delay": %d}' % int(delay_seconds * 1e9) if delay_seconds > 0 else b"-NAK")

    async def extend(self) -> None:
        """See `Delivery`."""
        await self._say(b"+WPI")

    async def term(self, reason: str) -> None:
        """See `Delivery`."""
        await self._say(b"+TERM " + " ".join(reason.split()).encode())

    async def _say(self, word: bytes) -> None:
        # A word that is lost costs a redelivery, which the log makes harmless.
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._link.nc.publish(self._reply, word)


@dataclass(slots=True)
class _Request:
    """What one request to the server brought."""

    reply: str
    wanted: int
    messages: list[Msg] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class WorkQueue:
    """One worker's end of a work queue; implements `bus.log.Queue`. Pulls through the same object take turns."""

    def __init__(self, link: Link, blobs: Blobs, run: str, name: QueueName) -> None:
        """Subscribes at the first pull."""
        self._link, self._blobs = link, blobs
        stream = streams.queue_stream(run, name)
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{streams.WORKER}"
        self._inbox = link.nc.new_inbox()
        self._turn = asyncio.Lock()
        self._asked = 0
        self._listening = False
        self._denied = False
        self._current: _Request | None = None

    async def pull(self, batch: int, wait_seconds: float) -> list[Delivery]:
        """See `bus.log.Queue`."""
        async with self._turn:
            if not self._listening:
                await self._link.subscribe(f"{self._inbox}.*", self._on_message)
                self._link.watch_refusals(self._on_refusal)
                self._listening = True
            messages = await self._request(batch, {"no_wait": True}, _SLACK_SECONDS)
            if not messages and wait_seconds > 0:
                expires = max(1, int(wait_seconds * 1e9))
                messages = await self._request(1, {"expires": expires}, wait_seconds + _SLACK_SECONDS)
                if messages and batch > 1:
                    messages += await self._request(batch - 1, {"no_wait": True}, _SLACK_SECONDS)
        return [await self._deliver(message) for message in messages]

    async def _request(self, batch: int, how: dict[str, int | bool], patience: float) -> list[Msg]:
        self._asked += 1
        request = _Request(f"{self._inbox}.{self._asked}", batch)
        self._current = request
        self._link.watch(request.done.set)
        try:
            await self._ask(request, how)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await request.done.wait()
        except asyncio.CancelledError:
            await self._give_back(request.messages)
            raise
        finally:
            self._link.unwatch(request.done.set)
            self._current = None
        if self._denied:
            raise self._link.denied(self._next)
        return request.messages

    def _on_refusal(self, subject: str) -> bool:
        if subject != self._next.lower():
            return False
        self._denied = True
        if self._current is not None:
            self._current.done.set()
        return True

    async def _ask(self, request: _Request, how: dict[str, int | bool]) -> None:
        """Without a connection the request is not sent, and its patience becomes the wait for one."""
        if self._link.up.is_set():
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._link.nc.publish(self._next, orjson.dumps({"batch": request.wanted, **how}), request.reply)

    async def _on_message(self, message: Msg) -> None:
        """Items come under their own subject, whichever request asked; only a status names its request."""
        request = self._current
        if not message.reply:
            if request is not None and message.subject == request.reply:
                request.done.set()
        elif request is None or request.done.is_set():
            await self._give_back([message])
        else:
            request.messages.append(message)
            if len(request.messages) == request.wanted:
                request.done.set()

    async def _give_back(self, messages: list[Msg]) -> None:
        for message in messages:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._link.nc.publish(message.reply, b"-NAK")

    async def _deliver(self, message: Msg) -> Delivery:
        sequence, subject = source(message.headers or {}, message.subject)
        stored = await decode(sequence, subject, message.data, self._blobs)
        return Item(stored, positions(message)[0], self._link, message.reply)


def source(headers: dict[str, str], subject: str) -> tuple[int, str]:
    """(sequence, subject) in EV of a sourced message; 0 and its own subject where it names none."""
    words = headers.get("Nats-Stream-Source", "").split()
    if len(words) < 5 or not words[1].isdigit():  # noqa: PLR2004 (stream, sequence, filter, transform, subject, ...)
        return 0, subject
    return int(words[1]), words[4]


async def decode(sequence: int, subject: str, data: bytes, blobs: Blobs) -> Stored:
    """Decode stored bytes, in a thread where a blob must be read."""
    if codec.is_stub(data):
        return await asyncio.to_thread(codec.decode, sequence, subject, data, blobs)
    return codec.decode(sequence, subject, data, blobs)


@dataclass(slots=True)
class Poison:
    """A work item that ran out of deliveries; implements `bus.log.Parked`."""

    queue: QueueName
    stored: Stored
    attempts: int
    _link: Link
    _stream: str
    _sequence: int

    async def remove(self) -> None:
        """See `Parked`."""
        await self._link.ask(f"$JS.API.STREAM.MSG.DELETE.{self._stream}", {"seq": self._sequence})


async def parked(link: Link, blobs: Blobs, run: str) -> AsyncGenerator[Poison, None]:
    """Poison that still lies in its queue, then what comes; see `bus.log.BusPort.parked`."""
    queues = {streams.queue_stream(run, queue): queue for queue in streams.QUEUES}
    advisories = reader.chunks(link, streams.advisory_stream(run), 0, streams.ADVISORIES)
    async with contextlib.aclosing(advisories):
        async for chunk in advisories:
            for _, _, data in chunk:
                said = orjson.loads(data)
                stream, sequence = said["stream"], int(said["stream_seq"])
                message = await link.ask(f"$JS.API.DIRECT.GET.{stream}", {"seq": sequence})
                if message.data:
                    stored = await _of_queue(message, blobs)
                    yield Poison(queues[stream], stored, int(said["deliveries"]), link, stream, sequence)


async def _of_queue(message: Msg, blobs: Blobs) -> Stored:
    headers = message.headers or {}
    return await decode(*source(headers, headers.get("Nats-Subject", "")), message.data, blobs)
