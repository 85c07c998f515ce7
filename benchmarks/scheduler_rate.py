"""How many decisions a second the scheduler's decider makes, and how much it remembers: pure code, one core.

A run is told without clock or chance: each launched execution ends when its place is needed, each group is ready when
its executions have ended, a burst is trained as soon as the core is there. Then its log is decided again, and that is
timed: `evolve` and `decide` for every event, in CPU seconds.

    python -m benchmarks.scheduler_rate --cells 8 --executions 100000

prints one JSON object: events, decisions (how many of them the scheduler said), decisions_per_second (how often in a
second it can be told an event and asked what is due), microseconds_per_event, and the state's size as JSON after the
first burst and its largest after any later one.
"""

import argparse
import json
import time
from collections import deque

from pydantic import TypeAdapter

from gyre.core.decider import Decider
from gyre.core.plan import Plan, execution_place, group_name
from gyre.core.scheduler import scheduler
from gyre.core.scheduler_state import Scheduler
from gyre.core.simulation import words
from schemas.dispatch import ExecutionLaunched, ExecutionTerminated, LaunchGranted
from schemas.envelope import Event
from schemas.rewards import GroupReady
from schemas.roles import RoleTransitionCompleted, RoleTransitionRequested
from schemas.runs import RunFinished, TimerFired, TimerSet
from schemas.training import BatchOpened, BurstEnded, GroupAssigned, WeightsPublished


class Outside:
    """Everything but the scheduler, in the shortest form: what follows from what it says."""

    def __init__(self, plan: Plan, capacity: int) -> None:
        """Cells of `capacity` executions, all there from the start."""
        self.plan, self.capacity = plan, capacity
        self.coming: deque[Event] = deque([words.run_started(plan.tasks, plan.seed)])
        self.coming.extend(words.registered(cell, capacity) for cell in range(plan.cells + plan.standalone))
        self.running: deque[str] = deque()
        self.ended: dict[int, int] = {}
        self.ready: deque[str] = deque()
        self.training = False
        self.steps = 0
        self.finished = False

    def hear(self, event: Event) -> None:
        """The scheduler said this."""
        if isinstance(event, LaunchGranted):
            self.coming.append(_launched(event.execution))
            self.running.append(event.execution)
        elif isinstance(event, RoleTransitionRequested):
            self.training = event.to == "train" if event.cell == 0 else self.training
            self.coming.append(_completed(event))
        elif isinstance(event, TimerSet):
            self.coming.append(TimerFired(timer=event.timer))
        elif isinstance(event, BurstEnded):
            self.training = self.training and event.retained
        self.finished = isinstance(event, RunFinished)

    def next(self) -> Event | None:
        """What happens next when the scheduler has nothing to say."""
        if not self.coming:
            self._train() if self.training and len(self.ready) >= self.plan.groups else self._end()
        return self.coming.popleft()

    def _end(self) -> None:
        execution = self.running.popleft()
        self.coming.append(_terminated(execution))
        place = execution_place(execution)
        assert place is not None
        group = place[0]
        self.ended[group] = self.ended.get(group, 0) + 1
        if self.ended[group] == self.plan.size:
            del self.ended[group]
            self.ready.append(group_name(group))
            self.coming.append(GroupReady(group=group_name(group), index=group, version=0, outcomes=()))

    def _train(self) -> None:
        self.steps += 1
        self.coming.append(BatchOpened(step=self.steps, version=self.steps - 1, groups=self.plan.groups))
        for _ in range(self.plan.groups):
            group = self.ready.popleft()
            self.coming.append(GroupAssigned(step=self.steps, group=group, version=0, staleness=0))
        self.coming.append(words.stepped(self.steps, 1.0))
        if self.steps % self.plan.mu == 0 or self.steps == self.plan.steps:
            self.coming.append(WeightsPublished(version=self.steps, weights=words.WEIGHTS, seconds=1))


def told(decider: Decider[Scheduler], outside: Outside) -> tuple[list[Event], list[int]]:
    """One run to its end: its log, and how large the state was at the end of each burst, bytes of JSON."""
    state, adapter = decider.initial, TypeAdapter(Scheduler)
    log: list[Event] = []
    sizes: list[int] = []
    while not outside.finished:
        event = outside.next()
        while event is not None:
            log.append(event)
            state = decider.evolve(state, len(log), event)
            due = decider.decide(state)
            event = due[0].events[0] if due else None
            if event is not None:
                outside.hear(event)
            if isinstance(event, BurstEnded):
                sizes.append(len(adapter.dump_json(state)))
    return log, sizes


def measure(plan: Plan, capacity: int) -> dict[str, int | float]:
    """Tell a run, then decide it again under the clock."""
    decider = scheduler(plan)
    log, sizes = told(decider, Outside(plan, capacity))
    state, decisions = decider.initial, 0
    began = time.process_time()
    for sequence, event in enumerate(log, start=1):
        state = decider.evolve(state, sequence, event)
        decisions += len(decider.decide(state))
    spent = time.process_time() - began
    return {
        "cells": plan.cells,
        "executions": state.dispatch.terminated,
        "events": len(log),
        "decisions": decisions,
        "decisions_per_second": round(len(log) / spent),
        "microseconds_per_event": round(1e6 * spent / len(log), 2),
        "bytes_after_first_burst": sizes[0],
        "bytes_after_later_bursts": max(sizes[1:]),
    }


def plan_of(cells: int, executions: int) -> Plan:
    """A run of so many executions in ten bursts of three steps, N = 16."""
    steps, size = 30, 16
    groups = max(1, executions // (steps * size))
    return Plan(
        steps=steps,
        groups=groups,
        executions=size,
        phi=1.0,
        mu=3,
        rho_min=0.25,
        tau_seconds=60,
        cells=cells,
        tasks=tuple(f"task-{index}" for index in range(512)),
        seed=1,
        order_seed=1,
    )


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--capacity", type=int, default=144, help="executions that one cell serves at a time")
    parser.add_argument("--executions", type=int, default=100_000)
    given = parser.parse_args()
    print(json.dumps(measure(plan_of(given.cells, given.executions), given.capacity)))


def _launched(execution: str) -> ExecutionLaunched:
    return ExecutionLaunched(execution=execution, group="g", runner="r", token_digest=words.DIGEST, deadline_seconds=1)


def _terminated(execution: str) -> ExecutionTerminated:
    return ExecutionTerminated(
        execution=execution,
        group="g",
        task="a",
        reason="completed",
        stage="agent",
        exit_code=0,
        seconds=1,
        state=None,
    )


def _completed(asked: RoleTransitionRequested) -> RoleTransitionCompleted:
    return RoleTransitionCompleted(
        transition=asked.transition, cell=asked.cell, instance=asked.instance, to=asked.to, version=0
    )


if __name__ == "__main__":
    main()
