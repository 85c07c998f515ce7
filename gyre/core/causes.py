"""Why an event was said, and what it led to: a walk along the causes that the log itself names.

A fold: events in the order of the log, one target among them. Up to the target it keeps what each event goes on from,
afterwards only what comes of the target, up to a number of hops; `gyre.core.threads` has the rules. Backwards the walk
takes the main cause at each event until it comes to the dispatch of a group, or to a beginning. Forwards events are
counted by hop and type, since one dispatch leads to hundreds of claims.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gyre.core.threads import AT, SAID, Key, Tier, marks, tiers
from schemas.envelope import Event

END = "GroupDispatched"
"""The dispatch: what a walk back comes to."""
SAID_SO = "causation"
"""The envelope names the commit that made it be said."""
HEARD = "heard before"
"""The envelope names what a cell had heard last: true, but no reason; the way forward does not follow it."""


class EventId(NamedTuple):
    """Which event: the sequence of its commit in EV, and its place there."""

    sequence: int
    part: int = 0

    def __str__(self) -> str:
        """As it is written: 17.0."""
        return f"{self.sequence}.{self.part}"

    @classmethod
    def parse(cls, text: str) -> "EventId":
        """17 or 17.0; ValueError for anything else."""
        sequence, dot, part = text.partition(".")
        if not sequence.isdecimal() or (dot and not part.isdecimal()) or int(sequence) < 1:
            raise ValueError(f"{text!r} is no event: give SEQUENCE or SEQUENCE.INDEX, such as 17 or 17.1")
        return cls(int(sequence), int(part) if dot else 0)


class Thread(NamedTuple):
    """One event goes on from another."""

    cause: EventId
    by: str
    """`SAID_SO` or `HEARD` by its envelope, else the work item that both are about."""


@dataclass(frozen=True, slots=True)
class Link:
    """One event of the way back."""

    id: EventId
    kind: str
    time: int
    """UTC, ns, of its commit."""
    by: str
    """How the event that it led to names it; "" for the target."""
    also: tuple[Thread, ...]
    """What it goes on from besides its main cause."""


@dataclass(frozen=True, slots=True)
class Fan:
    """Events of one type, so many hops after the target."""

    hop: int
    kind: str
    count: int
    first: tuple[tuple[EventId, Thread], ...]
    """The first of them, with what they go on from."""


@dataclass(slots=True)
class _Known:
    kind: str
    time: int
    threads: tuple[Thread, ...]
    """The main one first."""


class Walk:
    """Takes the commits of a log in order, then tells the way back and forth."""

    def __init__(self, target: EventId, hops: int = 6, shown: int = 3) -> None:
        """Begin with nothing.

        Args:
            target: which event it is about.
            hops: how far forward; 0: not at all.
            shown: events of each type and hop that are named.
        """
        self.target = target
        self._hops, self._shown = hops, shown
        self._latest: dict[Key, EventId] = {}
        self._known: dict[EventId, _Known] = {}
        self._reached: dict[EventId, int] = {}
        self._commits = {target.sequence: 0}
        self._fans: dict[tuple[int, str], Fan] = {}

    @property
    def found(self) -> bool:
        """Whether the target was among the events so far."""
        return self.target in self._known

    def add(self, sequence: int, time: int, causation: int, events: Iterable[Event]) -> None:
        """One commit; `time` in UTC ns, `causation` as its envelope has it."""
        for part, event in enumerate(events):
            found = EventId(sequence, part)
            threads = tuple(self._threads(found, causation, event))
            if found <= self.target:
                self._known[found] = _Known(event.type, time, threads)
            else:
                self._reach(found, event.type, threads)
            for key in marks(event):
                self._latest[key] = found

    def back(self, most: int = 64) -> tuple[Link, ...]:
        """From the target to the dispatch that it comes from, at most so many events; () if it was not found."""
        links: list[Link] = []
        place, by = self.target, ""
        while (known := self._known.get(place)) is not None and len(links) < most:
            ends = not known.threads or (known.kind == END and place != self.target)
            links.append(Link(place, known.kind, known.time, by, known.threads if ends else known.threads[1:]))
            if ends:
                break
            place, by = known.threads[0]
        return tuple(links)

    def forward(self) -> tuple[Fan, ...]:
        """What came of the target, the nearest first."""
        return tuple(self._fans[key] for key in sorted(self._fans, key=lambda key: (key[0], self._fans[key].first[0])))

    def kind(self, place: EventId) -> str:
        """The type of an event up to the target; "" for one that was not there."""
        known = self._known.get(place)
        return "" if known is None else known.kind

    def _threads(self, place: EventId, causation: int, event: Event) -> Iterator[Thread]:
        """What an event goes on from, the main cause first, each once."""
        seen: set[EventId] = set()
        for tier in tiers(event):
            found = sorted(self._tier(tier, causation), reverse=True)
            for thread in found:
                if thread.cause not in seen and thread.cause < place:
                    seen.add(thread.cause)
                    yield thread
        if not seen and causation:
            yield Thread(EventId(causation), HEARD)

    def _tier(self, tier: Tier, causation: int) -> Iterator[Thread]:
        for key in tier:
            if key == SAID:
                if causation:
                    yield Thread(EventId(causation), SAID_SO)
            elif key[0] == AT:
                yield Thread(EventId(int(key[1])), "claim")
            elif (cause := self._latest.get(key)) is not None:
                yield Thread(cause, " ".join(str(part) for part in key[1:]))

    def _reach(self, place: EventId, kind: str, threads: tuple[Thread, ...]) -> None:
        """Keep what comes of the target: one hop further than the first of its causes that does."""
        reached = ((self._hop(each, main=at == 0), each) for at, each in enumerate(threads))
        hop, thread = next(((hop, each) for hop, each in reached if hop is not None), (self._hops, None))
        if thread is None or hop >= self._hops:
            return
        self._reached[place] = hop + 1
        self._commits.setdefault(place.sequence, hop + 1)
        fan = self._fans.get((hop + 1, kind)) or Fan(hop + 1, kind, 0, ())
        first = (*fan.first, (place, thread)) if len(fan.first) < self._shown else fan.first
        self._fans[hop + 1, kind] = Fan(hop + 1, kind, fan.count + 1, first)

    def _hop(self, thread: Thread, *, main: bool) -> int | None:
        """How far from the target a cause is; None for one that does not come of it.

        Envelopes name whole commits; one that is not the main cause only tells when it was said, not why.
        """
        if thread.by == SAID_SO:
            return self._commits.get(thread.cause.sequence) if main else None
        if thread.by == HEARD:
            return None
        return 0 if thread.cause == self.target else self._reached.get(thread.cause)
