"""Executions that do not end, and groups that can never become ready."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gyre.core.diagnosis.book import Book, Execution, Group
from gyre.core.diagnosis.finding import At, Finding, Hear, Kind, Outlook, Severity, ids, listed, why
from gyre.core.diagnosis.limits import FAR, HALF, Limits
from schemas.runs import RunFinished

STUCK = Kind("stuck-execution", "executions that were granted and never launched, or run on beyond their deadline")
SILENT = Kind("silent-execution", "executions that have made no model call for over half of their deadline")
NEVER = Kind("group-never-ready", "groups that wait for something which is overdue: a seal, a tree, a score, a member")

Overdue = list[tuple[Execution, At]]
"""Executions, each with the event since which they wait."""


class Stuck:
    """What is under way and does not move."""

    kinds = (STUCK, SILENT, NEVER)

    def __init__(self, limits: Limits, book: Book) -> None:
        """`book` is folded by whoever made it."""
        self._limits, self._book = limits, book
        self._finished = False

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {RunFinished: self._finish}

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        if self._finished:
            return
        yield from self._unlaunched(outlook)
        yield from self._endless(outlook)
        yield from self._silent(outlook)
        yield from self._groups(outlook)

    def _finish(self, at: At, event: RunFinished) -> None:
        self._finished = True

    def _unlaunched(self, outlook: Outlook) -> Iterator[Finding]:
        found = [
            (each, each.granted)
            for each in self._book.executions.values()
            if each.granted and not each.launched
            if self._overdue(each.granted, "launched", self._limits.silence, outlook)
        ]
        if found:
            waited = max(outlook.since(at.time) for _, at in found)
            says = f"{_many(found)} granted and not launched for up to {waited:.0f} s: is there a runner?"
            yield Finding(STUCK.name, "critical", says, ids([at for _, at in found]), why(found[0][1]))

    def _endless(self, outlook: Outlook) -> Iterator[Finding]:
        found = [
            (each, each.launched)
            for each in self._book.executions.values()
            if each.launched
            and each.running
            and outlook.since(each.launched.time) > each.deadline + self._limits.closing
        ]
        if found:
            worst, at = max(found, key=lambda pair: outlook.since(pair[1].time) - pair[0].deadline)
            says = (
                f"{_many(found)} still running after their deadline, {worst.name} for {outlook.since(at.time):.0f} s "
                f"with {worst.deadline:.0f} s allowed (and {self._limits.closing:.0f} s to be ended)"
            )
            yield Finding(STUCK.name, "critical", says, ids([at for _, at in found]), why(at))

    def _overdue(self, since: At, stage: str, limit: float, outlook: Outlook) -> bool:
        """Whether a stage is waited for too long: for ten times the limit, or for the limit while nobody reaches it.

        A queue that moves may be long.
        """
        latest = self._book.latest.get(stage, since)
        return outlook.since(max(since, latest).time) > limit or outlook.since(since.time) > FAR * limit

    def _silent(self, outlook: Outlook) -> Iterator[Finding]:
        found = [
            (each, each.called or each.launched)
            for each in self._book.executions.values()
            if each.launched
            and each.running
            and outlook.since((each.called or each.launched).time) > HALF * each.deadline
        ]
        if found:
            worst, at = max(found, key=lambda pair: outlook.since(pair[1].time))
            says = (
                f"{_many(found)} running without a model call, {worst.name} for {outlook.since(at.time):.0f} s of its "
                f"{worst.deadline:.0f} s: a harness that hangs, or work of its own"
            )
            evidence = ids([each.launched for each, _ in found if each.launched])
            yield Finding(SILENT.name, "warning", says, evidence, f"gyre tree {{run}} {worst.name}")

    def _groups(self, outlook: Outlook) -> Iterator[Finding]:
        """What keeps groups from being ready, the earliest thing that is lacking of each."""
        limits = self._limits
        checks: tuple[tuple[str, str, float, Callable[[Execution], At | None]], ...] = (
            ("sealed", "records were not sealed (proxy)", limits.silence, _unsealed),
            ("built", "tree was not built (builder)", limits.silence, _treeless),
            ("settled", "state was not scored (evaluator)", limits.scoring + limits.silence, _unscored),
        )
        waiting = [group for group in self._book.groups.values() if len(group.members) >= group.size]
        for stage, what, limit, since in checks:
            found = [
                (each, at)
                for group in waiting
                for each in self._book.members(group)
                if (at := since(each)) is not None and self._overdue(at, stage, limit, outlook)
            ]
            if found:
                yield _lacking(found, what, limit, outlook)
        yield from self._undecided(waiting, outlook)
        yield from self._incomplete(outlook)

    def _undecided(self, waiting: list[Group], outlook: Outlook) -> Iterator[Finding]:
        """All is there, and admission does not say so."""
        found = [
            (group, last)
            for group in waiting
            if (last := self._complete(group)) is not None and outlook.since(last.time) > self._limits.silence
        ]
        if found:
            names = listed([group.name for group, _ in found])
            waited = max(outlook.since(last.time) for _, last in found)
            says = f"{names}: every execution is sealed, read and scored for up to {waited:.0f} s, and not said ready"
            yield Finding(NEVER.name, "critical", says, ids([last for _, last in found]), why(found[0][1]))

    def _complete(self, group: Group) -> At | None:
        """The last thing that it waited for; None while it waits for something."""
        stages = [at for each in self._book.members(group) for at in (each.sealed, each.built, each.settled)]
        there = [at for at in stages if at is not None]
        return max(there) if len(there) == len(stages) else None

    def _incomplete(self, outlook: Outlook) -> Iterator[Finding]:
        """The scheduler began to dispatch it and did not go on."""
        found = [
            group
            for group in self._book.groups.values()
            if len(group.members) < group.size and outlook.since(group.dispatched.time) > self._limits.silence
        ]
        if found:
            group = found[0]
            says = (
                f"{listed([each.name for each in found])}: {len(group.members)} of {group.size} executions were "
                f"dispatched in {outlook.since(group.dispatched.time):.0f} s (scheduler)"
            )
            evidence = ids([each.dispatched for each in found])
            yield Finding(NEVER.name, "critical", says, evidence, why(group.dispatched))


def _unsealed(execution: Execution) -> At | None:
    return execution.terminated if execution.sealed is None else None


def _treeless(execution: Execution) -> At | None:
    return execution.sealed if execution.built is None else None


def _unscored(execution: Execution) -> At | None:
    return execution.terminated if execution.settled is None else None


def _lacking(found: Overdue, what: str, limit: float, outlook: Outlook) -> Finding:
    worst, at = max(found, key=lambda pair: outlook.since(pair[1].time))
    groups = listed(sorted({each.group for each, _ in found}))
    severity: Severity = "critical"
    says = (
        f"{groups} cannot become ready: {worst.name} ended and its {what} for {outlook.since(at.time):.0f} s, "
        f"{limit:.0f} s is the most ({len(found)} executions)"
    )
    return Finding(NEVER.name, severity, says, ids([at for _, at in found]), why(at))


def _many(found: Overdue) -> str:
    names = listed([each.name for each, _ in found])
    return f"{names} {'is' if len(found) == 1 else 'are'}"
