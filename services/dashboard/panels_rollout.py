"""What rolls out, as a picture needs it: counters, executions at large, how they ended, groups, tasks.

Each panel is a few sums as of a time; its size is bounded whatever the run's length.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from services.dashboard.store import Ask

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVELS = 240
"""Spans of time of the counters' picture."""
VERSIONS = 24
"""Columns of the pictures by policy version."""
SPREADS = 10
TASKS = 24
"""Tasks on one page of the grid."""
Panel = dict[str, Any]

_COUNTS = """
SELECT COUNT(*), COUNT(CASE WHEN launched_at <= :at THEN 1 END), COUNT(CASE WHEN terminated_at <= :at THEN 1 END),
    COUNT(CASE WHEN graded_at <= :at THEN reward END)
FROM executions WHERE dispatched_at <= :at
"""
_READY = """
SELECT COUNT(*) FROM groups WHERE ready_at <= :at AND (assigned_at IS NULL OR assigned_at > :at)
"""
_VERSION = "SELECT MAX(version) FROM publications WHERE at <= :at"
_TIMES = tuple(
    f"SELECT {column} FROM executions WHERE {column} <= :at ORDER BY 1"  # noqa: S608 - names of ours
    for column in ("dispatched_at", "launched_at", "terminated_at")
)
_RANKED = """
WITH seen AS (SELECT DISTINCT version FROM executions WHERE dispatched_at <= :at), ranked AS (
    SELECT version, (ROW_NUMBER() OVER (ORDER BY version) - 1) * MIN(:columns, COUNT(*) OVER ()) / COUNT(*) OVER ()
        AS span FROM seen
)
"""
"""Policy versions at which something was dispatched, and the column of each."""
_HEADS = _RANKED + "SELECT span, MIN(version), MAX(version) FROM ranked GROUP BY span ORDER BY span"  # noqa: S608 - ours
_ENDS = (
    _RANKED
    + """
SELECT span, MIN(r.version), MAX(r.version), COUNT(*),
    COUNT(CASE WHEN terminated_at <= :at AND reason = 'completed' THEN 1 END),
    COUNT(CASE WHEN terminated_at <= :at AND reason = 'failed' THEN 1 END),
    COUNT(CASE WHEN terminated_at <= :at AND reason = 'timeout' THEN 1 END),
    COUNT(CASE WHEN terminated_at <= :at AND reason = 'cancelled' THEN 1 END)
FROM executions e JOIN ranked r ON r.version = e.version WHERE dispatched_at <= :at GROUP BY span ORDER BY span
"""
)
_OUTCOMES = (
    _RANKED
    + """
SELECT span, MIN(r.version), MAX(r.version),
    COUNT(CASE WHEN scored >= 2 AND highest > lowest THEN 1 END),
    COUNT(CASE WHEN scored >= 2 AND highest = lowest AND lowest = 0 THEN 1 END),
    COUNT(CASE WHEN scored >= 2 AND highest = lowest AND lowest = 1 THEN 1 END),
    COUNT(CASE WHEN scored >= 2 AND highest = lowest AND lowest != 0 AND lowest != 1 THEN 1 END),
    COUNT(CASE WHEN scored < 2 THEN 1 END)
FROM groups g JOIN ranked r ON r.version = g.version WHERE ready_at <= :at GROUP BY span ORDER BY span
"""
)
_SPREADS = """
SELECT MIN(CAST((highest - lowest) * :bins AS INTEGER), :bins - 1) AS bin, COUNT(*) FROM groups
WHERE ready_at <= :at AND scored >= 2 AND highest > lowest GROUP BY bin ORDER BY bin
"""
_TASKS = (
    _RANKED  # noqa: S608 - ours
    + """, chosen AS (
    SELECT task, COUNT(*) AS often FROM executions
    WHERE graded_at <= :at AND reward IS NOT NULL AND instr(task, :text) > 0
    GROUP BY task ORDER BY often DESC, task LIMIT :most OFFSET :skip
)
SELECT e.task, span, COUNT(*), COUNT(CASE WHEN reward >= 1 THEN 1 END), AVG(reward)
FROM executions e JOIN chosen c ON c.task = e.task JOIN ranked r ON r.version = e.version
WHERE graded_at <= :at AND reward IS NOT NULL GROUP BY e.task, span ORDER BY often DESC, e.task, span
"""
)
_HOW_MANY = """
SELECT COUNT(DISTINCT task) FROM executions
WHERE graded_at <= :at AND reward IS NOT NULL AND instr(task, :text) > 0
"""


