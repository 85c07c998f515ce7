"""The one table, where everything lies, and the view of it that everything else is made of.

Exactly once, by design. The key is an event's identity; rows of equal keys are the same row, and `events` reads them as
one (`FINAL`) whether or not the engine has merged them yet. So a batch may be written twice, by a sink that was killed
before it heard that the first time had worked, or by two sinks at once. How far the warehouse is, is read from the
rows themselves: there is no position beside the data that could disagree with it.
"""

from schemas.speakers import Stream

DATABASE = "gyre"
STORED = "stored"
COLUMNS = {
    "run": "LowCardinality(String)",
    "stream": "LowCardinality(String)",
    "sequence": "UInt64",
    "index": "UInt32",
    "of": "UInt32",
    "ns": "Int64",
    "service": "LowCardinality(String)",
    "instance": "LowCardinality(String)",
    "commit": "String",
    "causation": "UInt64",
    "as_of": "UInt64",
    "correlation": "String",
    "type": "LowCardinality(String)",
    "v": "UInt16",
    "body": "JSON",
}
"""`index` and `of`: which of how many events of its commit. `ns`: UTC, nanoseconds since the epoch; 0: unknown."""

CREATE_STORED = (
    f"CREATE TABLE IF NOT EXISTS {STORED} ("
    + ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
    + ") ENGINE = ReplacingMergeTree PARTITION BY type ORDER BY (run, type, stream, sequence, `index`)"
)
"""A body has a column for each field that any event of its part has, so that each type has parts of its own: they are
dense, cheap to write and to merge, and a view of few events does not read the many of other types."""

CREATE_EVENTS = (
    f"CREATE OR REPLACE VIEW events AS SELECT *, fromUnixTimestamp64Nano(ns, 'UTC') AS time FROM {STORED} FINAL"
)

DOUBTFUL_SEQUENCES = 1 << 15
"""A batch never spans more; so a batch that was cut short lies within as many sequences of the last one."""


PARTS_MOST = 12
"""Parts of one type beyond which some are merged before a folder is let go."""


def crowded_query(most: int) -> str:
    """SQL for the partitions that have more parts than that."""
    return (
        "SELECT partition_id FROM system.parts WHERE active AND database = currentDatabase() "
        f"AND table = '{STORED}' GROUP BY partition_id HAVING count() > {most}"
    )


def position_query(run: str, stream: Stream) -> str:
    """SQL for (sequence, whole) of what may have been cut short, in order: whether all of that message is there.

    `run` is a token and `stream` one of two words, so that neither can say anything in SQL.
    """
    mine = f"run = '{run}' AND stream = '{stream}'"
    newest = f"(SELECT max(sequence) FROM {STORED} WHERE {mine})"
    return (
        f"SELECT sequence, uniqExact(`index`) = any(`of`) FROM {STORED} WHERE {mine} "
        f"AND sequence + {DOUBTFUL_SEQUENCES} > {newest} GROUP BY sequence ORDER BY sequence"
    )


def position_of(tail: list[tuple[int, bool]]) -> int:
    """The last sequence up to which every message is whole, of what `position_query` answers; 0 of nothing."""
    if not tail:
        return 0
    expected = max(1, tail[-1][0] - DOUBTFUL_SEQUENCES + 1)
    for sequence, whole in tail:
        if sequence != expected or not whole:
            break
        expected += 1
    return expected - 1
