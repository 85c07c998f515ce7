"""Who may ask now, and whose bodies are read: `gyre.proxy.bounds`, kept by a clock for each execution.

A proxy that starts knows nothing of earlier requests: every execution may begin anew.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web

from gyre.proxy.bounds import Bounds, Bucket, room
from gyre.proxy.errors import NoRoom, TooLarge, TooMany, TooSlow

T = TypeVar("T")
_SOON_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _Guest:
    """One execution."""

    bucket: Bucket
    open: int = 0
    """Requests under way."""
    held: int = 0
    """Bytes that these hold."""


class Gate:
    """All executions' requests."""

    def __init__(self, bounds: Bounds) -> None:
        """Nobody is inside."""
        self.bounds, self.held = bounds, 0
        self._guests: dict[str, _Guest] = {}
        self._busy: set[object] = set()

    @contextlib.contextmanager
    def enter(self, execution: str, connection: object = None) -> Iterator["Share"]:
        """Let a request in, at this connection, until it is over. Raises TooMany."""
        now = time.monotonic()
        guest = self._guest(execution, now)
        guest.bucket = guest.bucket.filled(self.bounds, now)
        if guest.open >= self.bounds.open_calls:
            raise TooMany(f"calls: {guest.open} of this execution are under way, wait for one", _SOON_SECONDS)
        if wait := guest.bucket.wait(self.bounds):
            raise TooMany(f"calls: over {self.bounds.per_second:g} a second in the long run; wait", wait)
        guest.bucket = guest.bucket.taken()
        guest.open += 1
        self._busy.add(connection)
        share = Share(self, guest)
        try:
            yield share
        finally:
            share.hold(0)
            guest.open -= 1
            self._busy.discard(connection)

    def idle(self, connections: Iterable[T], executions: int) -> list[T]:
        """The oldest of these, which come first, where more have no request under way than so many executions may."""
        idle = [each for each in connections if each not in self._busy]
        most = max(self.bounds.idle_connections, self.bounds.idle_each * executions)
        return idle[: max(0, len(idle) - most)]

    def _guest(self, execution: str, now: float) -> _Guest:
        """What is known of an execution. Others that are as good as new are forgotten when a new one comes."""
        guest = self._guests.get(execution)
        if guest is None:
            full = self.bounds.burst
            self._guests = {
                name: each
                for name, each in self._guests.items()
                if each.open or each.bucket.filled(self.bounds, now).left < full
            }
            guest = self._guests[execution] = _Guest(Bucket(full, now))
        return guest


class Share:
    """The bytes that one request holds."""

    def __init__(self, gate: Gate, guest: _Guest) -> None:
        """None yet."""
        self._gate, self._guest, self._held = gate, guest, 0

    def hold(self, size: int) -> None:
        """Hold so many bytes from here on. Raises TooLarge where there will never be room for them, NoRoom for now."""
        bounds, more = self._gate.bounds, size - self._held
        if more > room(bounds, self._gate.held, self._guest.held):
            if size > room(bounds, 0, 0):
                raise TooLarge(f"body: would take {size} bytes of memory; shorten the history, send fewer tiny values")
            raise NoRoom("body: too many bytes of requests are under way, wait for some")
        self._held = size
        self._guest.held += more
        self._gate.held += more

    async def body(self, request: web.Request) -> bytes:
        """Read a request's body: room for it is taken before it is there. Raises CallError."""
        bounds, body = self._gate.bounds, bytearray()
        try:
            async with asyncio.timeout(bounds.body_seconds):
                self._take(request.content_length or 0)
                while piece := await request.content.readany():
                    self._take(max(self._held, len(body) + len(piece)))
                    body += piece
        except TimeoutError as error:
            raise TooSlow(f"body: did not come whole within {bounds.body_seconds:g} s; send it again") from error
        return bytes(body)

    def _take(self, size: int) -> None:
        if size > self._gate.bounds.body_bytes:
            raise TooLarge(f"body: exceeds {self._gate.bounds.body_bytes} bytes; shorten the history")
        self.hold(size)
