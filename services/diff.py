"""`gyre diff A B`: two runs, or two moments, each read once up to its moment and held against the other."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gyre.core import difference, divergence
from gyre.core.difference import Account, Row, StepPair
from gyre.core.divergence import Parting, Telling
from gyre.core.progress import Step
from gyre.core.progress import evolve as evolve_progress
from services.moments import FORMS, MomentUnknown, sequence_at
from services.reading import heard
from services.source import Source, open_source


@dataclass(frozen=True, slots=True)
class Side:
    """One side as it was asked for."""

    name: str
    account: Account
    telling: Telling


@dataclass(frozen=True, slots=True)
class Difference:
    """What the two sides differ in."""

    here: Side
    there: Side
    settings: tuple[Row, ...]
    counters: tuple[Row, ...]
    steps: tuple[StepPair, ...]
    endings: tuple[Row, ...]
    tasks: tuple[Row, ...]
    said: tuple[Row, ...]
    same_run: bool
    """Whether they are two moments of one run."""
    alike: bool
    """Whether both were to do the same: equal settings, seed, tasks and first weights."""
    fact: Parting | None
    """The first fact that is told otherwise; only where they are alike and not one run."""
    decisions: tuple[Parting, ...]


async def difference_of(one: str, other: str, runs: Path) -> Difference:
    """Compare two of RUN, ARCHIVE, RUN@MOMENT. Raises `SourceNotFound`, `MomentUnknown`, `RunNotFound`."""
    here, there = await side_of(one, runs), await side_of(other, runs)
    mine, others = here.account, there.account
    settings = difference.settings(mine.started, others.started)
    same_run = mine.run == others.run and mine.started == others.started
    alike = difference.alike(settings)
    parts = alike and not same_run
    return Difference(
        here,
        there,
        settings,
        difference.counters(mine, others),
        difference.steps(mine.progress, others.progress),
        difference.endings(mine.chronicle, others.chronicle),
        difference.solved(mine.chronicle, others.chronicle),
        difference.said(mine.counts, others.counts),
        same_run,
        alike,
        divergence.first_fact(here.telling, there.telling) if parts else None,
        divergence.first_decisions(here.telling, there.telling) if parts else (),
    )


async def side_of(text: str, runs: Path) -> Side:
    """Read one side up to its moment; the whole text is tried as a name first, since a path may hold an @."""
    target, _, moment = text.rpartition("@")
    if not target or Path(text).is_file() or (runs / text).is_dir():
        target, moment = text, ""
    elif not moment:
        raise MomentUnknown(f"{text}: no moment follows the @; give {FORMS}, or leave out the @")
    async with open_source(target, runs) as source:
        until = await sequence_at(source, moment) if moment else await source.ev.head()
        return await _read(source, text, until)


async def _read(source: Source, name: str, until: int) -> Side:
    account, telling = Account(source.run, until, await source.started()), Telling()
    async for stored in heard(source.ev, (), until=until):
        commit = stored.commit
        if commit is None:
            continue
        telling.add(stored.sequence, commit.producer.service, commit.events)
        for event in commit.events:
            account.progress = evolve_progress(account.progress, commit.time, event, commit.producer.instance)
            account.chronicle.add(commit.time, event)
            account.counts[event.type] += 1
    return Side(name, account, telling)


def plain(found: Difference) -> dict[str, Any]:
    """As JSON; `here` is the first side that was named."""
    return {
        "here": {"name": found.here.name, "run": found.here.account.run, "sequence": found.here.account.sequence},
        "there": {"name": found.there.name, "run": found.there.account.run, "sequence": found.there.account.sequence},
        "same_run": found.same_run,
        "alike": found.alike,
        "settings": _rows(found.settings),
        "counters": _rows(found.counters),
        "steps": [{"step": each.step, "here": _step(each.here), "there": _step(each.there)} for each in found.steps],
        "endings": _rows(found.endings),
        "tasks": [{"task": row.what, "here": _solved(row.here), "there": _solved(row.there)} for row in found.tasks],
        "said": _rows(found.said),
        "first_fact": None if found.fact is None else _parting(found.fact),
        "first_decisions": [_parting(each) for each in found.decisions],
    }


def _rows(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    return [row._asdict() for row in rows]


def _solved(value: difference.Solved | None) -> dict[str, Any] | None:
    return None if value is None else value._asdict()


def _parting(parting: Parting) -> dict[str, Any]:
    ids = {"here": parting.here, "there": parting.there}
    places = {name: None if place is None else str(place) for name, place in ids.items()}
    return {"of": parting.of, **places, "here_says": parting.here_says, "there_says": parting.there_says}


def _step(step: Step | None) -> dict[str, Any] | None:
    """The figures of a step that can be compared."""
    if step is None:
        return None
    kept = {
        name: value
        for name, value in asdict(step).items()
        if name in ("seconds", "loss", "gradient_norm", "targets", "masked", "executions", "members", "committed")
    }
    staleness = sum(step.staleness) / len(step.staleness) if step.staleness else None
    return {"reward": step.reward, "staleness": staleness, "max_delta_log_p": step.max_delta_log_p, **kept}
