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

_ENDS = "ends:"
_MOST_WORDS = 300


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


async def last_word(place: Place, bus: BusPort, name: str | int, why: str) -> None:
    """Say that this instance ends, and why, so that nobody waits for its silence."""
    said = f"{place.instance} {_ENDS} {' '.join(why.split())[:_MOST_WORDS]}"
    await bus.tell(subjects.hint(place.run, "heartbeat", name), said.encode(errors="replace"))


class Silent(NamedTuple):
    """Who is not heard any more, and how that is known."""

    instance: str
    reason: str


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
        """Those of `alive` (instances, asked at each beat) that end or are silent for too long; for ever.

        Each once, and once more where it was heard again and fell silent again.
        """
        beats = asyncio.create_task(self._keep_beating())
        try:
            async with aclosing(self._bus.listen(subjects.heartbeats(self._place.run))) as heard:
                async for _, body in heard:
                    instance, _, number = body.decode(errors="replace").partition(" ")
                    if instance != self._place.instance:
                        self._silent[instance] = 0
                        if not number:
                            self._told.discard(instance)  # it lives after all, and may fall silent again
                        if number.startswith(_ENDS) and instance in alive() and instance not in self._told:
                            self._told.add(instance)
                            yield Silent(instance, number.removeprefix(_ENDS).strip())
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
        silent = {instance: beats * limits.heartbeat_seconds for instance, beats in self._silent.items()}
        late = [
            Silent(instance, f"no heartbeat for {seconds:.1f} s")
            for instance, seconds in silent.items()
            if seconds > limits.lost_after_seconds and instance not in self._told
        ]
        self._told |= {each.instance for each in late}
        return late
