"""`gyre doctor`: what is wrong with a run, with its evidence and the next command."""

import asyncio
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gyre.core.diagnosis.doctor import KINDS
from services.cli.errors import Errors, fail
from services.cli.options import Json, Runs
from services.exits import EXIT_FOUND
from services.views.terminal import one_line


def doctor(
    run: Annotated[str | None, typer.Argument(help="Name of a run, or path of an archive.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Look for this finding alone; repeatable.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name every finding with what it means.")] = False,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Find what is wrong with a run, live, stopped or archived; exit code 7 if there is anything.

    Example: gyre doctor run-1129-183000-ab12 --only evaluator-outage
    """
    if listed:
        _list(as_json)
        return
    if run is None:
        fail("doctor: give a run or an archive", 2)
    if unknown := set(only or ()) - set(KINDS):
        fail(f"--only {min(unknown)}: no such finding; `gyre doctor --list` has them", 2)
    with Errors():
        report = asyncio.run(_look(run, folder, only or []))
    named = shlex.quote(run)
    where = named if Path(run).is_file() or folder == Path("runs") else f"{named} --runs {shlex.quote(str(folder))}"
    found = [asdict(each) | {"next": each.next.replace("{run}", where)} for each in report.findings]
    if as_json:
        typer.echo(json.dumps({"run": report.run, "live": report.live, "events": report.events, "findings": found}))
    else:
        _tell(report, found)
    sys.exit(EXIT_FOUND if found else 0)


async def _look(run: str, folder: Path, only: list[str]) -> Any:
    from services.doctor import diagnose_with_progress
    from services.source import open_source

    async with open_source(run, folder) as source:
        return await diagnose_with_progress(source, only)


def _tell(report: Any, found: list[dict[str, Any]]) -> None:
    count = f"{len(found)} finding{'' if len(found) == 1 else 's'}" if found else "nothing found"
    typer.echo(f"{report.run}: {count} in {report.events} events{', still going on' if report.live else ''}")
    for each in found:
        typer.echo(f"\n{each['name']} ({each['severity']})")
        typer.echo(f"  {one_line(each['says'])}")
        typer.echo(f"  events  {' '.join(each['evidence'])}")
        typer.echo(f"  next    {one_line(each['next'])}")


def _list(as_json: bool) -> None:
    for kind in KINDS.values():
        typer.echo(json.dumps(asdict(kind)) if as_json else f"{kind.name:20} {kind.means}")


COMMANDS = (doctor,)
