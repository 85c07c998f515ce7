"""Settings small enough to be reckoned by hand, and logs of simulated runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from gyre.core.plan import Plan
from gyre.core.simulation.outcome import Outcome
from gyre.core.simulation.setting import Setting, Timings
from gyre.core.simulation.workload import Job, Workload
from gyre.core.simulation.world import simulate
from schemas.envelope import Event

NOTHING_BUT_WORK = Timings(to_train=0.0, to_rollout=0.0)


@dataclass(frozen=True)
class Fixed:
    """Each execution takes as long as its place in its group says; each group trains in one micro-step."""

    seconds: Sequence[float]
    training: float = 1.0
    limit: float = inf
    scoring: float = 0.0

    def jobs(self, index: int, task: str, executions: int) -> tuple[Job, ...]:
        return tuple(Job(self.seconds[place], self.limit, self.scoring) for place in range(executions))

    def micro_steps(self, index: int) -> tuple[float, ...]:
        return (self.training,)


@dataclass
class Log:
    """Everything said, with its virtual seconds."""

    pairs: list[tuple[float, Event]] = field(default_factory=list)

    def add(self, seconds: float, event: Event) -> None:
        self.pairs.append((seconds, event))

    def of(self, kind: type[Any]) -> list[tuple[float, Any]]:
        return [(seconds, event) for seconds, event in self.pairs if isinstance(event, kind)]

    def times(self, kind: type[Any]) -> list[float]:
        return [seconds for seconds, _ in self.of(kind)]


def plan(**changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "steps": 4,
        "groups": 2,
        "executions": 2,
        "phi": 0.5,
        "mu": 2,
        "rho_min": 0.5,
        "tau_seconds": 1.0,
        "cells": 2,
        "tasks": ("a", "b", "c"),
        "seed": 0,
        "order_seed": 0,
    }
    return Plan(**(settings | changes))


def told(setting: Setting, workload: Workload) -> tuple[Outcome, Log]:
    log = Log()
    return simulate(setting, workload, log.add), log
