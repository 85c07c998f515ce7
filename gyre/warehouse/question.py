"""What may be asked: one statement that reads, of what the warehouse holds and of nothing beside it.

`readonly` refuses writing into tables, and leaves whoever asks every file and host that the engine reaches: by
functions such as `file` and `url`, by INTO OUTFILE, and by settings that hold SQL or paths. So the engine says first
what it understands: in one spelling, without comments, and with the names of those functions. What it said is asked.
"""

import re
from collections.abc import Iterator, Mapping
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
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`")
"""A literal, or a name with signs in it."""
_WORD = re.compile(r"(\w+)(\(?)")
"""A word, and whether it is called."""
_SETTINGS = re.compile(r"\bSETTINGS ((?:\w+ = (?:-?[\w.]+|'')(?:, )?)*)(?:(\w+) = )?")
"""Settings that are a number, a word or a text, and one behind them that is none of these."""
_TEXTS = ("date_time_output_format", "session_timezone")
"""Settings that may be a text: others hold SQL of their own, or paths of files."""
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
    bare = _QUOTED.sub(_without_signs, said)
    words = [word for word, _ in _WORD.findall(bare)]
    if not words or words[0] not in _READS:
        raise QueryRefused(f"{words[0] if words else 'nothing'}: ask with {', '.join(_READS[:-1])} or {_READS[-1]}")
    for pair, what in ((("INTO", "OUTFILE"), "give --out FILE"), (("PARALLEL", "WITH"), "ask one after the other")):
        if pair in pairwise(words):
            raise QueryRefused(f"{' '.join(pair)}: whoever asks only reads; {what}")
    for name, called in _WORD.findall(bare):
        if called and name.lower() in outside:
            raise QueryRefused(f"{name}(): reaches beyond the warehouse, and whoever asks does not")
    for name in _settings(bare):
        if name not in _TEXTS:
            raise QueryRefused(f"SETTINGS {name}: whoever asks sets numbers, and {' and '.join(_TEXTS)}")


def _settings(bare: str) -> Iterator[str]:
    """Names of those that are not a number or a word."""
    for simple, other in _SETTINGS.findall(bare):
        yield from (each.removesuffix(" = ''") for each in simple.split(", ") if each.endswith(" = ''"))
        if other:
            yield other


def _without_signs(quoted: re.Match[str]) -> str:
    """An empty literal; a name that can be told from its surroundings."""
    text = quoted[0]
    return "''" if text.startswith("'") else re.sub(r"\W", "_", text[1:-1])
