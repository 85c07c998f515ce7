"""Which messages of EV no model accepts, so that the log says so (design §4): a second, unhurried look at everything.

Deciders hear only what they fold; this reads the whole log behind them, in the process of the one office that tells.
"""

import contextlib
import hashlib
from collections.abc import Callable

from pydantic import TypeAdapter

from bus.consumers import Projection, SnapshotFile
from bus.log import BusPort, Stored
from schemas.envelope import Event
from schemas.runs import EventQuarantined
from services.place import Place

Untold = tuple[EventQuarantined, ...]


class Quarantine:
    """What is to be told, oldest first."""

    def __init__(self, place: Place, bus: BusPort, seconds: float) -> None:
        """Go on where an earlier look left off; `seconds` lie between two snapshots at least."""
        self._run, self._bus = place.run, bus
        durable = place.config.bus.durability == "always"
        path = place.folder / "snapshots" / "quarantine.json"
        file = SnapshotFile(path, TypeAdapter(Untold), f"{place.run} quarantine 1") if durable else None
        self._seen: Projection[Untold] = Projection((), _told, file, seconds=seconds)

    def due(self, own: int) -> EventQuarantined | None:
        """What to tell next; nothing before all that the teller said itself (up to `own`) was seen: it may tell it."""
        return self._seen.state[0] if self._seen.state and self._seen.sequence >= own else None

    async def look(self, ring: Callable[[], None]) -> None:
        """Read until cancelled; `ring` is called when something may be due."""
        stream = self._bus.ev.read(self._seen.sequence)
        async with contextlib.aclosing(stream):
            async for stored in stream:
                if stored.commit is None:
                    self._seen.state += (self._refused(stored),)
                self._seen.feed(stored)
                if self._seen.state:
                    ring()

    def save(self) -> None:
        """Remember how far it looked."""
        self._seen.save()

    def _refused(self, stored: Stored) -> EventQuarantined:
        return EventQuarantined(
            stream=f"EV_{self._run}",
            sequence=stored.sequence,
            subject=stored.subject,
            digest=hashlib.sha256(stored.reason.encode()).hexdigest(),
            reason=stored.reason,
        )


def _told(state: Untold, sequence: int, event: Event) -> Untold:  # noqa: ARG001 - a fold
    if not isinstance(event, EventQuarantined):
        return state
    return tuple(one for one in state if one.sequence != event.sequence)
