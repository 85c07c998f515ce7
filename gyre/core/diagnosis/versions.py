"""Policy versions: groups that became too old, engines that serve an old one, answers that mix too many."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

from gyre.core.diagnosis.finding import MOST_EVIDENCE, SECOND, At, Finding, Hear, Kind, Outlook, ids, why
from gyre.core.diagnosis.limits import Limits
from schemas.calls import ModelCallRecorded
from schemas.training import GroupAssigned, WeightsPublished

STALE = Kind("stale-groups", "groups trained on so late that a whole burst overtook them, as the schedule counts it")
OLD = Kind("stale-engine", "calls sampled from weights that were replaced long before the call began")
MIXED = Kind("mixed-versions", "single answers whose tokens come from more than two publications")


class Versions:
    """What was trained at which version, and what was sampled from which. EV has to be heard before CALL."""

    kinds = (STALE, OLD, MIXED)

    def __init__(self, limits: Limits) -> None:
        """Version 0 is published."""
        self._limits = limits
        self._stale: list[At] = []
        self._stale_count, self._groups = 0, 0
        self._stalest: GroupAssigned | None = None
        self._times: list[int] = []
        self._published: list[int] = []
        """One entry a burst."""
        self._old: list[At] = []
        self._old_count = 0
        self._oldest: tuple[int, int, ModelCallRecorded] | None = None
        """(versions behind, the published one, the call)"""
        self._mixed: list[At] = []
        self._mixed_count = 0
        self._widest: ModelCallRecorded | None = None
        self._calls = 0

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {
            GroupAssigned: self._assigned,
            WeightsPublished: self._publish,
            ModelCallRecorded: self._called,
        }

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        if self._stalest is not None:
            worst, usual = self._stalest, self._limits.phi + (self._limits.mu - 1) / 2
            says = (
                f"{self._stale_count} of {self._groups} groups were trained on more than {self._limits.stalest} steps "
                f"after their dispatch, {worst.group} of version {worst.version} at step {worst.step} "
                f"({worst.staleness} steps; phi + (mu - 1) / 2 = {usual:g} is usual)"
            )
            yield Finding(STALE.name, "warning", says, ids(self._stale), why(self._stale[0]))
        if self._oldest is not None:
            behind, published, call = self._oldest
            says = (
                f"{self._old_count} of {self._calls} calls were sampled from older weights than were published when "
                f"they began, {call.call} from version {call.versions[0].version} with {published} published: cell "
                f"{call.cells[0] if call.cells else '?'} serves {behind} versions too old"
            )
            yield Finding(OLD.name, "critical", says, ids(self._old), f"gyre call {{run}} {call.call}")
        if self._widest is not None:
            call = self._widest
            first, last = call.versions[0].version, call.versions[-1].version
            says = (
                f"{self._mixed_count} of {self._calls} answers were sampled across more than two publications, "
                f"{call.call} from version {first} to {last}: it took longer than a burst of {self._limits.mu} steps"
            )
            yield Finding(MIXED.name, "warning", says, ids(self._mixed), f"gyre call {{run}} {call.call}")

    def _assigned(self, at: At, event: GroupAssigned) -> None:
        self._groups += 1
        if event.staleness <= self._limits.stalest:
            return
        self._stale_count += 1
        if self._stalest is None or event.staleness > self._stalest.staleness:
            self._stalest = event
        if len(self._stale) < MOST_EVIDENCE:
            self._stale.append(at)

    def _publish(self, at: At, event: WeightsPublished) -> None:
        self._times.append(max(at.time, self._times[-1] if self._times else 0))
        self._published.append(event.version)

    def _called(self, at: At, event: ModelCallRecorded) -> None:
        self._calls += 1
        if not event.versions:
            return
        first, last = event.versions[0].version, event.versions[-1].version
        if last - first > self._limits.mu:
            self._mixed_count += 1
            self._widest = self._widest or event
            if len(self._mixed) < MOST_EVIDENCE:
                self._mixed.append(at)
        began = at.time - (event.total_seconds + self._limits.silence) * SECOND  # no whole number: it may be -inf
        place = bisect_right(self._times, began)
        published = self._published[place - 1] if place else 0
        if first < published:
            self._behind(at, event, published)

    def _behind(self, at: At, event: ModelCallRecorded, published: int) -> None:
        """Published for longer than a silence counts as death: every engine had it, says WeightsPublished."""
        behind = published - event.versions[0].version
        self._old_count += 1
        if self._oldest is None or behind > self._oldest[0]:
            self._oldest = (behind, published, event)
        if len(self._old) < MOST_EVIDENCE:
            self._old.append(at)
