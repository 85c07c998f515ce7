"""What may be asked: one statement that reads, of what the warehouse holds and of nothing beside it.

`readonly` refuses writing into tables, and leaves whoever asks every file and host that the engine reaches: by
functions such as `file` and `url`, and by INTO OUTFILE. So the engine says first what it understands: in one spelling,
without comments, and with the names of those functions. What it said is what is asked.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from gyre.warehouse.engine import QueryRefused

_UNDERSTOOD = (
    "SELECT arrayStringConcat(groupArray(name), ' '), formatQuerySingleLine({sql:String}) "
    "FROM system.table_functions WHERE NOT allow_readonly"
)
_READS = ("SELECT", "WITH", "DESCRIBE", "SHOW", "EXPLAIN", "EXISTS")
_INSIDE = frozenset(("format", "loop", "zeros", "zeros_mt"))
"""Not for whoever may only read, says the engine; but they reach nothing."""
_RUNS_TEXT = ("eval",)
_WORD = re.compile(r"'(?:[^'\\]|\\.)*'|(`(?:[^`\\]|\\.)*`|\w+)(\(?)")
"""A literal, or a word and whether it is called."""
_PARAMETER = re.compile(r"\{(\w+):[^}]+\}")


def answer(client: Any, sql: str, parameters: Mapping[str, Any], form: str) -> bytes:
    """What a client answers in a format; parameters that the SQL does not name are left out.

    Raises:
        QueryRefused: it does more than read here. What the engine itself refuses is the driver's error.
    """
    if not form.isidentifier():
        raise QueryRefused(f"format {form!r}: not a name")
    outside, _, said = str(client.raw_query(_UNDERSTOOD, {"sql": sql}, fmt="TSVRaw"), "utf-8").partition("\t")
    _check(said, {name.lower() for name in {*outside.split(), *_RUNS_TEXT} - _INSIDE})
    # without a place for them the driver would write parameters into the text, by the signs of Python's `%`
    named = set(_PARAMETER.findall(said))
    filled = {name: value for name, value in parameters.items() if name in named}
    found: bytes = client.raw_query(said, filled, fmt=form)
    return found


def _check(said: str, outside: set[str]) -> None:
    """`said`: SQL in the engine's spelling."""
    found = [(word.strip("`"), word, bool(called)) for word, called in _WORD.findall(said) if word]
    words = [word for _, word, _ in found]
    if not words or words[0] not in _READS:
        raise QueryRefused(f"{words[0] if words else 'nothing'}: ask with {', '.join(_READS[:-1])} or {_READS[-1]}")
    for pair, what in ((("INTO", "OUTFILE"), "give --out FILE"), (("PARALLEL", "WITH"), "ask one after the other")):
        if pair in pairwise(words):
            raise QueryRefused(f"{' '.join(pair)}: whoever asks only reads; {what}")
    for name, _, called in found:
        if called and name.lower() in outside:
            raise QueryRefused(f"{name}(): reaches beyond the warehouse, and whoever asks does not")
