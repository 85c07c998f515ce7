"""What is about to lapse: deadlines, budgets for scoring, heartbeats, claims that are held far too long."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gyre.core.diagnosis.book import Book
from gyre.core.diagnosis.finding import SECOND, At, Finding, Hear, Kind, Outlook, ids, listed, why
from gyre.core.diagnosis.limits import FAR, Limits
from schemas.roles import CellLost, CellRegistered
from schemas.training import (
    ContributionDiscarded,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepReissued,
    OptimizerStepped,
    StreamClosed,
)

LAPSING = Kind(
    "lease-lapsing",
    "a deadline, the last attempt at a score, a heartbeat or a claim that is about to lapse in a run that goes on",
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A micro-step in some cell's hands."""

    at: At
    cell: int


class Leases:
    """Who holds what, and for how long still."""

    kinds = (LAPSING,)

    def __init__(self, limits: Limits, book: Book) -> None:
        """`book` is folded by whoever made it."""
        self._limits, self._book = limits, book
        self._cells: dict[int, tuple[str, At]] = {}
        self._claims: dict[tuple[int, int], Claim] = {}
        """(step, micro-step) -> who has it."""
        self._pipelines: set[int] = set()
        """Cells that hold micro-steps until later ones push them through, or the stream is closed."""
        self._closed = False
        self._longest = 0.0
        """Of the completed ones, from claim to completion, seconds."""

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {
            CellRegistered: self._registered,
            CellLost: self._lost,
            MicroStepClaimed: self._claimed,
            MicroStepCompleted: self._completed,
            MicroStepReissued: self._reissued,
            ContributionDiscarded: self._discarded,
            StreamClosed: self._close,
            OptimizerStepped: self._stepped,
        }

    @property
    def instances(self) -> frozenset[str]:
        """Of the cells that registered and were not lost."""
        return frozenset(instance for instance, _ in self._cells.values())

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        if outlook.live:
            yield from self._deadlines(outlook)
            yield from self._attempts()
            yield from self._beats(outlook)
            yield from self._held(outlook)

    def _deadlines(self, outlook: Outlook) -> Iterator[Finding]:
        """In the last tenth of their time."""
        found = [
            (each, each.launched, each.deadline - outlook.since(each.launched.time))
            for each in self._book.executions.values()
            if each.launched and each.running
        ]
        found = [each for each in found if 0 < each[2] < each[0].deadline / FAR]
        if found:
            least, _, left = min(found, key=lambda each: each[2])
            says = (
                f"{listed([each.name for each, *_ in found])}: {left:.0f} s are left of {least.deadline:.0f} s before "
                f"{least.name} is ended as a timeout"
            )
            yield Finding(
                LAPSING.name, "warning", says, ids([at for _, at, _ in found]), f"gyre tree {{run}} {least.name}"
            )

    def _attempts(self) -> Iterator[Finding]:
        limit = self._limits.attempts
        found = [
            each for each in self._book.executions.values() if 0 < limit - 1 <= len(each.failed) and not each.settled
        ]
        if found:
            evidence = ids([at for each in found for at in each.failed])
            says = (
                f"{listed([each.name for each in found])}: {len(found[0].failed)} of {limit} assessments found no "
                "score; one more, and it is left out of its group"
            )
            yield Finding(LAPSING.name, "warning", says, evidence, "gyre query verifier-failures {run}")

    def _beats(self, outlook: Outlook) -> Iterator[Finding]:
        silent = outlook.listened
        for cell, (instance, at) in sorted(self._cells.items()):
            if silent > 0 and instance not in outlook.heard:
                says = (
                    f"cell {cell} ({instance}) was not heard for {silent:.1f} s, {silent / self._limits.beat:.0f} "
                    f"heartbeats; after {self._limits.silence:.0f} s it is lost"
                )
                yield Finding(LAPSING.name, "critical", says, (at.id,), "gyre status {run}")

    def _held(self, outlook: Outlook) -> Iterator[Finding]:
        limit = max(FAR * self._longest, self._limits.silence)
        for (step, micro_step), claim in sorted(self._claims.items()):
            held = outlook.since(claim.at.time)
            rests = claim.cell in self._pipelines and not self._closed
            if self._longest and held > limit and not rests:
                says = (
                    f"micro-step {micro_step} of step {step} is held by cell {claim.cell} for {held:.0f} s; the "
                    f"longest so far took {self._longest:.1f} s"
                )
                yield Finding(LAPSING.name, "warning", says, (claim.at.id,), why(claim.at))

    def _registered(self, at: At, event: CellRegistered) -> None:
        self._cells[event.cell] = (event.instance, at)
        self._drop(event.cell)

    def _lost(self, at: At, event: CellLost) -> None:
        if self._cells.get(event.cell, ("",))[0] == event.instance:
            del self._cells[event.cell]
            self._drop(event.cell)

    def _discarded(self, at: At, event: ContributionDiscarded) -> None:
        if self._cells.get(event.cell, ("",))[0] == event.instance:
            self._drop(event.cell)

    def _drop(self, cell: int) -> None:
        self._claims = {key: claim for key, claim in self._claims.items() if claim.cell != cell}

    def _reissued(self, at: At, event: MicroStepReissued) -> None:
        self._claims.pop((event.step, event.micro_step), None)

    def _claimed(self, at: At, event: MicroStepClaimed) -> None:
        self._claims[event.step, event.micro_step] = Claim(at, event.cell)

    def _completed(self, at: At, event: MicroStepCompleted) -> None:
        claim = self._claims.pop((event.step, event.micro_step), None)
        if event.passage is not None:
            self._pipelines.add(event.cell)
        if claim is not None:
            self._longest = max(self._longest, (at.time - claim.at.time) / SECOND)

    def _close(self, _: At, __: StreamClosed) -> None:
        self._closed = True

    def _stepped(self, _: At, __: OptimizerStepped) -> None:
        self._closed = False
        self._claims.clear()
