"""Runs told by hand, second by second, for the doctor to look at."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gyre.core.diagnosis.doctor import Doctor
from gyre.core.diagnosis.finding import Finding, Outlook, Room
from gyre.core.diagnosis.limits import Limits
from schemas.base import pack_floats, pack_ints
from schemas.calls import ModelCallRecorded, RecordsSealed, SamplingRecord, VersionSpan
from schemas.dispatch import (
    ExecutionDispatched,
    ExecutionLaunched,
    ExecutionTerminated,
    GroupDispatched,
    LaunchGranted,
    Reason,
    Stage,
)
from schemas.envelope import Commit, Event, Producer
from schemas.rewards import (
    AssessmentRecorded,
    GroupReady,
    Outcome,
    RewardAssigned,
    RewardUnresolved,
    TreeBuilt,
)
from schemas.speakers import stream_of
from tests.core.world import DIGEST

BEGIN = 1_900_000_000_000_000_000
LIMITS = Limits(
    groups=2,
    executions=4,
    phi=0.5,
    mu=2,
    steps=10,
    cells=2,
    beat=1.0,
    silence=15.0,
    grace=2.0,
    attempts=3,
    scoring=300.0,
    ratio_low=0.995,
    ratio_high=1.005,
    weight_cap=5.0,
    max_tokens=256,
    parses_tools=True,
    redeliveries=3,
)
"""B = 2, N = 4: a batch has eight executions."""


@dataclass(frozen=True, slots=True)
class Said:
    """An event, when and by whom."""

    seconds: float
    event: Event | str
    """A text is a message that nobody can read."""
    service: str = "control"
    cause: int = 0


Told = list[Said]


@dataclass(frozen=True, slots=True)
class Scene:
    """A log and the moment at which the doctor is asked."""

    told: Told
    after: float | None = None
    """Seconds after the last event, of a run that goes on; None: it has ended."""
    rooms: tuple[Room, ...] = ()
    listened: float = 0.0
    heard: frozenset[str] = frozenset()
    limits: Limits = LIMITS

    @property
    def events(self) -> set[str]:
        """Ids of all that was said."""
        return {
            f"call:{said.event.execution}/{sequence}" if isinstance(said.event, ModelCallRecorded) else f"{sequence}.0"
            for _, sequence, said in _numbered(self.told)
        }


def findings(scene: Scene, only: Iterable[str] = ()) -> list[Finding]:
    """What the doctor says: EV first, then CALL."""
    doctor = Doctor(scene.limits)
    for stream in ("EV", "CALL"):
        for of, sequence, said in _numbered(scene.told):
            if of == stream and isinstance(said.event, str):
                doctor.unreadable(stream, sequence, said.event)
            elif of == stream:
                doctor.hear(stream, sequence, commit_of(said))
    now = doctor.last + round((scene.after or 0.0) * 1e9)
    outlook = Outlook(now, live=scene.after is not None, rooms=scene.rooms, listened=scene.listened, heard=scene.heard)
    return list(doctor.findings(outlook, only))


def _numbered(told: Told) -> Iterable[tuple[str, int, Said]]:
    last = {"EV": 0, "CALL": 0}
    for said in told:
        stream = "EV" if isinstance(said.event, str) else stream_of(said.event.type)
        last[stream] += 1
        yield stream, last[stream], said


def commit_of(said: Said) -> Commit:
    """As it is stored."""
    assert not isinstance(said.event, str)
    return Commit(
        run="told",
        producer=Producer(service=said.service, instance=f"{said.service}-1"),
        commit="c",
        causation=said.cause,
        as_of=0,
        correlation="told",
        time=BEGIN + round(said.seconds * 1e9),
        events=(said.event,),
    )


def at(seconds: float, *events: Event) -> Told:
    """These are said then."""
    return [Said(seconds, event) for event in events]


def each(begin: float, step: float, events: Iterable[Event]) -> Told:
    """One after the other, so many seconds apart."""
    return [Said(begin + step * place, event) for place, event in enumerate(events)]


def dispatched(group: int, executions: int = 4, version: int = 0) -> tuple[Event, ...]:
    """A group and its executions x<group>-0, ..."""
    whole = GroupDispatched(group=f"g{group}", index=group, task=f"t{group}", version=version, executions=executions)
    return (whole, *(member(group, place, version) for place in range(executions)))


def member(group: int, place: int, version: int = 0) -> ExecutionDispatched:
    return ExecutionDispatched(
        execution=f"x{group}-{place}", group=f"g{group}", task=f"t{group}", index=place, version=version, seed=0
    )


def granted(execution: str) -> LaunchGranted:
    return LaunchGranted(execution=execution)


def launched(execution: str, deadline: float = 100.0) -> ExecutionLaunched:
    return ExecutionLaunched(
        execution=execution, group=_group(execution), runner="r", token_digest=DIGEST, deadline_seconds=deadline
    )


def ended(execution: str, reason: Reason = "completed", stage: Stage = "closing", detail: str = "") -> Event:
    return ExecutionTerminated(
        execution=execution, group=_group(execution), task=f"t{_group(execution)[1:]}", reason=reason, stage=stage,
        exit_code=0, seconds=1, state=None, detail=detail,
    )  # fmt: skip


def sealed(execution: str) -> Event:
    return RecordsSealed(execution=execution, last_sequence=0, count=0, digest=DIGEST)


def built(execution: str) -> Event:
    return TreeBuilt(execution=execution, digest=DIGEST, nodes=0, leaves=(), body=None)


def assessed(execution: str, score: float | None, attempt: int = 1, detail: str = "", seconds: float = 1.0) -> Event:
    return AssessmentRecorded(
        assessment=f"{execution}-a{attempt}", execution=execution, designated=True, attempt=attempt, state=None,
        branch=None, score=score, valid=score is not None, seconds=seconds, detail=detail,
    )  # fmt: skip


def rewarded(execution: str, reward: float, *, placeholder: bool = False) -> Event:
    return RewardAssigned(execution=execution, group=_group(execution), reward=reward, placeholder=placeholder)


def unresolved(execution: str) -> Event:
    return RewardUnresolved(execution=execution, group=_group(execution), attempts=3, reason="its tests crash")


def ready(group: int, rewards: Iterable[float], version: int = 0) -> Event:
    outcomes = tuple(
        Outcome(execution=f"x{group}-{place}", standing="valid", reward=reward) for place, reward in enumerate(rewards)
    )
    return GroupReady(group=f"g{group}", index=group, version=version, outcomes=outcomes)


def scored_group(group: int, rewards: tuple[float, ...], version: int = 0, detail: str = "") -> tuple[Event, ...]:
    """Every execution of a group ended and scored, and the group ready."""
    told: list[Event] = []
    for place, reward in enumerate(rewards):
        name = f"x{group}-{place}"
        told += [ended(name), assessed(name, reward, detail=detail), rewarded(name, reward)]
    return (*told, ready(group, rewards, version))


def call(execution: str, index: int = 0, **more: Any) -> ModelCallRecorded:
    """A turn with a tool call in it, of 4 tokens of version 0."""
    tools = more.pop("tools", True)
    fields: dict[str, Any] = {
        "execution": execution, "call": f"{execution}-c{index}", "index": index, "thread": "", "kind": "turn",
        "parent": None, "prefix_tokens": 0, "prefix_messages": 0, "input_ids": pack_ints([1]),
        "output_ids": pack_ints([1] * 4), "logprobs": pack_floats([-1.0] * 4),
        "versions": (VersionSpan(version=0, tokens=4),), "finish": "stop",
        "sampling": SamplingRecord(temperature=1, top_p=1, top_k=0, max_tokens=8, seed=None), "messages": "[]",
        "reply": '[{"role": "assistant", "tool_calls": []}]' if tools else '[{"role": "assistant", "content": "no"}]',
        "system_digest": DIGEST, "cells": (1,), "cached_tokens": 0, "queue_seconds": 0, "engine_seconds": 1,
        "total_seconds": 1, "delivered": True,
    }  # fmt: skip
    return ModelCallRecorded(**(fields | more))


def _group(execution: str) -> str:
    return "g" + execution[1:].partition("-")[0]
