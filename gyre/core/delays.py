"""From a decision to its effect: what a run's control plane took, read off its log.

Pure; (seconds, event) pairs in, durations out. Each is from the event that asks to the event that says it is done, so
work that lies in between, such as letting go of an engine or the update itself, is in it.
"""

from collections.abc import Callable
from statistics import quantiles
from typing import Any

from schemas.dispatch import ExecutionLaunched, ExecutionTerminated, LaunchGranted
from schemas.envelope import Event
from schemas.rewards import GroupReady
from schemas.roles import RoleTransitionCompleted, RoleTransitionRequested
from schemas.training import (
    CellJoined,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    WeightsPublished,
)

_PARTS = 20  # the last of so many parts begins at the 95th percentile
_READY = "score, build, admit"
_UPDATE = "reduce, update"


class Delays:
    """Takes pairs one by one; forgets what is done."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._since: dict[tuple[str, object], float] = {}
        self._free: dict[int, float] = {}
        """Cell -> since when it could have claimed."""
        self._found: dict[str, list[float]] = {}
        self._steps: dict[type[Any], Callable[[float, Any], None]] = {
            LaunchGranted: lambda now, event: self._begin("launch", event.execution, now),
            ExecutionLaunched: lambda now, event: self._end("launch", event.execution, now),
            ExecutionTerminated: lambda now, event: self._begin(_READY, event.group, now),
            GroupReady: lambda now, event: self._end(_READY, event.group, now),
            RoleTransitionRequested: lambda now, event: self._begin(f"to {event.to}", event.transition, now),
            RoleTransitionCompleted: lambda now, event: self._end(f"to {event.to}", event.transition, now),
            CellJoined: lambda now, event: self._free.__setitem__(event.cell, now),
            MicroStepEnqueued: lambda now, event: self._begin("claim", (event.step, event.micro_step), now),
            MicroStepClaimed: self._claimed,
            MicroStepCompleted: self._completed,
            OptimizerStepped: self._stepped,
            WeightsPublished: lambda now, event: self._end("publish", event.version, now),
        }

    def add(self, seconds: float, event: Event) -> None:
        """One event, at seconds on any one clock."""
        step = self._steps.get(type(event))
        if step is not None:
            step(seconds, event)

    def summary(self) -> dict[str, dict[str, float]]:
        """Kind -> count, and median and 95th percentile in seconds."""
        return {
            kind: {"count": len(found), "p50": _part(found, _PARTS // 2), "p95": _part(found, _PARTS - 1)}
            for kind, found in self._found.items()
        }

    def _begin(self, kind: str, name: object, now: float) -> None:
        """Begun again, it counts from the latest: a group is complete with its last execution."""
        self._since[kind, name] = now

    def _end(self, kind: str, name: object, now: float) -> None:
        began = self._since.pop((kind, name), None)
        if began is not None:
            self._found.setdefault(kind, []).append(now - began)

    def _claimed(self, now: float, event: MicroStepClaimed) -> None:
        """From when both were there: something to claim, and a cell with nothing to do."""
        began = self._since.pop(("claim", (event.step, event.micro_step)), now)
        self._found.setdefault("claim", []).append(now - max(began, self._free.get(event.cell, began)))

    def _completed(self, now: float, event: MicroStepCompleted) -> None:
        self._free[event.cell] = now
        self._begin(_UPDATE, event.step, now)

    def _stepped(self, now: float, event: OptimizerStepped) -> None:
        self._end(_UPDATE, event.step, now)
        self._begin("publish", event.version, now)


def _part(found: list[float], place: int) -> float:
    """The value with `place` twentieths below it."""
    return quantiles(found, n=_PARTS, method="inclusive")[place - 1] if len(found) > 1 else found[0]
