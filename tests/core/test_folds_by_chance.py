"""A fact is beyond dispute: no fold refuses what is well formed, whatever came before it (see any_events.py)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.core import (
    batch_state,
    batches,
    cell,
    chronicle,
    groups,
    ledger,
    progress,
    recorded,
    regrading,
    routes,
    scheduler,
    scheduler_state,
    timeline_fold,
    tree,
)
from gyre.core.audit import Audit
from gyre.core.decider import Decider
from gyre.core.delays import Delays
from gyre.core.diagnosis.doctor import Doctor
from gyre.core.diagnosis.finding import Outlook
from gyre.core.diagnosis.limits import Limits
from gyre.core.divergence import Telling
from gyre.core.plan import LaunchOrder, Plan
from gyre.core.simulation.trace_fold import trace
from schemas.calls import DeliveryCorrected, ModelCallRecorded
from schemas.dispatch import GroupDispatched, LaunchGranted
from schemas.envelope import Commit, Event, Producer
from schemas.rewards import GroupReady
from schemas.roles import CellRegistered
from schemas.speakers import stream_of
from schemas.training import BatchOpened, GroupAssigned, MicroStepEnqueued, Row
from tests.core.any_events import events
from tests.core.facts import admitted
from tests.core.world import assigned, launched, registered, rewarded, run_started, terminated

Read = Callable[[Sequence[Event]], object]
LIMITS = Limits(2, 2, 0.5, 1, 3, 2, 1.0, 3.0, 1.0, 3, 10.0, 0.99, 1.01, 2.0, 100, True, 3)
EMPTY = MicroStepEnqueued(step=1, micro_step=0, kind="train", rows=(), tokens=0)
OPENED = BatchOpened(step=1, version=0, groups=2)


@dataclass(frozen=True)
class Packed:
    """Of every group so many micro-steps that one is always due."""

    whole: tuple[tuple[Row, ...], ...] = ((),) * 100
    split: tuple[Any, ...] = ()


def plan(oversample: int, order: LaunchOrder) -> Plan:
    return Plan(
        steps=3, groups=2, executions=2, phi=0.5, mu=1, rho_min=0.5, tau_seconds=1, cells=2, tasks=("a",), seed=0,
        order_seed=0, oversample=oversample, launch_order=order,
    )  # fmt: skip


def decides(decider: Decider[Any], *before: Event) -> Read:
    """Folds, and asks for what is due after each event."""

    def read(told: Sequence[Event]) -> None:
        state = decider.initial
        for sequence, event in enumerate((*before, *told), start=1):
            state = decider.evolve(state, sequence, event)
            decider.decide(state)

    return read


def folds(initial: Any, evolve: Callable[[Any, int, Any], Any]) -> Read:
    """Folds, and decides nothing."""
    return decides(Decider(initial, lambda _: (), evolve))


def adds(make: Callable[[], Any]) -> Read:
    """Told event by event, in seconds or nanoseconds."""

    def read(told: Sequence[Event]) -> None:
        taker = make()
        for time, event in enumerate(told, start=1):
            taker.add(time, event)

    return read


def diagnosed(told: Sequence[Event]) -> None:
    doctor, by = Doctor(LIMITS), Producer(service="packer", instance="a")
    for at, event in enumerate(told, start=1):
        commit = Commit(
            run="r", producer=by, commit=f"c{at}", causation=0, as_of=0, correlation="r", time=at, events=(event,)
        )
        doctor.hear(stream_of(event.type), at, commit)
    list(doctor.findings(Outlook(now=100)))


def audited(told: Sequence[Event]) -> None:
    audit = Audit(groups=2, executions=2)
    for event in told:
        audit.add(event)


def regraded(told: Sequence[Event]) -> None:
    facts = regrading.Facts()
    for sequence, event in enumerate(told, start=1):
        facts.take(sequence, event)


def compared(told: Sequence[Event]) -> None:
    Telling().add(1, "packer", told)


def routed(told: Sequence[Event]) -> None:
    state = routes.Routes()
    for event in told:
        state = routes.evolve(state, event)
        routes.moves(state)


PACKER = batches.decider(batch_state.Params(2, 3, 1), lambda _: admitted(0, 0, (2,)), lambda _: Packed())
SCHEDULERS: Mapping[str, tuple[Iterable[type[Any]], Read]] = {
    f"scheduler, {order}, {oversample} more": (
        scheduler_state.FOLDS,
        decides(scheduler.scheduler(plan(oversample, order)), run_started()),
    )
    for oversample in (0, 1)
    for order in get_args(LaunchOrder)
}
FOLDS: Mapping[str, tuple[Iterable[type[Any]], Read]] = {
    **SCHEDULERS,
    "packer": (batch_state.FOLDS, decides(PACKER, OPENED)),
    "ledger": (ledger.FOLDS, folds(ledger.Ledger(), ledger.evolve)),
    "admission": (groups.FOLDS, folds(groups.initial(groups.Params(seed=0)), groups.evolve)),
    "cell": (cell.FOLDS, folds(cell.View(steps=3, burst=1), cell.evolve)),
    "routes": (routes.FOLDS, routed),
    "tree": (
        (ModelCallRecorded, DeliveryCorrected),
        folds(tree.Tree("x0-0"), lambda state, _, e: tree.evolve(state, e)),
    ),
    "recorded": ((), folds(recorded.Recording(), recorded.evolve)),
    "progress": ((), folds(progress.Progress(), progress.evolve)),
    "chronicle": (chronicle.FOLDS, adds(chronicle.Chronicle)),
    "delays": ((), adds(Delays)),
    "timeline": ((), adds(timeline_fold.TimelineFold)),
    "trace": ((), lambda told: trace((float(at), event) for at, event in enumerate(told))),
    "doctor": ((), diagnosed),
    "audit": ((), audited),
    "regrade": ((), regraded),
    "comparison": ((), compared),
}
"""Name -> the types that it knows (() for those without such a list), and how it reads."""


@pytest.mark.parametrize("name", FOLDS)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_fold_takes_any_events_in_any_order(name: str, data: st.DataObject) -> None:
    kinds, read = FOLDS[name]
    read(data.draw(events(kinds)))


@pytest.mark.parametrize("rows", [(), (Row(segments=()),)])
@pytest.mark.parametrize("name", ["packer", "trace"])
def test_a_micro_step_that_holds_nothing_is_a_fact_like_any_other(name: str, rows: tuple[Row, ...]) -> None:
    FOLDS[name][1]([EMPTY.model_copy(update={"rows": rows})])


def test_a_ready_group_without_executions_is_due_like_any_other() -> None:
    ready = GroupReady(group="g0", index=0, version=0, outcomes=())
    PACKER.given(OPENED, ready, CellRegistered(cell=0, instance="i", url="", capacity=1, version=0)).then(
        GroupAssigned(step=1, group="g0", version=0, staleness=0)
    )


@pytest.mark.parametrize("name", SCHEDULERS)
def test_an_execution_in_a_place_that_no_group_has_changes_nothing(name: str) -> None:
    """Its place would be a bit of a number that fits into no memory."""
    group = GroupDispatched(group="g0", index=0, task="a", version=0, executions=2)
    FOLDS[name][1]([group, launched("x0-9999999999999999"), rewarded("x0-9999999999999999")])


def test_what_is_about_something_unknown_leaves_no_trace() -> None:
    told = [launched("x"), terminated("x"), rewarded("x"), assigned("g", 1), LaunchGranted(execution="x")]
    found = trace((float(at), event) for at, event in enumerate(told))
    assert (found.executions, found.measured, found.loads) == ({}, {}, ())


def test_a_cell_of_no_run_has_no_place_in_a_diagnosis() -> None:
    diagnosed([registered(1 << 62, "i0")])
