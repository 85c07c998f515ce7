"""The states that can be seen as of any moment: each a fold over EV, by a name that people know.

What the live deciders know is folded as they fold it: under their filters, and from their last snapshot where that is
early enough. The others are folded from the beginning.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bus import subjects
from bus.consumers import SnapshotFile
from bus.log import Stored
from gyre.config import Config
from gyre.core import chronicle
from gyre.core.chronicle import Chronicle
from gyre.core.plan import Plan
from gyre.core.progress import Progress
from gyre.core.progress import evolve as evolve_progress
from gyre.core.roles import next_to_train
from gyre.core.scheduler_state import Scheduler, supplied, training_open
from gyre.core.timeline import Timeline
from gyre.core.timeline_fold import TimelineFold
from gyre.core.waterlevel import may_train
from schemas.envelope import Event
from schemas.rewards import TreeBuilt
from schemas.runs import RunStarted
from services.hearing import filters_of
from services.minds import Mind, filters, minds
from services.office import snapshot_file
from services.reading import heard
from services.source import Source

STATES: Mapping[str, str] = {
    "progress": "what `gyre status` shows",
    "scheduler": "all that the scheduler knows: counters, cells, supply, groups under way",
    "counters": "executions dispatched, launched, terminated; waterlevel; steps; published version",
    "roles": "each cell's role",
    "cells": "each cell's role, instance and transition",
    "waterlevel": "whether the next cell may go to training, and what it lacks",
    "groups": "every group: task, version, rewards, step; and its executions",
    "admission": "groups that are not admitted in full",
    "batches": "every step's batch: groups, micro-steps, claims by cell, update",
    "packer": "the open batch and all that waits for one",
    "batch": "the same as packer",
    "ledger": "the open step's micro-steps: who holds which, claims, reissues, reduction",
    "trees": "trees that are built: digest, nodes, leaves",
    "timeline": "cells' standings, counters, steps and bursts over time",
}
"""Name -> what it shows."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A state over EV."""

    initial: Callable[[], Any]
    add: Callable[[Any, Stored, Event], Any]
    plain: Callable[[Any], Any]
    """As JSON can carry it."""
    filters: tuple[str, ...] = ()
    """What of EV it hears; () for all."""
    frozen: bool = True
    """Whether a state stays as it is when it is folded on."""
    snapshot: SnapshotFile[Any] | None = None

    def hears(self, stored: Stored) -> bool:
        """Whether a message is folded at all."""
        return subjects.under(self.filters, stored.subject)

    def start(self, until: int | None) -> tuple[Any, int]:
        """A state and the sequence that it is of, from which to fold on to `until` (None: to the end)."""
        kept = self.snapshot.load() if self.snapshot is not None else None
        if kept is None or (until is not None and kept.sequence > until):
            return self.initial(), 0
        return kept.state, kept.sequence


async def state_at(source: Source, name: str, until: int | None) -> Any:
    """One of `STATES` as of a sequence (None: now), as plain data. Raises `RunNotFound`."""
    fold = await fold_of(source, name)
    state, after = fold.start(until)
    async for stored in heard(source.ev, fold.filters, after, until):
        for event in stored.commit.events if stored.commit else ():
            state = fold.add(state, stored, event)
    return fold.plain(state)


async def fold_of(source: Source, name: str) -> Fold:
    """How one of `STATES` is folded. Raises `RunNotFound`."""
    if (made := _PLAIN.get(name)) is not None:
        return made(source.run)
    owner, show = _SHOWN[name]
    started = await source.started()
    mind = minds(started, source.ev, source.blobs)[owner]
    plan = _plan(started)
    return Fold(
        lambda: mind.initial,
        lambda state, stored, event: mind.evolve(state, stored.sequence, event),
        lambda state: show(mind, plan, state),
        filters(source.run, mind),
        snapshot=_snapshot(source, started, mind),
    )


def _plan(started: RunStarted) -> Plan:
    return Config.recorded(started.config).plan(started.tasks)


def _snapshot(source: Source, started: RunStarted, mind: Mind[Any]) -> SnapshotFile[Any] | None:
    """The live decider's, where what it holds cannot have been taken back by a power cut."""
    durable = Config.recorded(started.config).bus.durability == "always"
    return snapshot_file(source.folder, source.run, mind) if source.folder is not None and durable else None


def _whole(mind: Mind[Any], _: Plan, state: Any) -> Any:
    return mind.adapter.dump_python(state, mode="json")


def _part(name: str) -> Callable[[Mind[Any], Plan, Any], Any]:
    return lambda mind, plan, state: _whole(mind, plan, state)[name]


