"""Questions that are asked often, by name: `gyre query NAME RUN`. Each is SQL over the views, to be changed as such.

`{run:String}` is the run that is asked about; other parameters have defaults here and are set by `--set`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gyre.warehouse.queries_failures import FAILURES
from gyre.warehouse.queries_figures import FIGURES


@dataclass(frozen=True, slots=True)
class Canned:
    """A question and how to ask it."""

    name: str
    about: str
    """What its answer shows, in one line."""
    sql: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Besides the run: name -> default."""


_PLACE = re.compile(r"\{\s*(\w+)\s*:\s*([^}]+?)\s*\}")
_INTEGER, _FLOAT = re.compile(r"U?Int\d+"), re.compile(r"Float\d+")
_WHOLE = re.compile(r"-?\d+")


def trouble(sql: str, name: str, value: str) -> str:
    """Why a parameter is none of this SQL, as far as that can be told without the engine; "" if it may be one."""
    kinds = [kind for each, kind in _PLACE.findall(sql) if each == name]
    if not kinds:
        return f"the question has no place for it; write {{{name}:String}} where it belongs"
    if any(_INTEGER.fullmatch(kind) for kind in kinds) and not _WHOLE.fullmatch(value):
        return f"{value or 'nothing'}: it is a whole number"
    if any(_FLOAT.fullmatch(kind) for kind in kinds) and not _finite(value):
        return f"{value or 'nothing'}: it is a number"
    return ""


def _finite(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def _canned(name: str, about: str, sql: str) -> Canned:
    """`sql` may begin with a line of defaults: `-- width=0 first=0`."""
    first, _, rest = sql.strip().partition("\n")
    if not first.startswith("-- "):
        return Canned(name, about, sql.strip())
    return Canned(name, about, rest, dict(each.split("=") for each in first[3:].split()))


QUERIES: Mapping[str, Canned] = {
    name: _canned(name, about, sql) for name, (about, sql) in {**FIGURES, **FAILURES}.items()
}
"""By name."""
