"""When nothing of a run ran: between the last word of all who spoke before and the first of those who came after.

A run that is stopped and resumed has other processes than before, each and every one. So a silence that a new process
ends is a pause for as long as none of those who had spoken before it is heard again. Where one outlives the stop
(a cell on another machine), something ran, and the time counts.
"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Pause:
    """A silence; UTC, ns."""

    start: int
    end: int
    rank: int
    """Of the process that ended it: so many had spoken before."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """What is known so far."""

    ranks: dict[str, int] = field(default_factory=dict)
    """Process -> how many had spoken before it."""
    found: tuple[Pause, ...] = ()
    """In order; none overlaps another."""

    def within(self, start: int, end: int) -> int:
        """How much of start..end nothing ran, ns."""
        return sum(max(0, min(each.end, end) - max(each.start, start)) for each in self.found)


def heard(state: Pauses, instance: str, last: int, time: int) -> Pauses:
    """A process speaks at `time`, after the log's last word so far at `last` (UTC, ns)."""
    rank = state.ranks.get(instance)
    if rank is not None:
        refuted = bool(state.found) and state.found[-1].rank > rank
        return replace(state, found=tuple(each for each in state.found if each.rank <= rank)) if refuted else state
    rank = len(state.ranks)
    pauses = (Pause(last, time, rank),) if rank and time > last else ()
    return Pauses(state.ranks | {instance: rank}, (*state.found, *pauses))
