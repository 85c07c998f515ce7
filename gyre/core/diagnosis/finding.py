"""What a detector hears and says."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

SECOND = 1_000_000_000
"""Nanoseconds."""
MOST_EVIDENCE = 8
"""Events that a finding names: enough to begin with, however often it happened."""
Severity = Literal["warning", "critical"]
"""critical: the run cannot reach its end so, or what it trains on is wrong; warning: it is worse than it need be."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A finding that a detector may make."""

    name: str
    means: str
    """In one line."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault that was found."""

    name: str
    severity: Severity
    says: str
    """One sentence, with numbers."""
    evidence: tuple[str, ...]
    """Ids of events, `SEQ.INDEX` in EV and `call:EXECUTION/SEQ` in CALL, the one to begin with first."""
    next: str
    """The command that looks closer; `{run}` stands for the run."""


class At(NamedTuple):
    """Where and when an event was said."""

    sequence: int
    place: int
    """In its commit, from 0."""
    time: int
    """UTC, nanoseconds."""
    execution: str = ""
    """Whose record it is; empty in EV."""

    @property
    def id(self) -> str:
        """As evidence names it."""
        return f"call:{self.execution}/{self.sequence}" if self.execution else f"{self.sequence}.{self.place}"


@dataclass(frozen=True, slots=True)
class Room:
    """How full a stream is, bytes."""

    stream: str
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known at the moment of asking besides the log."""

    now: int
    """UTC, ns: the clock for a run that goes on, else the time of its last event."""
    live: bool = False
    """Whether it goes on."""
    rooms: tuple[Room, ...] = ()
    listened: float = 0.0
    """Seconds for which heartbeats were listened for; 0: nobody did."""
    heard: frozenset[str] = frozenset()
    """Instances that beat meanwhile."""

    def since(self, time: int) -> float:
        """Seconds from a time (UTC, ns) to now."""
        return (self.now - time) / SECOND


Hear = Callable[[At, Any], None]


class Detector(Protocol):
    """One family: folds what it hears, says what it found so far."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What it may find."""

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """Event type -> what folds it."""

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """All that is wrong; asking changes nothing."""


def ids(found: "list[At] | tuple[At, ...]") -> tuple[str, ...]:
    """The first few as evidence."""
    return tuple(at.id for at in found[:MOST_EVIDENCE])


def why(at: At) -> str:
    """The command that tells what led to an event of EV and what it led to."""
    return f"gyre replay {{run}} --why {at.id}"


def listed(names: "list[str] | tuple[str, ...]", most: int = 4) -> str:
    """A few names and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
