"""Harnesses that fail or run out of time, one after the other."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from gyre.core.diagnosis.finding import At, Finding, Hear, Kind, Outlook, ids, why
from gyre.core.diagnosis.limits import HALF, Limits
from gyre.core.diagnosis.windows import Share, Window
from schemas.calls import HistoryRejected
from schemas.dispatch import ExecutionTerminated

FAILING = Kind("harness-failures", "more than half of a batch's executions in a row ended as failed: harness or set-up")
SLOW = Kind("harness-timeouts", "more than half of a batch's executions in a row ended at their deadline")
SETUP = Kind("slow-setup", "more than half of a batch's executions in a row took longer to set up than to work")
REJECTED = Kind("history-rejected", "requests that could not be aligned or rendered, as many as executions or more")


class Harness:
    """How executions ended, in the order in which they did; cancelled ones say nothing."""

    kinds = (FAILING, SLOW, SETUP, REJECTED)

    def __init__(self, limits: Limits) -> None:
        """None ended."""
        self._size = limits.batch
        self._failed, self._late, self._setup = Window(limits.batch), Window(limits.batch), Window(limits.batch)
        self._waited = Window(limits.batch)
        self._beat = limits.beat
        self._longest = (0.0, 0.0)
        """The longest set-up that took longer than the work, and that work, seconds."""
        self._details: deque[str] = deque(maxlen=limits.batch)
        """Of the latest failures."""
        self._worst_details: Counter[str] = Counter()
        self._ended = 0
        self._rejected: list[At] = []
        self._rejections = 0
        self._reason = ""

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {ExecutionTerminated: self._terminated, HistoryRejected: self._refused}

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        failed, late = self._failed.worst, self._late.worst
        if failed is not None and failed.value > HALF:
            yield self._failing(failed)
        if late is not None and late.value > HALF:
            says = (
                f"of {late.size} executions in a row {late.bad} ran until their deadline: it is too short for the "
                "tasks, or they hang"
            )
            yield Finding(SLOW.name, "warning", says, ids(late.examples), "gyre query terminations {run}")
        waited = self._waited.worst
        if waited is not None and waited.value > HALF:
            setup, work = self._longest
            says = (
                f"of {waited.size} executions in a row {waited.bad} took longer to set up than to work, at most "
                f"{setup:.1f} s before {work:.1f} s: images, clones or archives that could lie ready"
            )
            yield Finding(SETUP.name, "warning", says, ids(waited.examples), "gyre query stage-times {run}")
        if self._rejections >= max(self._size, self._ended):
            says = (
                f"{self._rejections} requests of {self._ended} ended executions were refused, the first because: "
                f"{self._reason}"
            )
            yield Finding(REJECTED.name, "warning", says, ids(self._rejected), why(self._rejected[0]))

    def _failing(self, failed: Share) -> Finding:
        setup = self._setup.worst
        where = f", {setup.bad} of them in set-up" if setup is not None else ""
        detail, times = self._worst_details.most_common(1)[0]
        says = f"of {failed.size} executions in a row {failed.bad} failed{where} ({times} times: {detail})"
        return Finding(FAILING.name, "critical", says, ids(failed.examples), "gyre query terminations {run}")

    def _terminated(self, at: At, event: ExecutionTerminated) -> None:
        if event.reason == "cancelled":
            return
        self._ended += 1
        failed = event.reason == "failed"
        if failed:
            self._details.append(event.detail or f"exit code {event.exit_code}")
        before = self._failed.worst
        self._failed.add(at, failed)
        self._late.add(at, event.reason == "timeout")
        self._setup.add(at, failed and event.stage == "setup")
        if event.setup_seconds is not None and event.stage == "agent":
            self._set_up(at, event.setup_seconds, event.seconds)
        if self._failed.worst is not before:
            self._worst_details = Counter(self._details)

    def _set_up(self, at: At, setup: float, work: float) -> None:
        """What takes less than a heartbeat is not worth a word."""
        bad = setup > max(work, self._beat)
        self._waited.add(at, bad)
        if bad:
            self._longest = max(self._longest, (setup, work))

    def _refused(self, at: At, event: HistoryRejected) -> None:
        self._rejections += 1
        if self._rejections <= self._size:
            self._rejected.append(at)
            self._reason = self._reason or event.reason
