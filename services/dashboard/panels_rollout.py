"""What rolls out, as a picture needs it: counters, executions at large, how they ended, groups, tasks.

Each panel is a few sums as of a time; its size is bounded whatever the run's length.
"""

from typing import Any

from services.dashboard.store import Ask

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
_LEVELS = """
SELECT MIN(CAST(at / :width AS INTEGER), :last) AS place, MAX(d), MAX(p), MAX(f), MIN(w), MAX(w) FROM (
    SELECT at, SUM(d) OVER past AS d, SUM(p) OVER past AS p, SUM(f) OVER past AS f, SUM(d - f) OVER past AS w FROM (
        SELECT dispatched_at AS at, 1 AS d, 0 AS p, 0 AS f FROM executions WHERE dispatched_at <= :at
        UNION ALL SELECT launched_at, 0, 1, 0 FROM executions WHERE launched_at <= :at
        UNION ALL SELECT terminated_at, 0, 0, 1 FROM executions WHERE terminated_at <= :at ORDER BY 1
    ) WINDOW past AS (ORDER BY at ROWS UNBOUNDED PRECEDING)
) GROUP BY place ORDER BY place
"""
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
    found = ask(_LEVELS, {"at": at, "width": width, "last": LEVELS - 1})
    return {
        "width": width,
        "rows": [[(place + 1) * width, *counts] for place, *counts in found],
        "columns": ["seconds", "dispatched", "launched", "terminated", "least", "most"],
    }


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
