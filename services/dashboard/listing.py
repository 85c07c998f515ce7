"""The list of executions: filtered, sorted and cut into pages where the rows are, as of a time."""

from dataclasses import dataclass
from typing import Any

from gyre.errors import GyreError
from services.dashboard.store import Ask

MOST = 100
"""Rows on a page."""
STATES = ("queued", "running", "completed", "failed", "timeout", "cancelled")
_STATUS = "CASE WHEN terminated_at <= :at THEN reason WHEN launched_at <= :at THEN 'running' ELSE 'queued' END"
COLUMNS = {
    "execution": "execution",
    "task": "task",
    "status": _STATUS,
    "reward": "CASE WHEN graded_at <= :at THEN reward END",
    "advantage": "CASE WHEN admitted_at <= :at THEN advantage END",
    "version": "version",
    "dispatched": "dispatched_at",
    "seconds": "CASE WHEN terminated_at <= :at THEN seconds WHEN launched_at <= :at THEN :at - launched_at END",
    "calls": "CASE WHEN terminated_at <= :at THEN calls END",
    "leaves": "CASE WHEN terminated_at <= :at THEN leaves END",
    "tokens": "CASE WHEN terminated_at <= :at THEN tokens END",
    "targets": "CASE WHEN admitted_at <= :at THEN targets END",
    "cell": "cell",
    "detail": "CASE WHEN terminated_at <= :at THEN substr(detail, 1, 200) END",
}
"""Name of a column -> SQL of what it was at a time."""
_WHERE = (
    f"dispatched_at <= :at AND (:status = '' OR {_STATUS} = :status) AND (:text = '' OR instr(execution, :text) > 0 "
    "OR instr(task, :text) > 0 OR instr(group_id, :text) > 0)"
)


class BadQuestion(GyreError):
    """A parameter of a request is not what it may be."""


@dataclass(frozen=True, slots=True)
class Question:
    """Which executions, in which order, which page."""

    status: str = ""
    """One of `STATES`; "" for all."""
    text: str = ""
    """Part of the name of an execution, a task or a group."""
    sort: str = "dispatched"
    descending: bool = True
    page: int = 0
    size: int = 25

    def __post_init__(self) -> None:
        """Raises `BadQuestion` naming the parameter."""
        if self.status and self.status not in STATES:
            raise BadQuestion(f"status = {self.status[:80]}: one of {', '.join(STATES)}")
        if self.sort not in COLUMNS:
            raise BadQuestion(f"sort = {self.sort[:80]}: one of {', '.join(COLUMNS)}")
        if not 0 < self.size <= MOST:
            raise BadQuestion(f"size = {self.size}: 1 to {MOST}")
        if self.page < 0:
            raise BadQuestion(f"page = {self.page}: 0 or more")


def executions(ask: Ask, at: float, question: Question) -> dict[str, Any]:
    """A page of executions; what has no value yet comes last, in either order."""
    chosen = {"at": at, "status": question.status, "text": question.text}
    total = ask(f"SELECT COUNT(*) FROM executions WHERE {_WHERE}", chosen)[0][0]  # noqa: S608 - SQL of ours
    order = f"{COLUMNS[question.sort]} {'DESC' if question.descending else 'ASC'} NULLS LAST"
    named = ", ".join(f"{sql} AS {name}" for name, sql in COLUMNS.items())
    sql = f"SELECT {named} FROM executions WHERE {_WHERE} ORDER BY {order}, rowid LIMIT :size OFFSET :skip"  # noqa: S608
    rows = ask(sql, {**chosen, "size": question.size, "skip": question.page * question.size})
    return {
        "columns": list(COLUMNS),
        "rows": [list(each) for each in rows],
        "total": total,
        "page": question.page,
        "size": question.size,
    }
