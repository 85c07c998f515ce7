"""What trains, as a picture needs it: the batch that fills, micro-steps and their claims, steps, evaluations."""

from typing import Any

from services.dashboard.panels_rollout import Panel
from services.dashboard.store import Ask

STEPS = 240
"""Most points of a curve: beyond it, steps are taken together with their mean, least and most."""
MICRO_STEPS = 240
"""Most micro-steps that are shown one by one."""
CELLS = 64

_STEP = """
SELECT step, wanted, opened_at, closed_at, updated_at, CASE WHEN updated_at <= :at THEN members END
FROM steps WHERE opened_at <= :at ORDER BY step DESC LIMIT 1
"""
_GROUPS = """
SELECT group_id, staleness, mean FROM groups WHERE step = :step AND assigned_at <= :at ORDER BY assigned_at LIMIT 256
"""
_MICRO = """
SELECT m.micro_step, m.kind, m.tokens, c.cell, c.completed_at <= :at AS done, (
    SELECT COUNT(*) FROM claims o WHERE o.step = m.step AND o.micro_step = m.micro_step AND o.void_at <= :at) AS void
FROM micro_steps m LEFT JOIN claims c ON c.step = m.step AND c.micro_step = m.micro_step
    AND c.claimed_at <= :at AND (c.void_at IS NULL OR c.void_at > :at)
WHERE m.step = :step AND m.enqueued_at <= :at ORDER BY m.micro_step LIMIT :most
"""
_BY_CELL = """
SELECT cell, COUNT(*), COUNT(CASE WHEN completed_at <= :at AND (void_at IS NULL OR void_at > :at) THEN 1 END),
    COUNT(CASE WHEN void_at <= :at THEN 1 END)
FROM claims WHERE step = :step AND claimed_at <= :at GROUP BY cell ORDER BY cell LIMIT :most
"""
_QUEUED = "SELECT COUNT(*), SUM(kind = 'train') FROM micro_steps WHERE step = :step AND enqueued_at <= :at"
_STEPS = """
WITH done AS (
    SELECT step, updated_at, updated_at - LAG(updated_at, 1, 0) OVER (ORDER BY step) AS seconds, members, loss,
        gradient_norm FROM steps WHERE updated_at <= :at
), fresh AS (
    SELECT step, AVG(mean) AS reward, MIN(mean) AS worst, MAX(mean) AS best, AVG(staleness) AS staleness,
        MIN(staleness) AS freshest, MAX(staleness) AS stalest FROM groups WHERE assigned_at <= :at GROUP BY step
), worked AS (
    SELECT step, SUM(trained) AS trained, SUM(masked) AS masked, MAX(max_delta_log_p) AS far FROM claims
    WHERE completed_at <= :at AND (void_at IS NULL OR void_at > :at) GROUP BY step
)
SELECT MAX(d.step), MAX(d.updated_at), AVG(f.reward), MIN(f.worst), MAX(f.best), AVG(f.staleness), MIN(f.freshest),
    MAX(f.stalest), AVG(d.seconds), AVG(d.members), AVG(d.loss), AVG(d.gradient_norm),
    1.0 * SUM(w.masked) / NULLIF(SUM(w.trained), 0), MAX(w.far), COUNT(*)
FROM done d LEFT JOIN fresh f ON f.step = d.step LEFT JOIN worked w ON w.step = d.step
GROUP BY (d.step - 1) * MIN(:most, (SELECT MAX(step) FROM done)) / (SELECT MAX(step) FROM done) ORDER BY 1
"""
COLUMNS = (
    "step", "updated", "reward", "worst", "best", "staleness", "freshest", "stalest", "seconds", "members", "loss",
    "gradient_norm", "masked", "max_delta_log_p", "steps",
)  # fmt: skip
_EVALUATIONS = """
SELECT version, at, mean, valid FROM evaluations WHERE at <= :at ORDER BY version DESC LIMIT :most
"""
_PUBLISHED = "SELECT version, at FROM publications WHERE at <= :at ORDER BY version DESC LIMIT :most"


def batch(ask: Ask, at: float) -> Panel | None:
    """The newest batch: its slots, its micro-steps and who claimed them; None before the first one."""
    found = ask(_STEP, {"at": at})
    if not found:
        return None
    step, wanted, opened_at, closed_at, updated_at, members = found[0]
    of = {"at": at, "step": step}
    queued, training = ask(_QUEUED, of)[0]
    return {
        "step": step,
        "wanted": wanted,
        "opened": opened_at,
        "closed": closed_at is not None and closed_at <= at,
        "updated": updated_at is not None and updated_at <= at,
        "members": members,
        "groups": [list(each) for each in ask(_GROUPS, of)],
        "queued": queued,
        "training": training or 0,
        "micro_steps": [_micro(*each) for each in ask(_MICRO, {**of, "most": MICRO_STEPS})],
        "cells": [list(each) for each in ask(_BY_CELL, {**of, "most": CELLS})],
    }


def steps(ask: Ask, at: float) -> Panel:
    """Curves over the steps that are done, evaluations and publications."""
    most = {"at": at, "most": STEPS}
    return {
        "columns": COLUMNS,
        "rows": [list(each) for each in ask(_STEPS, most)],
        "evaluations": [list(each) for each in reversed(ask(_EVALUATIONS, most))],
        "published": [list(each) for each in reversed(ask(_PUBLISHED, most))],
    }


def _micro(number: int, kind: str, tokens: int, cell: int | None, done: int | None, void: int) -> list[Any]:
    """Number, kind, tokens, state, the cell that holds or did it, how often it was given to somebody else."""
    state = "queued" if cell is None else "done" if done else "claimed"
    return [number, kind, tokens, state, cell, void]
