"""Read a run's log again: every decision decided a second time, every outcome audited (`--verify`); how far it was."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bus import subjects
from bus.errors import BusError
from bus.log import Stored
from gyre.config import Config
from gyre.core import tree
from gyre.core.audit import Audit
from gyre.core.progress import Progress
from gyre.core.progress import evolve as evolve_progress
from gyre.core.tree import Called
from gyre.errors import GyreError
from schemas.calls import ModelCallRecorded, RecordsSealed
from schemas.envelope import Commit
from schemas.rewards import TreeBuilt
from schemas.roles import CellLost
from schemas.runs import EventQuarantined, OfficeTaken, TimerFired
from schemas.speakers import may_say
from services.minds import Mind, filters, minds
from services.office import snapshot_file
from services.source import Source, messages
from services.telling import telling

OBSERVATIONS = (OfficeTaken, TimerFired, CellLost, EventQuarantined)
"""What shells say without deciding."""


@dataclass(slots=True)
class Verdict:
    """What a verification found."""

    events: int = 0
    decisions: int = 0
    trees: int = 0
    snapshots: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Second:
    """One decider thinking again, behind the log: its state waits at the last `as_of`."""

    mind: Mind[Any]
    state: Any
    filters: tuple[str, ...]
    waiting: deque[Stored] = field(default_factory=deque)

    def hear(self, stored: Stored) -> None:
        """Keep a message until it is folded, if the live service was given it."""
        if subjects.under(self.filters, stored.subject):
            self.waiting.append(stored)

    def fold_to(self, sequence: int) -> None:
        """Fold up to this sequence."""
        while self.waiting and self.waiting[0].sequence <= sequence:
            stored = self.waiting.popleft()
            for event in stored.commit.events if stored.commit else ():
                self.state = self.mind.evolve(self.state, stored.sequence, event)


async def verify(source: Source, progress: Callable[[int], None] = lambda _: None) -> Verdict:
    """Decide every recorded decision again, audit what others said, rebuild every tree, compare every snapshot.

    `progress` is called with each sequence read. Raises `RunNotFound`.
    """
    verdict, started = Verdict(), await source.started()
    schedule = Config.recorded(started.config).schedule
    audit = Audit(schedule.groups, schedule.executions)
    seconds = {
        service: Second(mind, mind.initial, filters(source.run, mind))
        for service, mind in minds(started, source.ev, source.blobs).items()
    }
    kept = _snapshots(source, seconds)
    sealed: dict[str, RecordsSealed] = {}
    built: dict[str, TreeBuilt] = {}
    async for stored in messages(source.ev):
        progress(stored.sequence)
        for second in seconds.values():
            second.hear(stored)
        if stored.commit is None:
            continue
        verdict.events += len(stored.commit.events)
        who = f"sequence {stored.sequence} ({stored.commit.producer.service})"
        verdict.differences += [f"{who}: {wrong}" for wrong in _audited(audit, stored.commit)]
        _note_trees(stored.commit, sealed, built)
        second_of = seconds.get(stored.commit.producer.service)
        if second_of is not None and not _only_observes(stored.commit):
            verdict.decisions += 1
            verdict.differences += await _decide_again(second_of, stored, stored.commit, kept, verdict)
    for second in seconds.values():
        _compare_snapshot(second, kept, verdict, None)
    await _rebuild_trees(source, sealed, built, verdict)
    return verdict


def _audited(audit: Audit, commit: Commit) -> Iterator[str]:
    for event in commit.events:
        if not may_say(commit.producer.service, event.type):
            yield f"{event.type} is not for this service to say"
        yield from audit.add(event)


def _only_observes(commit: Commit) -> bool:
    """Whether its shell said it without deciding; no shell says more than it saw."""
    return all(isinstance(event, OBSERVATIONS) for event in commit.events)


async def _decide_again(
    second: Second, stored: Stored, commit: Commit, kept: dict[str, tuple[Any, int]], verdict: Verdict
) -> list[str]:
    _compare_snapshot(second, kept, verdict, commit.as_of)
    second.fold_to(commit.as_of)
    where = f"sequence {stored.sequence} ({second.mind.service}, as of {commit.as_of})"
    try:
        decision = await second.mind.think(second.state)
    except (GyreError, BusError, ValueError, LookupError) as error:  # the log holds what no service of ours said
        return [f"{where}: no decision ({' '.join(str(error).split())}), recorded {_types(commit)}"]
    if decision is None:
        return [f"{where}: nothing was due, recorded {_types(commit)}"]
    if decision.events != commit.events:
        decided = ", ".join(type(event).__name__ for event in decision.events)
        return [f"{where}: decided {decided}, recorded {_types(commit)}, or the same with other contents"]
    return []


def _types(commit: Commit) -> str:
    return ", ".join(type(event).__name__ for event in commit.events)


def _snapshots(source: Source, seconds: dict[str, Second]) -> dict[str, tuple[Any, int]]:
    """(state, sequence) of each live decider's last snapshot."""
    if source.folder is None:
        return {}
    found = {
        service: snapshot_file(source.folder, source.run, second.mind).load() for service, second in seconds.items()
    }
    return {service: (kept.state, kept.sequence) for service, kept in found.items() if kept is not None}


