"""Commands about tasks: are they sound, and how hard are they?"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gyre.config import Config
from services.cli.errors import Errors
from services.cli.options import Json, Runs, Set
from services.telling import telling
from services.views.terminal import paragraphs, show, table, wide

_SOURCE = "Folder of tasks, .jsonl of SWE instances, index, or words:<n>:<split>."
Source = Annotated[str, typer.Argument(help=_SOURCE)]

app = typer.Typer(
    help="""Tasks: check that they are sound, find those that are neither too easy nor too hard.

    Example: gyre tasks validate examples/tasks
    """,
    no_args_is_help=True,
)


@app.command()
def validate(
    sources: Annotated[list[str], typer.Argument(help=_SOURCE)],
    repeats: Annotated[int, typer.Option("--repeat", help="Attempts of each kind for each task.", min=1)] = 2,
    jobs: Annotated[int | None, typer.Option(help="Attempts at a time; by default one a processor.", min=1)] = None,
    names: Annotated[list[str] | None, typer.Option("--task", help="Only this task; repeatable.")] = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Run each task's solution, which must earn 1, and an empty one, which must earn 0, the same every time.

    Ends with exit code 1 if a task is not sound.

    Example: gyre tasks validate examples/tasks examples/swe --repeat 3 --set sandbox.kind=bubblewrap
    """
    from gyre.tasks.folder import TaskError
    from gyre.tasks.sources import bring_each
    from services.tasks.validate import Report, Validation

    with Errors(), tempfile.TemporaryDirectory(prefix="gyre-tasks-") as name, telling("attempts") as shown:
        config = Config.load(None, overrides or [])
        brought = [bring_each(source, Path(name) / f"tasks{place}") for place, source in enumerate(sources)]
        tasks, wrong = [task for some, _ in brought for task in some], [error for _, some in brought for error in some]
        chosen = tuple(task for task in tasks if not names or task.name in names)
        if names and len(chosen) < len(set(names)):
            missing = sorted(set(names) - {task.name for task in chosen})
            raise TaskError(f"--task {missing[0]}: {' '.join(sources)} holds no sound folder of that name")

        async def work() -> list[Report]:
            validation = Validation(Path(name), config, repeats, jobs or os.cpu_count() or 1)
            return await validation.run(chosen, shown)

        reports = asyncio.run(work())
    refused = [] if names else [str(error) for error in wrong]
    if as_json:
        typer.echo(json.dumps(_told(reports, refused, config.sandbox.kind)))
    else:
        _draw(reports, refused, config.sandbox.kind)
    sys.exit(0 if not refused and all(report.sound for report in reports) else 1)


