"""Typed views over the events: one for each thing that people ask about, in the words of docs/analytics.md.

Durations and times are seconds; `at` and `*_at` are seconds since the run's first event. What an event did not say, or
did not say yet, is NULL, so that averages leave it out.
"""

import hashlib

from gyre.warehouse import tables
from gyre.warehouse.views_rollout import LATEST, ROLLOUT
from gyre.warehouse.views_training import TRAINING

_RUNS = f"""
SELECT run, minIf(ns, ns > 0) AS zero, {LATEST} AS latest, (latest - zero) / 1e9 AS seconds, count() AS events,
    countIf(facts.index = 0) AS commits, countIf(type = 'Malformed') AS malformed,
    countIf(type = 'RunFinished') > 0 AS finished
FROM facts GROUP BY run
"""

VIEWS: dict[str, str] = {"runs": _RUNS, **ROLLOUT, **TRAINING}
"""Name -> SELECT; each may use those before it."""


def create_view(name: str) -> str:
    """SQL for one of them."""
    return f"CREATE OR REPLACE VIEW {name} AS {' '.join(VIEWS[name].split())}"


_CREATE = (
    tables.CREATE_STORED,
    *tables.create_views(),
    *(create_view(name) for name in VIEWS),
)
LAYOUT = hashlib.sha256("\n".join(_CREATE).encode()).hexdigest()
"""Names what `CREATE` makes: kept in the view `layout`, so that nothing is made anew where it is there already."""
HAS_LAYOUT = (
    f"SELECT count() FROM system.tables WHERE database = currentDatabase() AND name = 'layout' AND comment = '{LAYOUT}'"
)
CREATE = (*_CREATE, f"CREATE OR REPLACE VIEW layout AS SELECT '{LAYOUT}' AS digest COMMENT '{LAYOUT}'")
"""Statements that make the table and the views, in this order; each may be repeated."""
