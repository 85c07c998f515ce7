"""Commands that score beside a run: regrade what it preserved, assess what it is at."""

import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gyre.core.regrading import GroupChange
from schemas.rewards import AssessmentRecorded
from services.cli.errors import Errors
from services.cli.options import Json, Runs
from services.joining import joined
from services.regrade import Report, Wish
from services.regrade import regrade as score_again
from services.telling import telling
from services.views.terminal import one_line, paragraphs, show, table, wide

Run = Annotated[str, typer.Argument(help="Name of a run.")]
Evaluator = Annotated[
    str | None,
    typer.Option(help="Command line to run instead of the tasks' own tests; it gets TESTS_DIR and REWARD_FILE too."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Another setting of [evaluator] or [sandbox]; repeatable."),
]


def regrade(
    run: Run,
    evaluator: Evaluator = None,
    task: Annotated[str | None, typer.Option(help="Only executions of this task.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Folder of tasks whose tests score, not the run's copy.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what this evaluator scored already.")] = False,
    jobs: Annotated[int, typer.Option(help="States scored at a time.", min=1)] = 2,
    *,
    settings: Set = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Score the states that a run preserved once more, and say what would change. No reward is changed.

    Example: gyre regrade run-1129-183000-ab12 --task copy-file --evaluator 'python ./judge.py {tests}'
    """
    with Errors():
        report = asyncio.run(_regrade(run, runs, Wish(evaluator, task, tasks, again, jobs, tuple(settings or ()))))
    if as_json:
        typer.echo(json.dumps(told(report)))
    else:
        draw(report, wide())
    sys.exit(1 if None in report.found.values() else 0)


def assess(
    run: Run,
    execution: Annotated[str, typer.Argument(help="Id of a running execution.")],
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Score what a running execution has done so far. Its reward stays what its end will give.

    Example: gyre assess run-1129-183000-ab12 x0-0
    """
    from services.assess import assess as score_now

    async def work() -> Any:
        async with joined("evaluator", run, runs) as (place, bus):
            return await score_now(place, bus, execution)

    with Errors():
        found = asyncio.run(work())
    if as_json:
        typer.echo(found.model_dump_json())
    else:
        typer.echo(assessed(found))
    sys.exit(0 if found.valid else 1)


def assessed(found: AssessmentRecorded) -> str:
    """An assessment in one line."""
    after = f"after call {found.branch}" if found.branch else "between calls"
    return one_line(f"{found.assessment}: {_score(found.score)} {after}  {found.detail}".rstrip())


def told(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "regrade": report.regrade,
        "evaluator": report.evaluator,
        "digest": report.digest,
        "states": len(report.states),
        "valid": sum(score is not None for score in report.found.values()),
        "unassessable": report.unassessable,
        "waiting": report.waiting,
        "new_assessments": report.new,
        "changed": [change.model_dump() for change in report.changed],
        "unresolved": {name: report.reasons[name] for name, score in report.found.items() if score is None},
        "groups": [
            {
                "group": each.group,
                "executions": each.executions,
                "before": {**asdict(each.before), "mean": each.before.mean, "std": each.before.std},
                "after": {**asdict(each.after), "mean": each.after.mean, "std": each.after.std},
            }
            for each in report.groups
        ],
    }


def draw(report: Report, console: Console) -> None:
    """The report for people."""
    scored = sum(score is not None for score in report.found.values())
    line = (
        f"{report.regrade} ({report.evaluator}): {len(report.states)} states, {scored} scored "
        f"({report.new} assessments are new), {len(report.changed)} changed; "
        f"{report.unassessable} left nothing to score, {report.waiting} wait for their reward"
    )
    show(console, [one_line(line)])
    if report.changed:
        console.print(_changed(report))
    if report.groups:
        console.print(_groups(report))
        console.print("What was trained stays as it was; these are the numbers that a new run would see.")
    unresolved = [name for name, score in report.found.items() if score is None]
    show(console, (paragraphs(f"{name}: no valid score: {report.reasons[name]}") for name in unresolved))
    if len(unresolved) > 1:
        ((reason, times),) = Counter(report.reasons[name] for name in unresolved).most_common(1)
        show(console, [paragraphs(f"{len(unresolved)} without a valid score, {times} of them as: {reason}")])


def _changed(report: Report) -> Table:
    tasks = {known.execution: known.task for known in report.states}
    rows = (
        (each.execution, tasks[each.execution], each.group, _score(each.old), _score(each.new))
        for each in report.changed
    )
    return table(("execution", "task", "group", "old", "new"), rows)


def _groups(report: Report) -> Table:
    return table(("group", "mean", "std", "advantages"), map(_group, report.groups))


def _group(each: GroupChange) -> tuple[str, ...]:
    pairs = zip(each.executions, each.before.advantages, each.after.advantages, strict=True)
    moved = [f"{name} {old:+.3f} -> {new:+.3f}" for name, old, new in pairs if old != new]
    mean = f"{_score(each.before.mean)} -> {_score(each.after.mean)}"
    std = f"{_score(each.before.std)} -> {_score(each.after.std)}"
    return each.group, mean, std, "\n".join(moved) or "none changes"


def _score(score: float | None) -> str:
    return "none" if score is None else f"{score:.3f}"


async def _regrade(run: str, runs: Path, wish: Wish) -> Report:
    async with joined("evaluator", run, runs) as (place, bus):
        with telling("scoring") as shown:
            return await score_again(place, bus, wish, shown)


COMMANDS = (regrade, assess)
