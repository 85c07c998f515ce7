"""Clocks that disagree: a commit that says to be older than what caused it.

Whoever says something has read its cause before, so under one clock its time is never the earlier one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gyre.core.diagnosis.finding import SECOND, At, Finding, Hear, Kind, Outlook
from gyre.core.diagnosis.limits import Limits
from schemas.envelope import Commit

SKEW = Kind("clock-skew", "commits that say to be older than what caused them: two machines' clocks differ")
REMEMBERED = 1 << 16
"""Commits whose time is kept; a cause further back is compared with nothing."""


@dataclass(frozen=True, slots=True)
class Skew:
    """One clock behind another, by so much at least."""

    seconds: float
    behind: str
    """Who said the effect."""
    ahead: str
    at: At
    cause: int


class Clocks:
    """Times of the latest commits."""

    kinds = (SKEW,)

    def __init__(self, limits: Limits) -> None:
        """Nothing was said."""
        self._least = limits.beat
        self._said: dict[int, tuple[int, str]] = {}
        """Sequence -> (time, who)."""
        self._worst: dict[tuple[str, str], Skew] = {}
        """(behind, ahead) -> the most; services, not instances."""
        self._count = 0
        self._last: tuple[At, str] | None = None

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """Whole commits, by `commit`; no event by itself."""
        return {}

    def commit(self, at: At, commit: Commit) -> None:
        """One commit of EV."""
        who = commit.producer.service
        self._said[at.sequence] = (at.time, who)
        self._said.pop(at.sequence - REMEMBERED, None)
        self._last = (at, who)
        time, other = self._said.get(commit.causation, (0, ""))
        seconds = (time - at.time) / SECOND
        if seconds <= self._least:
            return
        self._count += 1
        known = self._worst.get((who, other))
        if known is None or seconds > known.seconds:
            self._worst[who, other] = Skew(seconds, who, other, at, commit.causation)

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        if self._worst:
            worst = max(self._worst.values(), key=lambda each: each.seconds)
            says = (
                f"the clock of {worst.behind} is behind that of {worst.ahead} by {worst.seconds:.1f} s at least, as "
                f"{self._count} commits show that say to be older than their cause: durations across them are wrong"
            )
            evidence = (worst.at.id, f"{worst.cause}.0")
            yield Finding(SKEW.name, "warning", says, evidence, f"gyre log show {{run}} {worst.at.sequence}")
        if self._last is not None and outlook.live and outlook.since(self._last[0].time) < -self._least:
            at, who = self._last
            ahead = -outlook.since(at.time)
            says = f"the latest commit, of {who}, says to be of {ahead:.1f} s from now: its clock is ahead"
            yield Finding(SKEW.name, "warning", says, (at.id,), f"gyre log show {{run}} {at.sequence}")
