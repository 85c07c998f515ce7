"""Heartbeats: a process says now and then that it is there, and somebody notices when it does not.

Silence is counted in one's own beats that came back through the server: while the server is away, or this process was
not given time, nobody's silence says anything.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

from bus import subjects
from bus.log import BusPort
from services.place import Place


async def beat(place: Place, bus: BusPort, name: str | int) -> None:
    """Say for ever that this instance is `name` (a service, or a cell's index)."""
    subject = subjects.hint(place.run, "heartbeat", name)
    while True:
        await bus.tell(subject, place.instance.encode())
        await asyncio.sleep(place.config.cells.heartbeat_seconds)


async def beating(place: Place, bus: BusPort, work: Awaitable[None]) -> None:
    """Do this work while the service beats."""
    beats = asyncio.create_task(beat(place, bus, place.service))
    try:
        await work
    finally:
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


class Silent(NamedTuple):
    """Who said nothing for longer than `cells.lost_after_seconds`."""

    instance: str
    seconds: float


class Silence:
    """One listener, which beats itself, its beats numbered."""

    def __init__(self, place: Place, bus: BusPort) -> None:
        """Nothing heard yet."""
        self._place, self._bus = place, bus
        self._beat = 0
        self._silent: dict[str, int] = {}
        """Instance -> own beats since its last; -1: first known since the last beat."""
        self._told: set[str] = set()

    async def lost(self, alive: Callable[[], Iterable[str]]) -> AsyncGenerator[Silent, None]:
        """Those of `alive` (instances, asked at each beat) that are silent for too long, each once; never ends."""
        beats = asyncio.create_task(self._keep_beating())
        try:
            async with aclosing(self._bus.listen(subjects.heartbeats(self._place.run))) as heard:
                async for _, body in heard:
                    instance, _, number = body.decode(errors="replace").partition(" ")
                    if instance != self._place.instance:
                        self._silent[instance] = 0
                    elif number == str(self._beat):  # an older one was held up on its way
                        for each in self._count(alive()):
                            yield each
        finally:
            beats.cancel()

    async def _keep_beating(self) -> None:
        subject = subjects.hint(self._place.run, "heartbeat", self._place.service)
        for self._beat in itertools.count(1):
            await self._bus.tell(subject, f"{self._place.instance} {self._beat}".encode())
            await asyncio.sleep(self._place.config.cells.heartbeat_seconds)

    def _count(self, alive: Iterable[str]) -> list[Silent]:
        limits = self._place.config.cells
        self._silent = {instance: self._silent.get(instance, -1) + 1 for instance in alive}
        found = [Silent(instance, beats * limits.heartbeat_seconds) for instance, beats in self._silent.items()]
        late = [each for each in found if each.seconds > limits.lost_after_seconds and each.instance not in self._told]
        self._told |= {each.instance for each in late}
        return late
