"""The cells as a picture needs them: what each was from when to when, and the places for executions they gave."""

from collections.abc import Sequence

from gyre.core.timeline import Interval, Lane
from gyre.core.timeline_series import thin_intervals
from services.dashboard.panels_rollout import LEVELS, Panel

LANES = 64
"""Cells that have a lane of their own."""
INTERVALS = 4096
"""Over all lanes together."""


def cells(lanes: Sequence[Lane], at: float, *, use: bool) -> Panel:
    """Lanes up to a time; `use`: whether the time is now, so that the sums of the lanes hold."""
    shown = lanes[:LANES]
    most = max(16, INTERVALS // max(1, len(shown)))
    return {
        "lanes": [
            {
                "cell": lane.cell,
                "capacity": lane.capacity,
                "used": lane.utilisation if use else None,
                "intervals": [[each.start, each.end, each.standing] for each in _thinned(lane, at, most)],
            }
            for lane in shown
        ],
        "more": len(lanes) - len(shown),
        "standings": _standings(lanes, at),
        "places": places(lanes, at),
    }


def places(lanes: Sequence[Lane], at: float) -> list[list[float]]:
    """[seconds, C_R] from each change on, thinned to what a picture shows."""
    changes = sorted(
        (time, change)
        for lane in lanes
        for each in _until(lane, at)
        if each.standing == "rollout"
        for time, change in ((each.start, lane.capacity), (each.end, -lane.capacity))
        if time < at
    )
    found: dict[int, list[float]] = {}
    now = 0
    width = max(at, 1e-9) / LEVELS
    for time, change in changes:
        now += change
        found[int(time / width)] = [time, now]
    return list(found.values())


def _thinned(lane: Lane, at: float, most: int) -> Sequence[Interval]:
    kept = _until(lane, at)
    return thin_intervals(kept, most) if len(kept) > most else kept


def _until(lane: Lane, at: float) -> list[Interval]:
    """Cut at a time; what a cell was last, it still is."""
    kept = [each for each in lane.intervals if each.start < at]
    if not kept:
        return []
    last = kept[-1]
    end = at if last is lane.intervals[-1] else min(last.end, at)
    return [*kept[:-1], Interval(last.start, end, last.standing)]


def _standings(lanes: Sequence[Lane], at: float) -> dict[str, int]:
    """How many cells stand how."""
    found: dict[str, int] = {}
    for lane in lanes:
        for each in _until(lane, at)[-1:]:
            found[each.standing] = found.get(each.standing, 0) + 1
    return found
