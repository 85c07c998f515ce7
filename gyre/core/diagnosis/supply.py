"""Training that waits for rollouts, and rollouts that wait for a place."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gyre.core.diagnosis.book import Book
from gyre.core.diagnosis.finding import SECOND, At, Finding, Hear, Kind, Outlook, ids, why
from gyre.core.diagnosis.limits import FAR, Limits
from gyre.core.roles import Cells, evolve_cells
from schemas.rewards import GroupReady
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import RunFinished
from schemas.training import (
    BatchOpened,
    GroupAssigned,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    StreamClosed,
)

STARVING = Kind(
    "supply-starvation",
    "training that has nothing to train on: no group comes, none can come, or it waited for nine tenths of its time",
)
NO_ROOM = Kind("no-rollout-capacity", "executions that are queued while no cell serves")


@dataclass(frozen=True, slots=True)
class Waited:
    """How a step's open time was spent, seconds."""

    at: At
    """Its update."""
    open: float
    idle: float
    """With its stream open and no micro-step queued or claimed."""


class Supply:
    """The open batch, what is ready, and how many places there are."""

    kinds = (STARVING, NO_ROOM)

    def __init__(self, limits: Limits, book: Book) -> None:
        """`book` is folded by whoever made it."""
        self._limits, self._book = limits, book
        self._places = Cells()
        self._full_until: At | None = None
        """Since when no cell serves."""
        self._ready: set[str] = set()
        self._batch: At | None = None
        self._groups = 0
        """Assigned to the open batch."""
        self._news: At | None = None
        """The last thing that moved the supply: a group ready or assigned, a batch opened."""
        self._open_work: set[int] = set()
        self._idle_from: int | None = None
        self._idle = 0.0
        self._steps: deque[Waited] = deque(maxlen=2 * limits.mu)
        self._worst: tuple[Waited, ...] = ()
        self._finished = False

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        moves = (CellRegistered, CellLost, RoleTransitionRequested, RoleTransitionCompleted, RoleTransitionFailed)
        return {
            **dict.fromkeys(moves, self._moved),
            GroupReady: self._became_ready,
            BatchOpened: self._opened,
            GroupAssigned: self._assigned,
            MicroStepEnqueued: self._enqueued,
            MicroStepCompleted: self._completed,
            StreamClosed: self._closed,
            OptimizerStepped: self._stepped,
            RunFinished: self._finish,
        }

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        if self._worst:
            share = sum(each.idle for each in self._worst) / sum(each.open for each in self._worst)
            says = (
                f"in {len(self._worst)} steps in a row training waited for groups for {100 * share:.0f} % of the time "
                f"({sum(each.idle for each in self._worst):.0f} s): rollouts are the bottleneck by far"
            )
            evidence = ids([each.at for each in self._worst])
            yield Finding(STARVING.name, "warning", says, evidence, "gyre query utilisation {run}")
        if not self._finished:
            yield from self._waiting(outlook)
            yield from self._no_room(outlook)

    def _waiting(self, outlook: Outlook) -> Iterator[Finding]:
        """The open batch lacks groups, none is ready, and it is too long since anything came."""
        batch, news = self._batch, self._news
        if batch is None or news is None or self._ready or self._groups >= self._limits.groups:
            return
        waited, left = outlook.since(news.time), len(self._book.executions)
        limit = self._book.longest_deadline + self._limits.closing + self._limits.scoring
        nothing = left == 0 and waited > self._limits.silence
        if nothing or waited > limit:
            coming = "and nothing is under way that could become one" if nothing else f"{left} executions are under way"
            says = (
                f"the open batch has {self._groups} of {self._limits.groups} groups and none is ready for "
                f"{waited:.0f} s, {coming}"
            )
            yield Finding(STARVING.name, "critical", says, (news.id, batch.id), why(news))

    def _no_room(self, outlook: Outlook) -> Iterator[Finding]:
        since = self._full_until
        queued = [each.dispatched for each in self._book.executions.values() if each.launched is None]
        if since is not None and queued and outlook.since(since.time) > self._limits.silence:
            says = (
                f"{len(queued)} executions are queued and no cell serves for {outlook.since(since.time):.0f} s: all "
                "train, move or are lost"
            )
            yield Finding(NO_ROOM.name, "critical", says, (since.id, *ids(queued[:3])), "gyre status {run}")

    def _moved(self, at: At, event: Any) -> None:
        if event.cell >= self._limits.cells:
            return  # no cell of this run: as the scheduler has it, it has no place in C_R, and its number no bit
        self._places = evolve_cells(self._places, event)
        if self._places.capacity:
            self._full_until = None
        elif self._full_until is None:
            self._full_until = at

    def _became_ready(self, at: At, event: GroupReady) -> None:
        self._ready.add(event.group)
        self._news = at

    def _opened(self, at: At, event: BatchOpened) -> None:
        self._batch = self._news = at
        self._groups, self._idle, self._idle_from = 0, 0.0, at.time
        self._open_work.clear()

    def _assigned(self, at: At, event: GroupAssigned) -> None:
        self._ready.discard(event.group)
        self._groups += 1
        self._news = at

    def _enqueued(self, at: At, event: MicroStepEnqueued) -> None:
        self._open_work.add(event.micro_step)
        self._busy(at)

    def _completed(self, at: At, event: MicroStepCompleted) -> None:
        self._open_work.discard(event.micro_step)
        if not self._open_work and self._batch is not None and self._groups < self._limits.groups:
            self._idle_from = self._idle_from or at.time

    def _closed(self, at: At, event: StreamClosed) -> None:
        self._busy(at)

    def _busy(self, at: At) -> None:
        if self._idle_from is not None:
            self._idle += max(0, at.time - self._idle_from) / SECOND
            self._idle_from = None

    def _stepped(self, at: At, event: OptimizerStepped) -> None:
        self._busy(at)
        if self._batch is not None:
            self._steps.append(Waited(at, (at.time - self._batch.time) / SECOND, self._idle))
        self._batch = None
        full = len(self._steps) == self._steps.maxlen
        open_, idle = sum(each.open for each in self._steps), sum(each.idle for each in self._steps)
        if full and idle > (1 - 1 / FAR) * open_ and not self._worst:
            self._worst = tuple(self._steps)

    def _finish(self, at: At, event: RunFinished) -> None:
        self._finished = True
