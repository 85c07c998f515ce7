"""Cells that come and go, that do not come back, and offices that change hands."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gyre.core.diagnosis.finding import SECOND, At, Finding, Hear, Kind, Outlook, ids, why
from gyre.core.diagnosis.limits import IN_A_ROW, Limits
from gyre.core.diagnosis.windows import Lives
from schemas.roles import CellLost, CellRegistered, RoleTransitionCompleted, RoleTransitionFailed
from schemas.runs import OfficeTaken, RunFinished, RunStarted

FLAPPING = Kind("cell-flapping", "a cell that dies soon after each start, or whose transitions fail again and again")
MISSING = Kind("cell-missing", "a cell that was lost and has not come back, or that never registered")
CONTESTED = Kind("office-contested", "an office that changes hands again and again: a crash loop, or two rivals")


@dataclass(slots=True, eq=False)
class Cell:
    """One cell's processes, one after the other."""

    lives: Lives
    instance: str = ""
    lost: At | None = None
    failures: list[At] = field(default_factory=list)
    """Transitions that failed since the last one that did not."""
    reason: str = ""
    failed: tuple[At, ...] = ()
    """The first row of failures that was found."""


class Cells:
    """All cells and offices."""

    kinds = (FLAPPING, MISSING, CONTESTED)

    def __init__(self, limits: Limits) -> None:
        """None registered."""
        self._limits = limits
        self._cells: dict[int, Cell] = {}
        self._offices: dict[str, Lives] = {}
        self._started: At | None = None
        self._finished = False

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {
            RunStarted: self._run_started,
            RunFinished: self._run_finished,
            CellRegistered: self._registered,
            CellLost: self._lost,
            RoleTransitionCompleted: lambda _, event: self._cell(event.cell).failures.clear(),
            RoleTransitionFailed: self._failed,
            OfficeTaken: lambda at, event: self._office(event.service).begin(at),
        }

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        for index, cell in sorted(self._cells.items()):
            yield from self._flapping(index, cell)
        if not self._finished:
            yield from self._missing(outlook)
        for service, lives in sorted(self._offices.items()):
            if lives.found:
                says = (
                    f"the office of {service} changed hands {len(lives.found) - 1} times within "
                    f"{_span(lives.found):.0f} s ({lives.total} terms in all)"
                )
                yield Finding(CONTESTED.name, "critical", says, ids(lives.found), why(lives.found[-1]))

    def _flapping(self, index: int, cell: Cell) -> Iterator[Finding]:
        found = cell.lives.found
        if found:
            says = (
                f"cell {index} registered {len(found)} times within {_span(found):.0f} s ({cell.lives.total} times in "
                f"all): none of {len(found) - 1} processes lived for {self._limits.short_life:.0f} s"
            )
            yield Finding(FLAPPING.name, "critical", says, ids(found), "gyre query role-timeline {run}")
        if cell.failed:
            says = f"{len(cell.failed)} transitions of cell {index} failed one after the other, the last {cell.reason}"
            yield Finding(FLAPPING.name, "critical", says, ids(cell.failed), why(cell.failed[-1]))

    def _missing(self, outlook: Outlook) -> Iterator[Finding]:
        for index, cell in sorted(self._cells.items()):
            if cell.lost is not None and outlook.since(cell.lost.time) > self._limits.silence:
                says = (
                    f"cell {index} ({cell.instance}) was lost {outlook.since(cell.lost.time):.0f} s ago and is not back"
                )
                yield Finding(MISSING.name, "critical", says, (cell.lost.id,), why(cell.lost))
        began = self._started
        absent = sorted(set(range(self._limits.cells)) - set(self._cells))
        if began is not None and absent and outlook.since(began.time) > self._limits.short_life:
            says = (
                f"cells {', '.join(map(str, absent))} of {self._limits.cells} have not registered in "
                f"{outlook.since(began.time):.0f} s; the run begins with all of them"
            )
            yield Finding(MISSING.name, "critical", says, (began.id,), "gyre status {run}")

    def _cell(self, index: int) -> Cell:
        return self._cells.setdefault(index, Cell(Lives(self._limits.short_life, IN_A_ROW)))

    def _office(self, service: str) -> Lives:
        return self._offices.setdefault(service, Lives(self._limits.short_life, IN_A_ROW))

    def _run_started(self, at: At, event: RunStarted) -> None:
        self._started = at

    def _run_finished(self, at: At, event: RunFinished) -> None:
        self._finished = True

    def _registered(self, at: At, event: CellRegistered) -> None:
        cell = self._cell(event.cell)
        cell.lost = None
        if cell.instance != event.instance:
            cell.instance = event.instance
            cell.lives.begin(at)

    def _lost(self, at: At, event: CellLost) -> None:
        cell = self._cell(event.cell)
        if cell.instance == event.instance:
            cell.lost = at

    def _failed(self, at: At, event: RoleTransitionFailed) -> None:
        cell = self._cell(event.cell)
        cell.failures.append(at)
        cell.reason = f"in {event.phase}: {event.reason}"
        if len(cell.failures) >= IN_A_ROW and not cell.failed:
            cell.failed = tuple(cell.failures)


def _span(found: tuple[At, ...]) -> float:
    return (found[-1].time - found[0].time) / SECOND
