"""Services that are not heard while others are: who holds an office, and runners with executions under way."""

from collections.abc import Iterator, Mapping
from typing import Any

from gyre.core.diagnosis.finding import At, Finding, Hear, Kind, Outlook, listed
from gyre.core.diagnosis.limits import Limits
from schemas.dispatch import ExecutionLaunched, ExecutionTerminated
from schemas.runs import OfficeTaken

SILENT = Kind(
    "service-silent", "a decider in office, or a runner with executions under way, is not heard in a run that goes on"
)


class Silences:
    """Who should be heard besides cells, as the log has it."""

    kinds = (SILENT,)

    def __init__(self, limits: Limits) -> None:
        """Nobody is known."""
        self._limits = limits
        self._offices: dict[str, tuple[str, At]] = {}
        """Service -> the instance in office, and since when."""
        self._running: dict[str, dict[str, At]] = {}
        """Runner -> its executions under way, and when they were launched."""

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {OfficeTaken: self._taken, ExecutionLaunched: self._launched, ExecutionTerminated: self._terminated}

    @property
    def instances(self) -> frozenset[str]:
        """Those whose heartbeats should be heard."""
        return frozenset(instance for instance, _ in self._offices.values()) | self._running.keys()

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        if not outlook.live or outlook.listened <= 0:
            return
        for service, (instance, at) in sorted(self._offices.items()):
            if instance not in outlook.heard:
                yield self._silent(outlook, f"{service} ({instance})", at, "nothing that it decides is decided")
        for instance, running in sorted(self._running.items()):
            if instance not in outlook.heard:
                left = f"{len(running)} executions are its own ({listed(list(running))})"
                yield self._silent(outlook, f"runner {instance}", next(iter(running.values())), left)

    def _silent(self, outlook: Outlook, who: str, at: At, what: str) -> Finding:
        listened = outlook.listened
        says = (
            f"{who} was not heard for {listened:.1f} s, {listened / self._limits.beat:.0f} heartbeats, while "
            f"{len(outlook.heard)} others were: {what}"
        )
        return Finding(SILENT.name, "critical", says, (at.id,), "gyre status {run}")

    def _taken(self, at: At, event: OfficeTaken) -> None:
        self._offices[event.service] = (event.instance, at)

    def _launched(self, at: At, event: ExecutionLaunched) -> None:
        self._running.setdefault(event.runner, {})[event.execution] = at

    def _terminated(self, _: At, event: ExecutionTerminated) -> None:
        for runner, running in tuple(self._running.items()):
            running.pop(event.execution, None)
            if not running:
                del self._running[runner]
