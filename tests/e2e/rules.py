"""What holds for the log of every run that finished, however it was hurt."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bus import subjects
from bus.log import Stored
from gyre.config import Config
from gyre.core import ledger, routes
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.runs import OfficeTaken, RunFinished
from schemas.speakers import ENTITIES, may_say
from schemas.training import (
    GroupAssigned,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    ReductionOpened,
)
from services.cell import desk
from services.hearing import filters_of
from services.minds import filters, minds
from services.proxy import world
from services.source import Source, messages

_NAMED: dict[type, tuple[str, str]] = {
    ExecutionDispatched: ("dispatched", "execution"),
    ExecutionLaunched: ("launched", "execution"),
    ExecutionTerminated: ("terminated", "execution"),
    GroupAssigned: ("groups", "group"),
    RunFinished: ("finished", "steps"),
}
"""Event -> where it is counted, and by what."""


@dataclass(slots=True)
class Tally:
    """A second account of the log, kept without the deciders' own folds."""

    dispatched: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    terminated: list[str] = field(default_factory=list)
    queued: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    claims: dict[tuple[int, int], MicroStepClaimed] = field(default_factory=dict)
    """(sequence, micro-step) -> the claim."""
    completed: dict[int, MicroStepCompleted] = field(default_factory=dict)
    """Claim -> its completion."""
    opened: dict[int, ReductionOpened] = field(default_factory=dict)
    """Step -> the latest."""
    groups: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)


async def check_log(source: Source, steps: int) -> Tally:
    """Assert every rule over a whole log."""
    tally = Tally()
    terms: dict[str, str] = {}
    async for stored in messages(source.ev):
        assert stored.commit is not None, stored.reason
        _one_leader(stored, terms)
        _in_its_place(stored)
        for event in stored.commit.events:
            _count(tally, stored.sequence, event)
            assert len(tally.terminated) <= len(tally.launched) <= len(tally.dispatched), f"at {stored.sequence}"
    for names in (tally.dispatched, tally.launched, tally.terminated, tally.groups):
        twice = [name for name, count in Counter(names).items() if count > 1]
        assert not twice, f"said twice: {twice}"
    assert sorted(tally.dispatched) == sorted(tally.launched) == sorted(tally.terminated)
    assert tally.steps == list(range(1, steps + 1))
    assert tally.finished == [steps]
    return tally


async def check_hearing(source: Source) -> None:
    """Assert that who folds EV, given only what its filters let through, knows what one knows that hears it all."""
    for name, (asked, initial, evolve) in (await _folds(source)).items():
        heard = whole = initial
        passed = known = 0
        async for stored in messages(source.ev):
            for event in stored.commit.events if stored.commit else ():
                whole = evolve(whole, stored.sequence, event)
                if subjects.under(asked, stored.subject):
                    heard = evolve(heard, stored.sequence, event)
                else:
                    passed += 1
            if stored.sequence % 50 == 0:
                assert heard == whole, f"{name} at {stored.sequence}"
                known += whole != initial
        assert heard == whole, name
        assert passed, name
        assert known, name


async def _folds(source: Source) -> dict[str, tuple[tuple[str, ...], Any, Callable[[Any, int, Event], Any]]]:
    """Who folds EV -> what it asks for, and how it begins and goes on."""
    started = await source.started()
    config = Config.recorded(started.config)
    deciders = minds(started, source.ev, source.blobs).values()
    return {
        **{mind.service: (filters(source.run, mind), mind.initial, mind.evolve) for mind in deciders},
        "cell": (filters_of(source.run, desk.FOLDS, "cell"), desk.nothing_known(config), desk.evolve),
        "proxy": (filters_of(source.run, routes.FOLDS, "proxy"), routes.Routes(), world.evolve_told),
    }


def _one_leader(stored: Stored, terms: dict[str, str]) -> None:
    """After an office is taken, nobody else speaks for it."""
    assert stored.commit is not None
    producer = stored.commit.producer
    for event in stored.commit.events:
        if isinstance(event, OfficeTaken):
            terms[event.service] = event.instance
    if producer.service in ("scheduler", "admission", "packer"):
        assert terms.get(producer.service) == producer.instance, f"sequence {stored.sequence}: said by a former leader"


def _in_its_place(stored: Stored) -> None:
    """Each event is said by its speaker, where readers that ask for its kind look for it."""
    assert stored.commit is not None
    place = subjects.parse(stored.subject)
    for event in stored.commit.events:
        kind = type(event).__name__
        assert may_say(place.service, kind), f"sequence {stored.sequence}: {kind} said by {place.service}"
        assert place.entity[0] in ENTITIES[kind], f"sequence {stored.sequence}: {kind} said on {stored.subject}"


def _count(tally: Tally, sequence: int, event: Event) -> None:
    if (named := _NAMED.get(type(event))) is not None:
        getattr(tally, named[0]).append(getattr(event, named[1]))
    match event:
        case MicroStepEnqueued(step=step, micro_step=place, kind="train"):
            tally.queued[step].append(place)
        case MicroStepClaimed(micro_step=place):
            tally.claims[sequence, place] = event
        case MicroStepCompleted(claim=claim):
            tally.completed[claim] = event
        case ReductionOpened(step=step):
            tally.opened[step] = event
        case OptimizerStepped(step=step):
            _applied(tally, event)
            tally.steps.append(step)


def _applied(tally: Tally, event: OptimizerStepped) -> None:
    """The sum that was applied holds every micro-step of the step once, each under a claim that was completed."""
    opened = tally.opened[event.step]
    assert ledger.check(opened.contributions, tally.queued[event.step]) == ()
    for each in opened.contributions:
        claim = tally.claims[each.claim, each.micro_step]
        done = tally.completed[each.claim]
        assert (claim.cell, claim.step) == (each.cell, event.step)
        assert (done.micro_step, done.instance) == (each.micro_step, claim.instance)
        assert dict(zip(opened.members, opened.instances, strict=True))[each.cell] == claim.instance
