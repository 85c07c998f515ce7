"""What of EV a service has to hear, and how far that goes: asking for less leaves the rest unread."""

from collections.abc import Iterable
from typing import Any

from bus import subjects
from bus.log import ReadLog
from schemas.speakers import ENTITIES, SPEAKERS


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