def counters(ask: Ask, at: float) -> Panel:
    """Executions dispatched, launched, terminated, at large; groups ready and unassigned; published version."""
    dispatched, launched, terminated, scored = ask(_COUNTS, {"at": at})[0]
    return {
        "dispatched": dispatched,
        "launched": launched,
        "terminated": terminated,
        "waterlevel": dispatched - terminated,
        "queued": dispatched - launched,
        "running": launched - terminated,
        "scored": scored,
        "ready": ask(_READY, {"at": at})[0][0],
        "published": ask(_VERSION, {"at": at})[0][0] or 0,
    }


def levels(ask: Ask, at: float) -> Panel:
    """The counters at the end of each span of time in which they changed, with the least and most at large in it."""
    width = max(at, 1e-9) / LEVELS
    times = [np.fromiter((when for (when,) in ask(sql, {"at": at})), float) for sql in _TIMES]
    return {
        "width": width,
        "rows": _counted(times, width) if any(map(len, times)) else [],
        "columns": ["seconds", "dispatched", "launched", "terminated", "least", "most"],
    }


def _counted(times: list["NDArray[np.float64]"], width: float) -> list[list[Any]]:
    """Rows of `levels`, of the times of each kind."""
    together = np.concatenate(times)
    order = np.argsort(together, kind="stable")
    places = np.minimum((together[order] / width).astype(int), LEVELS - 1)
    kinds = np.repeat(np.arange(len(times)), [len(each) for each in times])[order]
    dispatched, launched, terminated = (np.cumsum(kinds == kind) for kind in range(len(times)))
    large = dispatched - terminated
    first = np.flatnonzero(np.diff(places, prepend=-1))
    last = np.append(first[1:], len(places)) - 1
    least, most = np.minimum.reduceat(large, first), np.maximum.reduceat(large, first)
    ends = (places[last] + 1) * width
    columns = (ends, dispatched[last], launched[last], terminated[last], least, most)
    return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def ends(ask: Ask, at: float) -> Panel:
    """How executions ended, by the policy version at their dispatch."""
    rows = [
        [first, last, *counts, total - sum(counts)]
        for _, first, last, total, *counts in ask(_ENDS, {"at": at, "columns": VERSIONS})
    ]
    return {"kinds": ["completed", "failed", "timeout", "cancelled", "open"], "rows": rows}


def groups(ask: Ask, at: float) -> Panel:
    """What groups came to, by the policy version at their dispatch; and how far the rewards of mixed ones spread."""
    found = ask(_OUTCOMES, {"at": at, "columns": VERSIONS})
    spreads = [0] * SPREADS
    for place, count in ask(_SPREADS, {"at": at, "bins": SPREADS}):
        spreads[place] = count
    kinds = ["mixed", "all zero", "all one", "all equal", "too few"]
    return {"kinds": kinds, "rows": [[first, last, *counts] for _, first, last, *counts in found], "spread": spreads}


def tasks(ask: Ask, at: float, page: int = 0, text: str = "") -> Panel:
    """A page of the grid of tasks by policy version: how often each was scored and solved, and its mean reward.

    The tasks that were scored most often come first.
    """
    chosen = {"at": at, "text": text}
    rows: dict[str, list[list[Any]]] = {}
    paged = {**chosen, "columns": VERSIONS, "most": TASKS, "skip": page * TASKS}
    for task, span, count, solved, mean in ask(_TASKS, paged):
        rows.setdefault(task, []).append([span, count, solved, mean])
    return {
        "page": page,
        "size": TASKS,
        "total": ask(_HOW_MANY, chosen)[0][0],
        "versions": [[first, last] for _, first, last in ask(_HEADS, {"at": at, "columns": VERSIONS})],
        "rows": [[task, cells] for task, cells in rows.items()],
    }
