"""What of EV a service has to hear, how far that goes, and where it remembers what it made of it.

Only what is asked for is decoded, and only what came after the snapshot is read: that is what makes a way back short.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import TypeAdapter

from bus import subjects
from bus.consumers import SnapshotFile
from bus.log import ReadLog
from schemas.speakers import ENTITIES, SPEAKERS
from services.place import Place

SAVE_SECONDS = 1.0
"""Between two snapshots at least."""
State = TypeVar("State")


def filters_of(run: str, kinds: Iterable[type[Any]], own: str = "") -> tuple[str, ...]:
    """The subjects on which these events are said, and all that the service `own` says, whatever it is."""
    places = {
        (service, entity)
        for kind in kinds
        for service in SPEAKERS[kind.__name__]
        for entity in ENTITIES[kind.__name__]
        if service != own
    }
    others = [subjects.ev(run, service, entity) for service, entity in sorted(places)]
    mine = (subjects.producer(run, own),) if own else ()
    return (*mine, *(form for one in others for form in (one, f"{one}.>")))


async def last_of(log: ReadLog, filters: Iterable[str]) -> int:
    """The last sequence, as of now, of what lies under any of these filters; 0: nothing does."""
    found = [await log.last(each) for each in filters]
    return max((stored.sequence for stored in found if stored is not None), default=0)


def snapshot_file(place: Place, name: str, adapter: TypeAdapter[State], code: int) -> SnapshotFile[State] | None:
    """Where a service keeps what it folded: a cache, whose loss only costs time.

    None under "laptop" durability, where a power cut may take back commits that a snapshot holds: the log is folded
    from its start then. `code` is the number of the fold's meaning.
    """
    if place.config.bus.durability != "always":
        return None
    return SnapshotFile(place.folder / "snapshots" / f"{name}.json", adapter, f"{place.run} {name} {code}")
