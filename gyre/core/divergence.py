"""Where two runs that were to do the same first part: in a fact that both tell, and in the order of decisions.

Facts are found by what they are of (an execution's end, a group's outcomes, a step's update), whenever they were said;
what a clock, an id or an address made is left out. Decisions are compared in their order, decider by decider: there
timing shows first.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from gyre.core.causes import EventId
from schemas.dispatch import ExecutionDispatched, ExecutionTerminated, GroupDispatched
from schemas.envelope import Event
from schemas.rewards import GroupReady, RewardAssigned, RewardUnresolved, TreeBuilt
from schemas.runs import EvaluationScored, OfficeTaken, TimerFired, TimerSet
from schemas.speakers import SINGLETONS
from schemas.training import (
    BurstEnded,
    ExecutionMasked,
    GroupAssigned,
    MicroStepEnqueued,
    OptimizerStepped,
    TrajectoriesAdmitted,
)

TOLERANCE = 1e-4
"""Relative; what is summed in another order differs by far less."""
Key = tuple[str, ...]
Content = Mapping[str, Any]
"""What a fact says, by name."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two runs first part."""

    of: str
    """What is otherwise: an event type with its subject, or a decider with the number of its decision, from 1."""
    here: EventId | None
    """None: this side never says it."""
    there: EventId | None
    here_says: str = ""
    there_says: str = ""


@dataclass(slots=True)
class Telling:
    """One side: takes events in the order of its log."""

    facts: dict[Key, tuple[EventId, Content]] = field(default_factory=dict)
    orders: dict[str, list[tuple[EventId, str]]] = field(default_factory=dict)
    """Decider -> its decisions."""

    def add(self, sequence: int, service: str, events: Iterable[Event]) -> None:
        """One commit."""
        for part, event in enumerate(events):
            place = EventId(sequence, part)
            if (fact := _FACTS.get(type(event))) is not None:
                name, content = fact(event)
                self.facts.setdefault((event.type, name), (place, content))
            if service in SINGLETONS and not isinstance(event, OfficeTaken | TimerSet | TimerFired):
                self.orders.setdefault(service, []).append((place, _decision(event)))


def first_fact(here: Telling, there: Telling) -> Parting | None:
    """The first fact of the one log that the other tells otherwise or not at all; None: all of both are told alike."""
    for key, (place, content) in here.facts.items():
        other, otherwise = there.facts.get(key, (None, {}))
        names = [name for name, value in content.items() if not _same(value, otherwise.get(name))]
        if names:
            return Parting(" ".join(key), place, other, _says(content, names), _says(otherwise, names))
    for key, (place, content) in there.facts.items():
        if key not in here.facts:
            return Parting(" ".join(key), None, place, "", _says(content, content))
    return None


def _says(content: Content, names: Iterable[str]) -> str:
    return " ".join(f"{name}={content[name]}" for name in names if name in content)


def first_decisions(here: Telling, there: Telling) -> tuple[Parting, ...]:
    """For each decider whose order of decisions parts: the first place where it does."""
    partings = []
    for service in sorted(here.orders.keys() | there.orders.keys()):
        mine, others = here.orders.get(service, []), there.orders.get(service, [])
        pairs = zip(mine, others, strict=False)
        at = next((at for at, (one, other) in enumerate(pairs) if one[1] != other[1]), min(len(mine), len(others)))
        if at < max(len(mine), len(others)):
            one, other = (side[at] if at < len(side) else (None, "") for side in (mine, others))
            partings.append(Parting(f"{service} decision {at + 1}", one[0], other[0], one[1], other[1]))
    return tuple(partings)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE**2)
    return bool(one == other)


def _decision(event: Event) -> str:
    """A decision by its type and what it is about; contents are the facts' part."""
    names = ("group", "execution", "step", "micro_step", "cell", "to", "burst", "evaluation")
    about = (f"{name} {getattr(event, name)}" for name in names if hasattr(event, name))
    return " ".join((event.type, *about))


def _ready(event: GroupReady) -> tuple[str, Content]:
    return event.group, {each.execution: (each.standing, each.reward) for each in event.outcomes}


def _enqueued(event: MicroStepEnqueued) -> tuple[str, Content]:
    executions = dict.fromkeys(segment.execution for row in event.rows for segment in row.segments)
    content = {"kind": event.kind, "tokens": event.tokens, "executions": tuple(executions)}
    return f"{event.step}/{event.micro_step}", content


def _admitted(event: TrajectoriesAdmitted) -> tuple[str, Content]:
    leaves = tuple(each.leaf for each in event.trajectories)
    tokens = sha256(b"/".join(part for each in event.trajectories for part in (each.ids, each.target))).hexdigest()
    content = {"advantage": event.advantage, "targets": event.targets, "leaves": leaves, "tokens": tokens[:8]}
    return event.execution, content


def _built(event: TreeBuilt) -> tuple[str, Content]:
    leaves = tuple((leaf.role, leaf.tokens, leaf.targets) for leaf in event.leaves)
    return event.execution, {"nodes": event.nodes, "leaves": leaves}


def _fields(of: str, *names: str) -> Callable[[Any], tuple[str, Content]]:
    """What an event is of, and those of its fields that a clock or an id did not make."""
    return lambda event: (str(getattr(event, of)), {name: getattr(event, name) for name in names})


_FACTS: Mapping[type[Any], Callable[[Any], tuple[str, Content]]] = {
    GroupDispatched: _fields("group", "task", "version"),
    ExecutionDispatched: _fields("execution", "task", "version", "seed"),
    ExecutionTerminated: _fields("execution", "reason", "stage"),
    TreeBuilt: _built,
    RewardAssigned: _fields("execution", "reward", "placeholder"),
    RewardUnresolved: _fields("execution", "reason"),
    GroupReady: _ready,
    TrajectoriesAdmitted: _admitted,
    GroupAssigned: _fields("group", "step", "staleness"),
    MicroStepEnqueued: _enqueued,
    ExecutionMasked: lambda event: (f"{event.step} {event.execution}", {"mask": event.mask, "ratio": event.ratio}),
    OptimizerStepped: _fields("step", "loss", "gradient_norm"),
    BurstEnded: _fields("burst", "retained"),
    EvaluationScored: _fields("evaluation", "mean", "valid"),
}
"""Event type -> what it is of, and what it says of it."""