@app.command()
def build(
    sources: Annotated[list[str], typer.Argument(help=_SOURCE)],
    jobs: Annotated[int, typer.Option(help="Images at a time.", min=1)] = 2,
    names: Annotated[list[str] | None, typer.Option("--task", help="Only this task; repeatable.")] = None,
    logs: Annotated[Path, typer.Option(help="Folder that keeps what builds say.")] = Path("runs/builds"),
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Build the images of tasks that have a Dockerfile, where they are not there, for `sandbox.kind = docker`.

    Images that tasks name are looked for, and fetched only with sandbox.docker.pull = "missing".
    Ends with exit code 1 if an image could not be had.

    Example: gyre tasks build my-tasks --jobs 4 --set sandbox.docker.socket=/run/user/1000/docker.sock
    """
    from gyre.tasks.sources import images_of
    from services.tasks.build import Building, Made

    with Errors(), telling("images") as shown:
        config = Config.load(None, overrides or [])
        looked = [images_of(source) for source in sources]
        wanted = [found for some, _ in looked for found in some if not names or found.name in names]
        refused = [] if names else [str(error) for _, wrong in looked for error in wrong]

        async def work() -> list[Made]:
            return await Building(config, logs, jobs).run(wanted, shown)

        made = asyncio.run(work())
    if as_json:
        told = [{**asdict(each), "log": each.log and str(each.log), "seconds": round(each.seconds, 3)} for each in made]
        typer.echo(json.dumps({"images": told, "refused": refused}))
    else:
        _draw_images(made, refused)
    sys.exit(1 if refused or any(each.problem for each in made) else 0)


@app.command()
def screen(
    source: Source,
    model: Annotated[str, typer.Option(help="A model by name or folder, or a run, whose last weights are meant.")],
    rollouts: Annotated[int, typer.Option(help="Rollouts of each task.", min=2)] = 8,
    index: Annotated[Path, typer.Option(help="File to write; what it holds already is gone on with.")] = Path(
        "screened.json"
    ),
    seed: Annotated[int, typer.Option(help="Seed of word tasks.", min=0)] = 0,
    runs: Runs = Path("runs"),
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Estimate how hard tasks are, and write an index of those that were solved sometimes, for `tasks.train`.

    Ends with exit code 1 if there is no such task.

    Example: gyre tasks screen examples/first-tasks --model smollm2 --rollouts 4 --index first.json
    """
    import uvloop

    from services.tasks.screen import Wish
    from services.tasks.screen import screen as work

    with Errors(), telling("tasks") as shown:
        wish = Wish(source, model, rollouts, index, seed, runs, overrides or [])
        found = uvloop.run(work(wish, shown))
    chosen = found.chosen()
    if as_json:
        typer.echo(json.dumps({"index": str(index), **found.told()}))
    else:
        console = wide()
        rows = (
            (name, str(len(scores)), str(found.solved(name)), _mean(scores), "yes" if name in chosen else "")
            for name, scores in found.scores.items()
        )
        console.print(table(("task", "rollouts", "solved", "mean", "in the index"), rows))
        _line(console, f"{len(chosen)} of {len(found.scores)} tasks are in {index}: solved sometimes, not always")
    sys.exit(0 if chosen else 1)


def _mean(scores: Sequence[float]) -> str:
    return f"{sum(scores) / len(scores):.3f}" if scores else "-"


def _told(reports: list[Any], refused: list[str], sandbox: str) -> dict[str, Any]:
    return {
        "sound": sum(report.sound for report in reports),
        "tasks": [
            {
                "name": report.name,
                "kind": report.kind,
                "sound": report.sound,
                "solution": report.scores("solution"),
                "empty": report.scores("empty"),
                "work_seconds": round(max((each.work_seconds for each in report.attempts), default=0.0), 3),
                "test_seconds": round(max((each.test_seconds for each in report.attempts), default=0.0), 3),
                "problems": report.problems,
                "remarks": report.remarks,
            }
            for report in reports
        ],
        "refused": refused,
        "sandbox": sandbox,
    }


def _draw(reports: list[Any], refused: list[str], sandbox: str) -> None:
    console = wide()
    console.print(table(("task", "kind", "solution", "empty", "seconds", "verdict"), map(_verdict, reports)))
    for report in reports:
        for line in (*report.problems, *report.remarks):
            _line(console, f"{report.name}: {line}")
    for each in refused:
        _line(console, each)
    sound = sum(report.sound for report in reports)
    _line(console, f"{sound} of {len(reports) + len(refused)} tasks are sound (sandbox.kind = {sandbox})")


def _verdict(report: Any) -> tuple[str, ...]:
    seconds = sum(each.work_seconds + each.test_seconds for each in report.attempts)
    scores = (" ".join("-" if x is None else f"{x:g}" for x in report.scores(work)) for work in ("solution", "empty"))
    return report.name, report.kind, *scores, f"{seconds:.1f}", "sound" if report.sound else "NOT SOUND"


def _draw_images(made: list[Any], refused: list[str]) -> None:
    console = wide()
    rows = ((each.task, each.image, f"{each.seconds:.1f}", each.state) for each in made)
    console.print(table(("task", "image", "seconds", "state"), rows))
    for each in made:
        if each.problem:
            kept = f"; all it said: {each.log}" if each.log else ""
            _line(console, f"{each.task}: {each.problem}{kept}")
    for line in refused:
        _line(console, line)
    there = sum(not each.problem for each in made)
    _line(console, f"{there} of {len(made)} images are there")


def _line(console: Console, text: str) -> None:
    show(console, [paragraphs(text)])
