"""The log itself: what nobody can read, streams that fill up, a run in which nothing is said any more."""

from collections.abc import Iterator, Mapping
from typing import Any

from gyre.core.diagnosis.book import Book
from gyre.core.diagnosis.finding import MOST_EVIDENCE, SECOND, At, Finding, Hear, Kind, Outlook
from gyre.core.diagnosis.limits import Limits
from schemas.envelope import Commit
from schemas.runs import EventQuarantined, RunFinished
from schemas.training import OptimizerStepped, StepAborted

UNREADABLE = Kind("quarantined", "stored messages that no model accepts: readers step over them")
FILLING = Kind("stream-full", "a stream that is nearly full, or will be before the run's last step at this rate")
QUIET = Kind("silent-log", "a run that goes on, and in which nothing has been said for longer than anything may take")
_RESERVE = 16  # a run ends in order when the last sixteenth of a stream is used (`bus.room`)


class Logs:
    """What is told of the log, and when it spoke."""

    kinds = (UNREADABLE, FILLING, QUIET)

    def __init__(self, limits: Limits, book: Book) -> None:
        """`book` is folded by whoever made it."""
        self._limits, self._book = limits, book
        self._unreadable: dict[tuple[str, int], tuple[str, str]] = {}
        """(stream, sequence) of the first few -> (evidence, reason)."""
        self._count = 0
        self._steps = 0
        self._over = False
        self._last: At | None = None
        self._gap = 0.0
        """The longest that nothing was said for, seconds."""

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {
            EventQuarantined: self._quarantined,
            OptimizerStepped: self._stepped,
            RunFinished: self._end,
            StepAborted: self._end,
        }

    def unreadable(self, stream: str, sequence: int, reason: str) -> None:
        """A stored message that is no commit."""
        self._count += 1
        if len(self._unreadable) < MOST_EVIDENCE:
            self._unreadable[stream, sequence] = (f"{sequence}.0" if stream == "EV" else f"call:/{sequence}", reason)

    def commit(self, at: At, commit: Commit) -> None:
        """One commit of EV."""
        if self._last is not None:
            self._gap = max(self._gap, (at.time - self._last.time) / SECOND)
        self._last = at

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        if self._unreadable:
            (_, first), (_, reason) = next(iter(self._unreadable.items()))
            says = f"{self._count} stored messages are no events, the first at sequence {first}: {reason}"
            evidence = tuple(name for name, _ in self._unreadable.values())
            yield Finding(UNREADABLE.name, "warning", says, evidence, "gyre query malformed {run}")
        if not self._over:
            yield from self._filling(outlook)
            yield from self._quiet(outlook)

    def _filling(self, outlook: Outlook) -> Iterator[Finding]:
        for room in outlook.rooms:
            total = room.used / self._steps * self._limits.steps if self._steps else 0.0
            nearly = room.limit - room.used < room.limit // _RESERVE
            if nearly or total > room.limit:
                last = int(self._steps * room.limit / room.used)
                until = "hardly anything fits any more" if nearly else f"at this rate it is full after step {last}"
                says = (
                    f"{room.stream} holds {room.used} of {room.limit} bytes after {self._steps} of "
                    f"{self._limits.steps} steps: {until}"
                )
                more = 2 * max(room.limit, round(total))
                command = f"gyre resume {{run}} --set bus.max_bytes={more}"
                evidence = (self._last.id,) if self._last is not None else ()
                yield Finding(FILLING.name, "critical" if nearly else "warning", says, evidence, command)

    def _quiet(self, outlook: Outlook) -> Iterator[Finding]:
        """Longer than the longest pause so far, a death unnoticed, and any execution that runs."""
        if self._last is None or not outlook.live:
            return
        running = any(each.running for each in self._book.executions.values())
        limit = self._gap + self._limits.silence + (self._book.longest_deadline if running else 0.0)
        if outlook.since(self._last.time) > limit:
            says = (
                f"nothing was said for {outlook.since(self._last.time):.0f} s, the longest pause before was "
                f"{self._gap:.0f} s: is the run's supervisor alive?"
            )
            yield Finding(QUIET.name, "critical", says, (self._last.id,), "gyre status {run}")

    def _quarantined(self, at: At, event: EventQuarantined) -> None:
        """Told by the scheduler of what a reader of the log meets as well: it counts once."""
        key = (event.stream.partition("_")[0], event.sequence)
        if key in self._unreadable:
            self._unreadable[key] = (at.id, event.reason)

    def _stepped(self, at: At, event: OptimizerStepped) -> None:
        self._steps += 1

    def _end(self, at: At, event: RunFinished | StepAborted) -> None:
        self._over = True
