"""The one table, where everything lies, and the views of it that everything else is made of.

Exactly once, by design. The key is an event's identity; rows of equal keys are the same row, and the views read them as
one (`FINAL`) whether or not the engine has merged them yet. So a batch may be written twice, by a sink that was killed
before it heard that the first time had worked, or by two sinks at once. How far the warehouse is, is read from the
rows themselves: there is no position beside the data that could disagree with it.
"""

import hashlib
from collections.abc import Mapping
from itertools import chain, count

from gyre.warehouse import fields
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
    "text": "String",
}
"""What a row says, in the order in which it is written. `index` and `of`: which of how many events of its commit.
`ns`: UTC, nanoseconds since the epoch; 0: unknown. `text`: the event's fields as JSON."""

_STORED_COLUMNS = ", ".join(f"`{name}` {kind}" for name, kind in {**COLUMNS, **fields.COLUMNS}.items())
SHAPE = hashlib.sha256(_STORED_COLUMNS.encode()).hexdigest()[:16]
"""Names the table's columns; its comment, so that a table of other columns is noticed."""

CREATE_STORED = (
    f"CREATE TABLE IF NOT EXISTS {STORED} ({_STORED_COLUMNS}) ENGINE = ReplacingMergeTree "
    f"ORDER BY (run, type, stream, sequence, `index`) COMMENT '{SHAPE}'"
)
"""Rows of a type lie together, so that a view of few events does not read the many of other types."""

_ENVELOPE = ", ".join(f"`{name}`" for name in COLUMNS if name != "text")
_FIELDS = ", ".join(f"`{name}`" for name in fields.FIELDS)


def create_views(final: str = "FINAL") -> tuple[str, str]:
    """SQL for `events` and `facts`; `final` is empty where no row can be there twice."""
    body, time = "text::JSON AS body", "fromUnixTimestamp64Nano(ns, 'UTC') AS time"
    twice = "SETTINGS type_json_skip_duplicated_paths = 1"  # {"a.b": 1, "a": {"b": 2}}: of one event, not of a view
    return (
        f"CREATE OR REPLACE VIEW events AS SELECT {_ENVELOPE}, {body}, {time} FROM {STORED} {final} {twice}",
        f"CREATE OR REPLACE VIEW facts AS SELECT {_ENVELOPE}, {_FIELDS} FROM {STORED} {final}",
    )


DOUBTFUL_SEQUENCES = 1 << 17
"""A batch never spans more; so a batch that was cut short lies within as many sequences of the last one."""


PARTS = f"SELECT count() FROM system.parts WHERE active AND database = currentDatabase() AND table = '{STORED}'"
PARTS_MOST = 24
"""Parts beyond which some are merged before a folder is let go."""


KEPT = f"SELECT name, comment FROM system.tables WHERE database = currentDatabase() AND startsWith(name, '{STORED}')"
"""SQL for the tables of rows that there are, and their shapes."""


def renames(kept: Mapping[str, str]) -> list[tuple[str, str]]:
    """What to rename, in order, so that the table is of this shape or there is none. `kept`: as `KEPT` answers.

    Rows that an older or newer version of this program wrote stay, under another name, and are taken up again by it:
    the log fills in what they lack.
    """
    found = []
    shape = kept.get(STORED)
    if shape not in (None, SHAPE):
        aside = f"{STORED}_{shape or 'before'}"
        names = chain([aside], (f"{aside}_{number}" for number in count(2)))
        found.append((STORED, next(name for name in names if name not in kept)))
    back = sorted(name for name, comment in kept.items() if comment == SHAPE)
    return found if STORED in back or not back else [*found, (back[0], STORED)]


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
