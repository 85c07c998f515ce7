"""All families over one log: each event reaches those that hear it, and all say what they found."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gyre.core.diagnosis.book import Book
from gyre.core.diagnosis.calls import Calls
from gyre.core.diagnosis.cells import Cells
from gyre.core.diagnosis.clocks import Clocks
from gyre.core.diagnosis.finding import At, Detector, Finding, Hear, Kind, Outlook
from gyre.core.diagnosis.harness import Harness
from gyre.core.diagnosis.leases import Leases
from gyre.core.diagnosis.limits import Limits
from gyre.core.diagnosis.logs import Logs
from gyre.core.diagnosis.rewards import Rewards
from gyre.core.diagnosis.scoring import Scoring
from gyre.core.diagnosis.silences import Silences
from gyre.core.diagnosis.stuck import Stuck
from gyre.core.diagnosis.supply import Supply
from gyre.core.diagnosis.training import Training
from gyre.core.diagnosis.versions import Versions
from schemas.calls import ModelCallRecorded
from schemas.envelope import Commit
from schemas.runs import RunFinished
from schemas.training import StepAborted

FAMILIES: tuple[type[Any], ...] = (
    Stuck, Leases, Silences, Scoring, Rewards, Harness, Calls, Versions, Supply, Cells, Training, Clocks, Logs,
)  # fmt: skip
KINDS: Mapping[str, Kind] = {kind.name: kind for family in FAMILIES for kind in family.kinds}
"""Every finding there is, by name."""
FOLLOWS = frozenset({"zero-variance", "supply-starvation"})
"""What follows from most other faults as well: said last."""


class Doctor:
    """One run's log, heard event by event: EV from its start, then CALL."""

    def __init__(self, limits: Limits) -> None:
        """Nothing heard."""
        book = Book()
        self._clocks, self._logs, self._leases = Clocks(limits), Logs(limits, book), Leases(limits, book)
        self._silences = Silences(limits)
        self._detectors: tuple[Detector, ...] = (
            Stuck(limits, book),
            self._leases,
            self._silences,
            Scoring(limits),
            Rewards(limits),
            Harness(limits),
            Calls(limits),
            Versions(limits),
            Supply(limits, book),
            Cells(limits),
            Training(limits),
            self._clocks,
            self._logs,
        )
        self._hears: defaultdict[type[Any], list[Hear]] = defaultdict(list)
        for part in (book, *self._detectors):
            for kind, hear in part.hears.items():
                self._hears[kind].append(hear)
        self.events = 0
        self.last = 0
        """Time of the latest event (UTC, ns)."""
        self.over = False
        """Whether the log says that the run has ended: nothing more will come."""

    @property
    def beating(self) -> frozenset[str]:
        """Instances of cells, offices and runners that are there, as the log has it: they should be heard."""
        return self._leases.instances | self._silences.instances

    def hear(self, stream: str, sequence: int, commit: Commit) -> None:
        """One commit of a stream, EV or CALL."""
        self.last = max(self.last, commit.time)
        if stream == "EV":
            at = At(sequence, 0, commit.time)
            self._clocks.commit(at, commit)
            self._logs.commit(at, commit)
        for index, event in enumerate(commit.events):
            self.events += 1
            handlers = self._hears.get(type(event))
            if handlers is not None:
                execution = event.execution if isinstance(event, ModelCallRecorded) else ""
                at = At(sequence, index, commit.time, execution)
                for hear in handlers:
                    hear(at, event)
            if isinstance(event, RunFinished | StepAborted):
                self.over = True

    def unreadable(self, stream: str, sequence: int, reason: str) -> None:
        """A stored message that is no commit."""
        self._logs.unreadable(stream, sequence, reason)

    def findings(self, outlook: Outlook, only: Iterable[str] = ()) -> Iterator[Finding]:
        """All that is wrong, causes and the critical first; with `only`, of these names. Asking changes nothing."""
        names = frozenset(only) or frozenset(KINDS)
        found = [each for detector in self._detectors for each in detector.findings(outlook) if each.name in names]
        yield from sorted(found, key=lambda each: (each.name in FOLLOWS, each.severity != "critical"))
