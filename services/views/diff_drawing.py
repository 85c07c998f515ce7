"""How `gyre diff` draws what it found, for people."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from gyre.core.difference import Row, Solved
from gyre.core.divergence import Parting
from gyre.core.progress import Step
from services.diff import Difference
from services.views.terminal import one_line, show, table

WIDTH = 60
"""Characters of a value."""
SAYS = 120
"""Characters of what an event says."""
TASKS = 20
"""Tasks in the table; `--json` has all."""
_FIGURES: tuple[tuple[str, Callable[[Step], float | None]], ...] = (
    ("reward", lambda step: step.reward),
    ("seconds", lambda step: step.seconds),
    ("staleness", lambda step: sum(step.staleness) / len(step.staleness) if step.staleness else None),
    ("loss", lambda step: step.loss),
    ("grad norm", lambda step: step.gradient_norm),
    ("masked", lambda step: float(step.masked)),
    ("targets", lambda step: float(step.targets)),
)


def draw(found: Difference, console: Console) -> None:
    """Draw a comparison; what is equal on both sides is left out, but for the counters."""
    show(console, _head(found))
    _table(console, "settings", found.settings)
    _table(console, "counters", found.counters)
    _steps(console, found)
    _table(console, "how executions ended", found.endings)
    _tasks(console, found)
    if found.same_run:
        _table(console, "said in between", found.said)
    show(console, _partings(found))


def _head(found: Difference) -> Iterator[Text]:
    for mark, side in (("A", found.here), ("B", found.there)):
        yield Text(f"{mark}  {side.name}: run {side.account.run} up to sequence {side.account.sequence}", "bold")
    if found.same_run:
        yield Text("two moments of one run")
    elif found.alike:
        yield Text("the same settings, seed, tasks and first weights: both were to do the same")


def _partings(found: Difference) -> Iterator[Text]:
    if found.same_run:
        return
    if not found.alike:
        yield Text("they were started differently, so where their logs first part says nothing")
        return
    if found.fact is None:
        yield Text("every fact that one log tells, the other tells too")
    else:
        yield Text.assemble(("first fact that differs: ", "bold"), _parting(found.fact))
    for each in found.decisions:
        yield Text.assemble(("first decision that differs: ", "bold"), _parting(each))


def _parting(parting: Parting) -> str:
    sides = ((parting.here, parting.here_says), (parting.there, parting.there_says))
    told = [f"{place} {says}" if place is not None else "does not say it" for place, says in sides]
    return f"{parting.of}: A {one_line(told[0], SAYS)}; B {one_line(told[1], SAYS)}"


def _table(console: Console, title: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    cells = ((row.what, _value(row.here), _value(row.there), _change(row.here, row.there)) for row in rows)
    console.print(table(("", "A", "B", "B - A"), cells, title))


def _steps(console: Console, found: Difference) -> None:
    if not found.steps:
        return
    names = ("step", *(f"{name} A/B" for name, _ in _FIGURES))
    cells = ((str(pair.step), *(_both(read, pair.here, pair.there) for _, read in _FIGURES)) for pair in found.steps)
    console.print(table(names, cells, "steps"))


def _both(read: Callable[[Step], float | None], here: Step | None, there: Step | None) -> str:
    texts = [_value(None if step is None else read(step)) for step in (here, there)]
    return texts[0] if texts[0] == texts[1] else " / ".join(texts)


def _tasks(console: Console, found: Difference) -> None:
    differing = [row for row in found.tasks if row.here != row.there]
    if not differing:
        return
    console.print(table(("task", "A", "B", "B - A"), map(_task, differing[:TASKS]), "mean reward by task"))
    if len(differing) > TASKS:
        show(console, [f"... and {len(differing) - TASKS} tasks more; --json has them all"])


def _task(row: Row) -> tuple[str, ...]:
    means = [None if side is None else side.mean for side in (row.here, row.there)]
    return row.what, _solved(row.here), _solved(row.there), _change(*means)


def _solved(value: Solved | None) -> str:
    return "none" if value is None else f"{value.mean:.3f} of {value.executions}"


def _change(here: Any, there: Any) -> str:
    if not isinstance(here, int | float) or not isinstance(there, int | float) or here == there:
        return ""
    return f"{there - here:+.4g}"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value), WIDTH)
