"""`gyre query`: ask a run's warehouse, brought up to date from its log or archive first."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gyre.warehouse.queries import QUERIES, trouble
from services.cli.errors import Errors, fail
from services.cli.options import Runs
from services.destinations import check_file
from services.views.pictures import check_picture
from services.views.terminal import table, wide

FORMATS = {"table": "JSONCompact", "csv": "CSVWithNames", "json": "JSONEachRow", "parquet": "Parquet"}
DECIMALS = 4


def query(
    ask: Annotated[str | None, typer.Argument(metavar="NAME|SQL", help="A name of --list, or SQL.")] = None,
    run: Annotated[str | None, typer.Argument(help="Name of a run, or path of an archive.")] = None,
    *,
    listed: Annotated[bool, typer.Option("--list", help="Name the questions that need no SQL, and the views.")] = False,
    form: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "table",
    out: Annotated[Path | None, typer.Option(help="File to write, instead of stdout.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the question; repeatable.")
    ] = None,
    warehouse: Annotated[
        str | None,
        typer.Option(envvar="GYRE_WAREHOUSE", help="Folder, or http://user:password@host:8123/database of a server."),
    ] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Ask what is there already; the log is not read.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Picture to write instead: .png, .svg or .pdf.")] = None,
    show: Annotated[bool, typer.Option("--sql", help="Print the question's SQL instead of asking it.")] = False,
    folder: Runs = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json: one object a line.")] = False,
) -> None:
    """Ask ClickHouse about a run: by name, or in SQL over the views; {run:String} is the run's name.

    Example: gyre query "SELECT task, avg(reward) FROM executions GROUP BY task" run-1129-183000-ab12
    """
    if listed:
        _list(as_json)
        return
    form = "table" if plot else "json" if as_json else form
    if form not in FORMATS:
        fail(f"--format {form}: one of {', '.join(FORMATS)}", 2)
    sql, parameters = _question(ask, overrides or [])
    if show:
        typer.echo(sql.strip())
        return
    if run is None:
        fail("query: give a run or an archive", 2)
    with Errors():
        if plot is not None:
            check_picture(plot)
        if out is not None:
            check_file(out)
        found = asyncio.run(_ask(sql, parameters, run, folder, warehouse, FORMATS[form], stale=stale))
        if plot is None:
            _give(found, form, out)
        else:
            _picture(found, plot, ask if ask and ask in QUERIES else run)


def _question(ask: str | None, overrides: Sequence[str]) -> tuple[str, dict[str, str]]:
    """SQL and its parameters besides the run."""
    chosen = dict(each.partition("=")[::2] for each in overrides)
    if ask is None:
        fail("query: give a name of --list, or SQL", 2)
    canned = QUERIES.get(ask)
    if canned is None:
        if " " not in ask.strip():
            fail(f"query {ask}: no such name; --list has them, and SQL has spaces", 2)
        _check(ask, chosen)
        return ask, chosen
    if unknown := set(chosen) - set(canned.parameters):
        known = ", ".join(canned.parameters) or "none"
        fail(f"--set {min(unknown)}: {ask} has no such parameter; it has {known}", 2)
    _check(canned.sql, chosen)
    if chosen.get("width", "").startswith("-"):
        fail(f"--set width={chosen['width']}: how wide a bin is; 0 for a twentieth of the largest", 2)
    return canned.sql, {**canned.parameters, **chosen}


def _check(sql: str, chosen: Mapping[str, str]) -> None:
    for name, value in chosen.items():
        if why := trouble(sql, name, value):
            fail(f"--set {name}: {why}", 2)


async def _ask(
    sql: str, parameters: Mapping[str, str], run: str, folder: Path, target: str | None, form: str, *, stale: bool
) -> bytes:
    from services.asking import asking

    console = Console(stderr=True)
    with console.status("opening the warehouse") if console.is_terminal else nullcontext():
        async with asking(run, folder, target, stale=stale) as asked:
            for part in asked.parts:
                line = f"{part.stream}: {part.rows} rows new, up to sequence {part.reached}, {part.behind} behind"
                typer.echo(line, err=True)
            return await asked.answer(sql, parameters, form)


def _give(found: bytes, form: str, out: Path | None) -> None:
    if out is not None:
        out.write_bytes(found)
    elif form == "table":
        _draw(_parsed(found))
    elif form == "parquet" and sys.stdout.isatty():
        fail("--format parquet: not for a terminal; give --out FILE", 2)
    else:
        sys.stdout.buffer.write(found)
        sys.stdout.flush()


def _parsed(found: bytes) -> Any:
    if not found:
        fail("query: this has no answer to show; --format csv gives what there is", 1)
    return json.loads(found)


def _picture(found: bytes, out: Path, title: str) -> None:
    from services.views.query_plot import save

    save(_parsed(found), out, title)
    typer.echo(str(out))


def _draw(found: Mapping[str, Any]) -> None:
    names = (column["name"] for column in found["meta"])
    wide().print(table(names, (map(_cell, row) for row in found["data"])))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.{DECIMALS}g}" if isinstance(value, float) else str(value)


def _list(as_json: bool) -> None:
    from gyre.warehouse.views import VIEWS

    if as_json:
        for canned in QUERIES.values():
            typer.echo(json.dumps({"name": canned.name, "about": canned.about, "parameters": dict(canned.parameters)}))
        return
    for canned in QUERIES.values():
        typer.echo(f"{canned.name:20} {canned.about}")
    typer.echo(f"\nviews for SQL: events, {', '.join(VIEWS)}")


COMMANDS = (query,)
