"""`gyre replay RUN --why SEQ.INDEX`: why an event was said, and what it led to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from bus.log import ReadLog
from gyre.core.causes import END, EventId, Fan, Link, Thread, Walk
from gyre.errors import GyreError
from schemas.envelope import Commit, Event
from services.reading import heard
from services.source import Source
from services.views.saying import saying, seconds

HOPS = 4
"""How far forward, unless told otherwise."""
ALSO = 3
"""Other causes of an event that are named on a line."""
BACK = 64
"""Events of the way back."""


class EventNotFound(GyreError):
    """The log has no such event."""


@dataclass(frozen=True, slots=True)
class Told:
    """One event as it is shown."""

    id: EventId
    kind: str
    service: str
    instance: str
    offset: int
    """From the event that is asked about, ns."""
    says: str
    thread: Thread | None
    """What it goes on from (ahead) or how it is named by what it led to (back)."""

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": str(self.id),
            "type": self.kind,
            "service": self.service,
            "instance": self.instance,
            "seconds": self.offset / 1e9,
            "says": self.says,
            "because": None if self.thread is None else str(self.thread.cause),
            "by": "" if self.thread is None else self.thread.by,
        }


@dataclass(frozen=True, slots=True)
class Why:
    """The ways from one event, both in the order in which a person goes them."""

    run: str
    target: Told
    back: tuple[tuple[Told, Link], ...]
    """From what led to it directly to the dispatch."""
    ahead: tuple[tuple[Fan, tuple[Told, ...]], ...]
    cut: str
    """The event at which the way back was cut; "" if it was not."""


async def why(source: Source, text: str, hops: int = HOPS, shown: int = 3) -> Why:
    """Walk both ways from an event.

    Args:
        source: the run.
        text: SEQUENCE or SEQUENCE.INDEX, in EV.
        hops: how far forward.
        shown: events of a type that are named in one hop.
    Raises:
        EventNotFound: it is written wrong, or the log does not have it.
    """
    walk = Walk(await _event(source.ev, text), hops, shown)
    async for stored in heard(source.ev, ()):
        if stored.commit is not None:
            walk.add(stored.sequence, stored.commit.time, stored.commit.causation, stored.commit.events)
    target, *links = walk.back(BACK + 1)
    origin = target.time
    back = [(await _told(source.ev, link.id, origin, _named(link)), link) for link in links]
    ahead = [(fan, await _first(source.ev, fan, origin)) for fan in walk.forward()]
    whole = not links or links[-1].kind == END or not links[-1].also
    return Why(
        source.run,
        await _told(source.ev, target.id, origin, None),
        tuple(back),
        tuple(ahead),
        "" if whole else str(links[-1].id),
    )


async def _event(ev: ReadLog, text: str) -> EventId:
    try:
        wanted = EventId.parse(text)
    except ValueError as error:
        raise EventNotFound(str(error)) from error
    stored = await ev.get(wanted.sequence)
    if stored is None:
        raise EventNotFound(f"event {text}: the log ends at sequence {await ev.head()}")
    if stored.commit is None:
        raise EventNotFound(f"event {text}: the message at this sequence is no commit ({stored.reason})")
    if wanted.part >= len(stored.commit.events):
        there = f"{wanted.sequence}.0 to {wanted.sequence}.{len(stored.commit.events) - 1}"
        raise EventNotFound(f"event {text}: the commit holds {there}")
    return wanted


def _named(link: Link) -> Thread:
    return Thread(link.id, link.by)


async def _first(ev: ReadLog, fan: Fan, origin: int) -> tuple[Told, ...]:
    return tuple([await _told(ev, place, origin, thread) for place, thread in fan.first])


async def _told(ev: ReadLog, place: EventId, origin: int, thread: Thread | None) -> Told:
    stored = await ev.get(place.sequence)
    assert stored is not None, "it was read a moment ago, and a log forgets nothing"
    assert stored.commit is not None, "the walk takes commits alone"
    event: Event = stored.commit.events[place.part]
    commit: Commit = stored.commit
    who = commit.producer
    return Told(place, event.type, who.service, who.instance, commit.time - origin, saying(event), thread)


def plain(found: Why) -> dict[str, Any]:
    """As JSON: `back` begins with what led to the event directly, `ahead` with what it led to first."""
    return {
        "run": found.run,
        "event": found.target.plain(),
        "back": [{**told.plain(), "also": [_also(each) for each in link.also]} for told, link in found.back],
        "cut_at": found.cut or None,
        "ahead": [
            {"hop": fan.hop, "type": fan.kind, "count": fan.count, "first": [each.plain() for each in first]}
            for fan, first in found.ahead
        ],
    }


def _also(thread: Thread) -> dict[str, str]:
    return {"id": str(thread.cause), "by": thread.by}


def lines(found: Why) -> Iterator[Text]:
    """For people: from the dispatch down to the event, then what it led to."""
    if found.cut:
        yield Text(f"   ... goes on before {found.cut}: --why {found.cut}", "dim")
    way = {told.id for told, _ in found.back}
    for told, link in reversed(found.back):
        yield _line(told, "")
        yield from _more([each for each in link.also if each.cause not in way])
    yield _line(found.target, "=>")
    if not found.ahead:
        yield Text("nothing came of it within so many hops", "dim")
    for fan, first in found.ahead:
        mark = f"+{fan.hop}"
        if fan.count > 1:
            shown = f", first {len(first)} shown" if fan.count > len(first) else ""
            yield Text(f"{mark:<4}{fan.count} {fan.kind}{shown}", "bold")
        for told in first:
            yield _line(told, mark if fan.count == 1 else "")


def _more(others: Sequence[Thread]) -> Iterator[Text]:
    """What an event goes on from besides, as a hint of where else to look."""
    if others:
        named = ", ".join(f"{each.cause} ({each.by})" for each in others[:ALSO])
        rest = f" and {len(others) - ALSO} more" if len(others) > ALSO else ""
        yield Text(f"{'':15}also because of {named}{rest}", "dim")


def _line(told: Told, mark: str) -> Text:
    line = Text(f"{mark:<4}{told.id!s:>9}  {seconds(told.offset):>14}  {told.service:9} ")
    line.append(told.kind, "bold").append(f"  {told.says}")
    if told.thread is not None and told.thread.cause != told.id:
        line.append(f"  <- {told.thread.cause}", "dim")
    return line
