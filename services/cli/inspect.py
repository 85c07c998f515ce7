"""Commands that look: runs, status, tree, samples, call, check; and eval, which measures."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gyre.config import Config
from gyre.core.progress import Progress
from services.cli import query, replay, samples
from services.cli.errors import Errors, fail
from services.cli.options import Json, Runs, Set, Target
from services.source import open_source
from services.views.terminal import one_line, table, wide

RUNS = Path("runs")


def runs(
    folder: Runs = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array on stdout, an object for each run.")] = False,
) -> None:
    """List the runs in a folder, and whether the archive that a finished run leaves lies there.

    Example: gyre runs
    """
    if not folder.is_dir() and (folder.exists() or folder != RUNS):  # where nobody has begun a run yet, there is none
        fail(f"--runs {folder}: no such folder", 1)
    found = sorted(path.parent for path in folder.glob("*/run.json"))
    listed = [
        {"run": path.name, "archive": (path / f"{path.name}.jsonl.zst").is_file(), "folder": str(path)}
        for path in found
    ]
    if as_json:
        typer.echo(json.dumps(listed))
        return
    rows = ((str(row["run"]), "yes" if row["archive"] else "no", str(row["folder"])) for row in listed)
    wide().print(table(("run", "archive", "folder"), rows))


def status(run: Target, folder: Runs = Path("runs"), as_json: Json = False) -> None:
    """Say how far a run is: executions dispatched (d), launched (p), ended (f), at large (w = d - f), roles, steps.

    Where a sink fills the run's warehouse: also how many messages it is behind.

    Example: gyre status run-1129-183000-ab12
    """
    from services.analytics.sink_lag import sink_lag
    from services.replay import progress_at
    from services.views.display import state_line, step_line

    async def look() -> tuple[Progress, dict[str, int] | None]:
        async with open_source(run, folder) as source:
            return await progress_at(source), await sink_lag(source)

    with Errors():
        progress, lag = asyncio.run(look())
    if as_json:
        typer.echo(json.dumps({**asdict(progress), "warehouse_lag": lag}, default=sorted))
        return
    typer.echo(state_line(progress))
    if lag is not None:
        typer.echo(f"warehouse: {lag['EV']} messages of EV and {lag['CALL']} of CALL behind")
    for step in progress.done:
        typer.echo(step_line(step))
    for version, mean, valid in progress.evaluations:
        typer.echo(f"evaluation of version {version}: {mean:.3f} over {valid} episodes")


def tree(
    run: Annotated[str | None, typer.Argument(help="Name of a run, or path of an archive.")] = None,
    execution: Annotated[str | None, typer.Argument(help="Id of an execution.")] = None,
    recording: Annotated[Path | None, typer.Option(help="Recorded traffic of a harness, instead of a run.")] = None,
    adapter: Annotated[str, typer.Option(help="How a recording is read: a harness's name, or module:object.")] = "auto",
    full: Annotated[bool, typer.Option("--full", help="One line for each call, with what it said.")] = False,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Draw the trajectory tree of an execution, from its request records alone, and what of it is trained on.

    Example: gyre tree run-1129-183000-ab12 x0-0
    """
    from services.views.recording_view import tree_of_recording
    from services.views.tree_drawing import draw
    from services.views.tree_view import tree_of

    async def look(run: str, execution: str) -> Any:
        async with open_source(run, folder) as source:
            return await tree_of(source, execution)

    with Errors():
        if recording is not None and run is None:
            found = tree_of_recording(recording, adapter)
        elif recording is None and run is not None and execution is not None:
            found = asyncio.run(look(run, execution))
        else:
            fail("tree: give a run and an execution, or --recording FILE", 2)
    typer.echo(json.dumps(found)) if as_json else draw(found, Console(), full=full)


def check(
    config: Annotated[Path, typer.Argument(help="TOML file.")],
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Check a configuration, its tasks and its model without starting anything.

    Example: gyre check examples/demo.toml --set schedule.phi=0.25
    """
    from services.check import check_config

    with Errors():
        loaded = Config.load(config, overrides or [])
        found = check_config(loaded)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for key, value in found.items():
            for line in value if isinstance(value, list) else [value]:
                typer.echo(f"{key:20} {one_line(str(line))}")


def evaluate(
    target: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="Name of a run, or a model's name or folder.")],
    episodes: Annotated[int | None, typer.Option(help="Held-out episodes; by default as configured.", min=1)] = None,
    overrides: Set = None,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Measure a run's last published weights, or a model, on held-out tasks. Nothing is trained.

    Example: gyre eval run-1129-183000-ab12 --episodes 64
    """
    from services.eval_run import evaluate as measure

    with Errors():
        found = asyncio.run(measure(target, folder, episodes, overrides or []))
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(
        f"{found['target']} version {found['version']}: mean {found['mean']:.3f}, "
        f"{found['valid']} of {found['episodes']} episodes valid, {found['seconds']:.0f} s"
    )


COMMANDS = (runs, status, tree, check, *replay.COMMANDS, *samples.COMMANDS, *query.COMMANDS)