def _compare_snapshot(second: Second, kept: dict[str, tuple[Any, int]], verdict: Verdict, before: int | None) -> None:
    """Compare once the fold stands where the snapshot was taken; `before`: the next place that it will be folded to."""
    state, sequence = kept.get(second.mind.service, (None, 0))
    if sequence == 0 or (before is not None and before < sequence):
        return
    del kept[second.mind.service]
    second.fold_to(sequence)
    verdict.snapshots += 1
    if second.state != state:
        verdict.differences.append(f"snapshot of {second.mind.service} at sequence {sequence}: not what the log gives")


def _note_trees(commit: Commit, sealed: dict[str, RecordsSealed], built: dict[str, TreeBuilt]) -> None:
    for event in commit.events:
        if isinstance(event, RecordsSealed):
            sealed[event.execution] = event
        elif isinstance(event, TreeBuilt):
            built[event.execution] = event


async def _rebuild_trees(
    source: Source, sealed: dict[str, RecordsSealed], built: dict[str, TreeBuilt], verdict: Verdict
) -> None:
    """Fold every sealed execution from CALL alone, and hold what was sealed and built against it.

    Each is let go where its seal ends: a run's trees together may be more than memory holds.
    """
    unread, called = dict(sealed), dict[str, _Called]()
    async for stored in messages(source.calls):
        events = stored.commit.events if stored.commit else ()
        said = [event for event in events if isinstance(event, Called) and event.execution in unread]
        for event in said:
            if stored.sequence <= unread[event.execution].last_sequence:
                called.setdefault(event.execution, _Called(tree.fold(event.execution, ()))).add(event)
        for execution in dict.fromkeys(event.execution for event in said):
            if stored.sequence >= unread[execution].last_sequence:
                _compare_tree(unread.pop(execution), called.pop(execution, None), built, verdict)
    for execution, seal in unread.items():
        _compare_tree(seal, called.get(execution), built, verdict)
    verdict.differences += [f"tree of {each}: its records were never sealed" for each in built if each not in sealed]


def _compare_tree(seal: RecordsSealed, held: "_Called | None", built: dict[str, TreeBuilt], verdict: Verdict) -> None:
    found, recorded = held or _Called(tree.fold(seal.execution, ())), built.get(seal.execution)
    if (found.records, tree.records_digest(found.digests)) != (seal.count, seal.digest):
        line = f"records of {seal.execution}: CALL holds others than those {seal.count} sealed ones"
        verdict.differences.append(line)
        if recorded is not None and not recorded.nodes:  # as the builder gives it then
            return
    if recorded is not None:
        verdict.trees += 1
        verdict.differences += _not_its_tree(found.tree, recorded)


@dataclass(slots=True)
class _Called:
    """What CALL holds of one execution."""

    tree: tree.Tree
    records: int = 0
    digests: list[str] = field(default_factory=list)

    def add(self, event: Called) -> None:
        self.tree = tree.evolve(self.tree, event)
        self.records += isinstance(event, ModelCallRecorded)
        self.digests.append(tree.record_digest(event))


def _not_its_tree(found: tree.Tree, event: TreeBuilt) -> list[str]:
    digest, body = tree.digest(found), event.body.digest if event.body else None
    if digest != event.digest:
        return [f"tree of {event.execution}: CALL gives {digest[:12]}, recorded {event.digest[:12]}"]
    if (len(found.nodes), digest if found.nodes else None) != (event.nodes, body):
        return [f"tree of {event.execution}: it has {len(found.nodes)} nodes, and another body than was recorded"]
    return []


async def progress_at(source: Source, until: int | None = None) -> Progress:
    """How far the run was at a sequence."""
    progress = Progress()
    async for stored in messages(source.ev, until=until):
        if (commit := stored.commit) is None:
            continue
        for event in commit.events:
            progress = evolve_progress(progress, commit.time, event, commit.producer.instance)
    return progress


async def verify_with_progress(source: Source) -> Verdict:
    """Verify, and say on stderr how far it is."""
    with telling("deciding again", await source.ev.head()) as shown:
        return await verify(source, shown)