def _waterlevel(_: Mind[Any], plan: Plan, state: Scheduler) -> dict[str, Any]:
    """Every number that the rules about the next cell ask for (design §6)."""
    counts, cell = state.dispatch, next_to_train(state.cells, plan.cells)
    capacity, leaving = state.cells.capacity, cell.capacity if cell else 0
    return {
        "waterlevel": counts.waterlevel,
        "capacity": capacity,
        "next_cell": cell.index if cell else None,
        "leaving": leaving,
        "waterlevel_allows": cell is not None and may_train(counts.waterlevel, capacity, leaving),
        "ready": counts.ready,
        "supply_needed": plan.supply_needed,
        "supplied": supplied(plan, state),
        "supply_timer": state.supply.timer,
        "supply_held": state.supply.fired,
        "training_open": training_open(plan, state),
    }


def _counters(_: Mind[Any], __: Plan, state: Scheduler) -> dict[str, Any]:
    counts = state.dispatch
    return {
        "dispatched": counts.dispatched,
        "launched": counts.launched,
        "terminated": counts.terminated,
        "waterlevel": counts.waterlevel,
        "queued": counts.dispatched - counts.launched,
        "running": counts.running,
        "capacity": state.cells.capacity,
        "groups": counts.groups,
        "groups_ready": counts.ready,
        "groups_assigned": counts.assigned,
        "steps": state.steps,
        "published": state.version,
        "bursts": state.bursts,
        "phase": state.phase,
    }


_SHOWN: Mapping[str, tuple[str, Callable[[Mind[Any], Plan, Any], Any]]] = {
    "scheduler": ("scheduler", _whole),
    "cells": ("scheduler", _part("cells")),
    "counters": ("scheduler", _counters),
    "waterlevel": ("scheduler", _waterlevel),
    "admission": ("admission", _whole),
    "packer": ("packer", _whole),
    "batch": ("packer", _whole),
    "ledger": ("packer", _part("ledger")),
}
"""Name -> the decider that knows it, and what of it is shown."""


def _progress(_: str) -> Fold:
    return Fold(Progress, _on, asdict)


def _roles(_: str) -> Fold:
    return Fold(Progress, _on, lambda state: dict(sorted(state.roles.items())))


def _on(state: Progress, stored: Stored, event: Event) -> Progress:
    commit = stored.commit
    return evolve_progress(state, commit.time, event, commit.producer.instance) if commit else state


def _groups(run: str) -> Fold:
    def plain(book: Chronicle) -> dict[str, Any]:
        groups = {name: asdict(group) for name, group in book.groups.items()}
        for name, group in groups.items():
            group["executions"] = {each: asdict(book.executions[each]) for each in book.groups[name].executions}
        return groups

    return _told(run, plain)


def _batches(run: str) -> Fold:
    return _told(run, lambda book: {step: asdict(batch) for step, batch in book.batches.items()})


def _told(run: str, plain: Callable[[Chronicle], Any]) -> Fold:
    def add(book: Chronicle, stored: Stored, event: Event) -> Chronicle:
        book.add(stored.commit.time if stored.commit else 0, event)
        return book

    return Fold(Chronicle, add, plain, filters_of(run, chronicle.FOLDS), frozen=False)


def _trees(run: str) -> Fold:
    """Digest, size and leaves of each tree that was built, by execution."""

    def add(state: dict[str, Any], _: Stored, event: Event) -> dict[str, Any]:
        if not isinstance(event, TreeBuilt):
            return state
        state[event.execution] = event.model_dump(mode="json", include={"digest", "nodes", "leaves"})
        return state

    return Fold(dict, add, dict, (subjects.producer(run, "builder"),), frozen=False)


def _timeline(_: str) -> Fold:
    def add(state: TimelineFold, stored: Stored, event: Event) -> TimelineFold:
        state.add((stored.commit.time if stored.commit else 0) / 1e9, event)
        return state

    def plain(state: TimelineFold) -> dict[str, Any]:
        timeline: Timeline = state.timeline()
        figures = {"utilisation": timeline.utilisation, "staleness": timeline.staleness}
        return {**asdict(timeline), **figures, "shares": timeline.shares()}

    return Fold(TimelineFold, add, plain, frozen=False)


_PLAIN: Mapping[str, Callable[[str], Fold]] = {
    "progress": _progress,
    "roles": _roles,
    "groups": _groups,
    "batches": _batches,
    "trees": _trees,
    "timeline": _timeline,
}
"""Name -> its fold for a run, where no decider knows it."""
