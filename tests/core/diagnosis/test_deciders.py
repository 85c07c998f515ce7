"""The doctor over what the deciders themselves say: simulated runs, and admission that waits for one thing."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import count

import pytest

from gyre.core import groups
from gyre.core.diagnosis import clocks
from gyre.core.diagnosis.doctor import Doctor
from gyre.core.diagnosis.finding import Finding, Outlook
from gyre.core.simulation.presets import TABLE1, Case
from gyre.core.simulation.published import TABLE1_STEPS
from gyre.core.simulation.setting import Setting
from gyre.core.simulation.world import simulate
from schemas.envelope import Event
from schemas.rewards import GroupReady
from tests.core.diagnosis.scene import (
    LIMITS,
    Said,
    Scene,
    at,
    built,
    commit_of,
    dispatched,
    ended,
    findings,
    launched,
    rewarded,
    sealed,
)
from tests.core.simulation.small import Fixed, plan, told

MODELLED = {"zero-variance"}
"""A simulation rewards every execution alike."""


@cache
def simulated(steps: int = 6) -> tuple[Said, ...]:
    """Steps of B = 2, N = 2 on two cells; executions of 40 and 50 s, of which 100 are allowed."""
    setting = Setting(plan(steps=steps), capacity=6)
    _, log = told(setting, Fixed((40.0, 50.0), training=5.0, limit=100.0))
    return tuple(Said(seconds, event) for seconds, event in log.pairs)


def names(found: Iterable[Finding]) -> set[str]:
    return {each.name for each in found}


def test_a_simulated_run_gives_nothing_to_say_at_any_moment() -> None:
    whole = list(simulated())
    for end in range(10, len(whole), 11):
        assert names(findings(Scene(whole[:end], after=0))) <= MODELLED
    assert names(findings(Scene(whole))) <= MODELLED


@pytest.mark.parametrize("row", ["A0", "C0", "E0"])
def test_the_schedules_of_the_paper_give_nothing_to_say(row: str) -> None:
    """Fixed split, switching together, elastic: forty thousand events each, of executions that take hours."""
    case = Case(TABLE1[row], TABLE1_STEPS)
    setting = case.setting()
    schedule = setting.plan
    limits = replace(
        LIMITS,
        groups=schedule.groups,
        executions=schedule.executions,
        phi=schedule.phi,
        mu=schedule.mu,
        steps=schedule.steps,
        cells=schedule.cells + schedule.standalone,
    )
    doctor, sequences = Doctor(limits), count(1)

    def hear(seconds: float, event: Event) -> None:
        doctor.hear("EV", next(sequences), commit_of(Said(seconds, event)))

    simulate(setting, case.workload(), hear)
    assert doctor.events > 40_000
    assert names(doctor.findings(Outlook(doctor.last))) <= MODELLED


def test_a_simulated_run_that_stops_in_its_middle_is_stuck_and_silent_an_hour_later() -> None:
    whole = list(simulated())
    found = names(findings(Scene(whole[: len(whole) // 2], after=3600)))
    assert {"stuck-execution", "silent-log"} <= found


@pytest.mark.parametrize(("treeless", "expected"), [((), set()), (("x0-3",), {"group-never-ready"})])
def test_a_group_that_admission_cannot_say_ready_is_found(treeless: tuple[str, ...], expected: set[str]) -> None:
    said = _admission(treeless)
    assert any(isinstance(event, GroupReady) for event in said) == (not treeless)
    assert names(findings(Scene(at(0, *said), after=16))) & {"group-never-ready"} == expected


def _admission(treeless: tuple[str, ...]) -> tuple[Event, ...]:
    """All about a group of four, with what the decider says to it."""
    decider = groups.decider(groups.Params(seed=0), lambda _: {}, lambda rewards, _: (0.0,) * len(rewards))
    members = [f"x0-{place}" for place in range(4)]
    outside = [each for name in members for each in (launched(name), ended(name), sealed(name), rewarded(name, 1.0))]
    trees = [built(name) for name in members if name not in treeless]
    return tuple(event for _, event in decider.given(*dispatched(0), *outside, *trees).settle().log)


def test_memory_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "REMEMBERED", 64)
    assert _kept(64) < 1.2 * _kept(16)


def _kept(steps: int) -> int:
    """Bytes that a doctor holds after a simulated run."""
    doctor = Doctor(LIMITS)
    for sequence, said in enumerate(simulated(steps), start=1):
        doctor.hear("EV", sequence, commit_of(said))
    return _size(doctor, set())


def _size(thing: object, seen: set[int]) -> int:
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    parts: list[object] = []
    if isinstance(thing, dict):
        parts = [*thing.keys(), *thing.values()]
    elif hasattr(thing, "__iter__") and not isinstance(thing, str):
        parts = list(thing)
    parts += [
        getattr(thing, name, None) for name in (*getattr(thing, "__dict__", ()), *getattr(thing, "__slots__", ()))
    ]
    return sys.getsizeof(thing) + sum(_size(part, seen) for part in parts)
