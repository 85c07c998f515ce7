"""What must hold in the logs of a run whose cells switched roles under live executions, and how long moves took."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby

from bus.log import Stored
from gyre.core.routes import LEFT
from schemas.calls import (
    HistoryRejected,
    KvHandoffCompleted,
    ModelCallContinued,
    ModelCallRecorded,
    ModelCallRetried,
    RequestCancelled,
    RouteAssigned,
    RouteMoved,
)
from schemas.dispatch import ExecutionTerminated
from schemas.envelope import Event
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionPhaseCompleted,
    RoleTransitionRequested,
)
from tests.services.stage import Played

ABORTED = "aborted"
OWN_LIMIT = "(--max-turns)"
"""How the reference harness says that it ended by its own limit, and not for want of an answer."""


@dataclass
class Walk:
    """The routes, followed through EV commit by commit."""

    serving: dict[int, bool] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    astray: dict[str, int] = field(default_factory=dict)
    """Execution -> when its cell stopped serving while another served, UTC nanoseconds."""
    longest: float = 0.0
    """Seconds that any route pointed at a cell that had left."""
    moves: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def take(self, stored: Stored) -> None:
        """The next commit."""
        assert stored.commit is not None, stored.reason
        for event in stored.commit.events:
            self._event(event)
        for execution, cell in self.held.items():
            elsewhere = any(up for other, up in self.serving.items() if other != cell)
            if self.serving.get(cell, False) or not elsewhere:
                self._found(execution, stored.commit.time)
            else:
                self.astray.setdefault(execution, stored.commit.time)

    def _event(self, event: Event) -> None:
        match event:
            case CellRegistered(cell=cell) | RoleTransitionCompleted(cell=cell, to="rollout"):
                self.serving[cell] = True
            case RoleTransitionRequested(cell=cell) | CellLost(cell=cell):
                self.serving[cell] = False
            case RouteAssigned(execution=execution, cell=cell):
                self.held[execution] = cell
            case RouteMoved():
                self._moved(event)
            case ExecutionTerminated(execution=execution):
                self.held.pop(execution, None)
                self.astray.pop(execution, None)

    def _moved(self, event: RouteMoved) -> None:
        self.moves[event.execution] += 1
        if self.serving.get(event.from_cell, False):
            self.problems.append(f"{event.execution}: moved off cell {event.from_cell}, which served")
        last = max((cell for cell, up in self.serving.items() if up), default=event.to_cell)
        if event.to_cell != last:  # one cell has places for all in these pieces
            self.problems.append(f"{event.execution}: moved to cell {event.to_cell}, cell {last} comes first")
        if event.execution in self.held:
            self.held[event.execution] = event.to_cell

    def _found(self, execution: str, now: int) -> None:
        if (since := self.astray.pop(execution, None)) is not None:
            self.longest = max(self.longest, (now - since) / 1e9)


@dataclass
class Verdict:
    """What a piece came to."""

    executions: int
    calls: int
    tokens: int
    """Output tokens recorded, each with its version."""
    switches: int
    moves: int
    cut: int
    """Requests that a leaving cell cancelled."""
    handoffs: list[float]
    """Of each cache that was handed over: seconds."""
    longest_astray_seconds: float
    waits: list[float]
    """Of each cut request: seconds from its end at one cell to its next token at another."""
    reused: float
    """Share of the cut requests' context whose keys and values the new cell had."""
    phases: dict[str, float]
    """Median seconds of each phase, by direction and name."""
    problems: list[str]


