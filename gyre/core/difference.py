"""What two states, two configurations or two runs differ in, as plain rows (what, here, there).

Nothing here reads a log: `Account` holds what was folded of each side up to its moment.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from gyre.core.chronicle import Chronicle
from gyre.core.progress import Progress, Step
from schemas.runs import RunStarted

PLACES = frozenset({"run.name", "run.folder", "run.keep_weights", "bus.url", "bus.durability", "bus.max_bytes"})
"""Settings that say where a run lies, not what it does."""


class Row(NamedTuple):
    """One thing that is otherwise on the two sides; None: it is not there."""

    what: str
    here: Any
    there: Any


class Solved(NamedTuple):
    """How a task's executions were scored."""

    executions: int
    """With a valid reward."""
    mean: float


@dataclass(frozen=True, slots=True)
class StepPair:
    """One step on both sides; None where a side has not done it."""

    step: int
    here: Step | None
    there: Step | None


@dataclass(slots=True)
class Account:
    """One side: a run up to a moment."""

    run: str
    sequence: int
    """Of EV, up to which it was folded."""
    started: RunStarted
    progress: Progress = field(default_factory=Progress)
    chronicle: Chronicle = field(default_factory=Chronicle)
    counts: Counter[str] = field(default_factory=Counter)
    """Event type -> how often it was said."""


def changes(before: Any, after: Any, path: str = "") -> Iterator[Row]:
    """What became otherwise from one plain state to the next, the parts of its place joined by dots."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from changes(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif _listed(before) and _listed(after) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changes(old, new, f"{path}.{index}" if path else str(index))
    elif before != after:
        yield Row(path, before, after)


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def settings(here: RunStarted, there: RunStarted) -> tuple[Row, ...]:
    """What the two were started with: every key of the configuration that differs, then code, weights and tasks."""
    rows = list(changes(here.config, there.config))
    pairs = {
        "code_version": (here.code_version, there.code_version),
        "weights": (here.weights.digest[:12], there.weights.digest[:12]),
        "tasks": (_tasks(here.tasks), _tasks(there.tasks)),
        "heldout": (_tasks(here.heldout), _tasks(there.heldout)),
    }
    same = {"tasks": here.tasks == there.tasks, "heldout": here.heldout == there.heldout}
    rows += [Row(name, *pair) for name, pair in pairs.items() if not same.get(name, pair[0] == pair[1])]
    return tuple(rows)


def _tasks(names: Sequence[str]) -> str:
    return f"{len(names)}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"  # noqa: PLR2004 - enough to know


def alike(rows: Sequence[Row]) -> bool:
    """Whether two runs with these differing settings were to do the same."""
    return all(row.what in PLACES for row in rows)


def counters(here: Account, there: Account) -> tuple[Row, ...]:
    """The counters of both sides, equal ones too."""
    return tuple(
        Row(name, mine, other)
        for (name, mine), other in zip(_counters(here).items(), _counters(there).values(), strict=True)
    )


def _counters(account: Account) -> dict[str, float]:
    progress, groups = account.progress, account.chronicle.groups.values()
    return {
        "sequence": account.sequence,
        "seconds": progress.seconds,
        "dispatched": progress.dispatched,
        "launched": progress.launched,
        "terminated": progress.terminated,
        "groups dispatched": len(groups),
        "groups ready": sum(group.standing != "open" for group in groups),
        "groups trained": sum(group.standing == "trained" for group in groups),
        "steps": len(progress.done),
        "published version": progress.published,
        "cells lost": account.counts["CellLost"],
        "role transitions": account.counts["RoleTransitionRequested"],
        "calls retried": account.counts["ModelCallRetried"],
        "micro-steps reissued": account.counts["MicroStepReissued"],
        "events": account.counts.total(),
    }


def steps(here: Progress, there: Progress) -> tuple[StepPair, ...]:
    """Every step that either side has done."""
    mine, others = ({each.step: each for each in side.done} for side in (here, there))
    return tuple(StepPair(step, mine.get(step), others.get(step)) for step in sorted(mine.keys() | others.keys()))


def endings(here: Chronicle, there: Chronicle) -> tuple[Row, ...]:
    """How executions ended, by reason and stage, and how those that ended are scored; the most frequent first."""
    mine, others = _endings(here), _endings(there)
    return tuple(Row(name, mine[name], others[name]) for name, _ in (mine + others).most_common())


def _endings(book: Chronicle) -> Counter[str]:
    ended = [each for each in book.executions.values() if each.reason]
    found = Counter(f"{each.reason} in {each.stage}" for each in ended)
    return found + Counter(each.standing for each in ended if each.standing != "ended")


def solved(here: Chronicle, there: Chronicle) -> tuple[Row, ...]:
    """Each task's `Solved` on both sides, those that differ most first; None: no execution of it was scored."""
    mine, others = _solved(here), _solved(there)
    rows = [Row(task, mine.get(task), others.get(task)) for task in sorted(mine.keys() | others.keys())]
    return tuple(sorted(rows, key=_apart, reverse=True))


def _apart(row: Row) -> float:
    return 0.0 if row.here is None or row.there is None else abs(row.here.mean - row.there.mean)


def _solved(book: Chronicle) -> dict[str, Solved]:
    rewards: dict[str, list[float]] = {}
    for each in book.executions.values():
        if each.reward is not None and each.standing == "valid":
            rewards.setdefault(each.task, []).append(each.reward)
    return {task: Solved(len(found), fmean(found)) for task, found in rewards.items()}


def said(here: Counter[str], there: Counter[str]) -> tuple[Row, ...]:
    """Event types that were said more often on one side."""
    return tuple(Row(kind, here[kind], there[kind]) for kind in sorted(here | there) if here[kind] != there[kind])