def judge(played: Played, heartbeat_seconds: float) -> Verdict:
    """Hold the logs against the rules."""
    walk = Walk()
    for stored in played.ev:
        walk.take(stored)
    records = played.said(ModelCallRecorded)
    cut = [event for event in played.said(RequestCancelled) if event.reason == LEFT]
    continued = _after_cuts(played)
    problems = [*walk.problems, *_of_clients(played, records), *_of_cuts(played, cut, continued)]
    problems += [f"{name}: moved {count} times" for name, count in walk.moves.items() if count > 1]
    if walk.longest > heartbeat_seconds:
        problems.append(f"a route pointed at a cell that had left for {walk.longest:.2f} s")
    context = sum(event.context_tokens for event in continued)
    return Verdict(
        executions=len(played.said(ExecutionTerminated)),
        calls=len(records),
        tokens=sum(len(record.output_ids) // 4 for record in records),
        switches=len(played.said(RoleTransitionCompleted)),
        moves=sum(walk.moves.values()),
        cut=len(cut),
        handoffs=sorted(event.seconds for event in played.said(KvHandoffCompleted)),
        longest_astray_seconds=walk.longest,
        waits=sorted(event.seconds for event in continued),
        reused=sum(event.cached_tokens for event in continued) / context if context else 0.0,
        phases=_phases(played),
        problems=problems,
    )


def _of_clients(played: Played, records: list[ModelCallRecorded]) -> list[str]:
    """A client that sees one failed call gives up: its exit code says so, as does a call that nobody waited for."""
    found = [
        f"{event.execution}: {event.reason}, exit {event.exit_code}: {event.detail}"
        for event in played.said(ExecutionTerminated)
        if event.reason != "completed" and not event.detail.endswith(OWN_LIMIT)
    ]
    gone = [event for event in played.said(RequestCancelled) if event.reason != LEFT]
    found += [f"{event.call}: cancelled, {event.reason}" for event in gone]
    found += [f"{event.call}: rejected, {event.reason}" for event in played.said(HistoryRejected)]
    found += [f"{call}: recorded {n} times" for call, n in Counter(each.call for each in records).items() if n > 1]
    for record in records:
        versions = sum(span.tokens for span in record.versions)
        if versions != len(record.output_ids) // 4:
            found.append(f"{record.call}: {versions} versions for {len(record.output_ids) // 4} tokens")
        if not record.delivered:
            found.append(f"{record.call}: not delivered")
    return found


def _of_cuts(played: Played, cut: list[RequestCancelled], continued: list[ModelCallContinued]) -> list[str]:
    """Each cancelled request is taken up again once, and goes on at another cell."""
    cancelled = Counter((event.call, event.cell) for event in cut)
    retried = Counter(
        (event.call, event.from_cell) for event in played.said(ModelCallRetried) if event.reason == ABORTED
    )
    found = [f"{call} at cell {cell}: cancelled, not retried once" for call, cell in (cancelled - retried)]
    found += [f"{call} at cell {cell}: retried, not cancelled" for call, cell in (retried - cancelled)]
    found += [f"{call} at cell {cell}: cancelled {n} times" for (call, cell), n in cancelled.items() if n > 1]
    went_on = Counter(event.call for event in continued)
    found += [f"{event.call}: cut, and never went on" for event in cut if not went_on[event.call]]
    found += [f"{event.call}: went on where it was cut" for event in continued if event.from_cell == event.to_cell]
    asked = sum(event.requests for event in played.said(RoleTransitionPhaseCompleted))
    if asked < len(cut):
        found.append(f"the proxy saw {len(cut)} requests cut, the cells had {asked} in flight")
    return found


def _after_cuts(played: Played) -> list[ModelCallContinued]:
    """What went on after it was cut, not only refused at the door of a cell that had shut."""
    aborted = {(event.call, event.from_cell) for event in played.said(ModelCallRetried) if event.reason == ABORTED}
    return [event for event in played.said(ModelCallContinued) if (event.call, event.from_cell) in aborted]


def _phases(played: Played) -> dict[str, float]:
    to = {event.transition: event.to for event in played.said(RoleTransitionRequested)}
    said = played.said(RoleTransitionPhaseCompleted)
    named = sorted((f"{to[event.transition]}: {event.phase}", event.seconds) for event in said)
    medians = {}
    for name, group in groupby(named, lambda pair: pair[0]):
        seconds = [pair[1] for pair in group]
        medians[name] = seconds[len(seconds) // 2]
    return medians
