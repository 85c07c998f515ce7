"""Commands about a run's log: tail, show, export, import, stats."""

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import typer

from bus.log import Stored
from gyre.errors import GyreError
from schemas.envelope import COMMIT
from services.cli.errors import Errors
from services.cli.options import Runs, Target
from services.destinations import check_file
from services.place import Note, run_folder
from services.serving import serving
from services.source import messages, open_source
from services.views.terminal import one_line

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, one object a line.")]
SHOWN = 160

app = typer.Typer(
    help="""A run's log: follow it, read it, carry it elsewhere.

    Example: gyre log tail run-1129-183000-ab12
    """,
    no_args_is_help=True,
)


@app.command()
def tail(
    run: Target,
    count: Annotated[int, typer.Option("-n", help="Commits to show.", min=1)] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show the last commits.

    Example: gyre log tail run-1129-183000-ab12 -n 5 --follow
    """

    async def work() -> None:
        async with open_source(run, runs) as source:
            head = await source.ev.head()
            after = max(0, head - count)
            async with aclosing(source.ev.read(after) if follow else messages(source.ev, after, head)) as log:
                async for stored in log:
                    for line in lines_of(stored, as_json):
                        typer.echo(line)

    _run(work())


@app.command()
def show(
    run: Target,
    sequence: Annotated[int, typer.Argument(help="Of the commit, in EV.", min=1)],
    runs: Runs = Path("runs"),
) -> None:
    """Show one commit whole, as JSON.

    Example: gyre log show run-1129-183000-ab12 17
    """

    async def work() -> None:
        async with open_source(run, runs) as source:
            stored = await source.ev.get(sequence)
            if stored is None:
                raise GyreError(f"sequence {sequence}: the log ends at {await source.ev.head()}")
            typer.echo(json.dumps(_whole(stored), indent=1))

    _run(work())


@app.command(name="export")
def export_command(
    run: Annotated[str, typer.Argument(help="Name of a run.")],
    path: Annotated[Path, typer.Argument(help="Archive to write, .jsonl.zst.")],
    runs: Runs = Path("runs"),
    columns: Annotated[
        bool, typer.Option(help="Make its columns beside it, for `gyre query`; else that makes them.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write a run's logs and the blobs they refer to into one archive.

    Example: gyre log export run-1129-183000-ab12 demo.jsonl.zst
    """
    from bus.archive import export_run
    from gyre.warehouse.engine import available
    from services.analytics.archive_columns import make_columns

    async def work() -> Any:
        folder = run_folder(run, runs)
        check_file(path, anew=True)
        note = Note.read(folder)
        async with serving(folder, note) as url:
            found = await export_run(url, note.run, folder, path)
        if columns and not available(embedded=True):
            await make_columns(path, folder)
        return found

    footer = _run(work())
    if as_json:
        typer.echo(footer.model_dump_json())
        return
    missing = f", {len(footer.missing)} of them missing" if footer.missing else ""
    typer.echo(f"{path}: {footer.ev} messages of EV, {footer.call} of CALL, {footer.blobs} blobs{missing}")


@app.command(name="import")
def import_command(path: Annotated[Path, typer.Argument(help="Archive to read.")], runs: Runs = Path("runs")) -> None:
    """Bring an archive back as a run with a server of its own: every message as it was.

    Example: gyre log import demo.jsonl.zst --runs elsewhere
    """
    from services.importing import bring

    typer.echo(_run(bring(path, runs)))


@app.command()
def stats(run: Target, runs: Runs = Path("runs"), as_json: Json = False) -> None:
    """Count events by type and by who said them.

    Example: gyre log stats run-1129-183000-ab12 --json
    """

    async def work() -> tuple[Counter[tuple[str, str]], int]:
        counts: Counter[tuple[str, str]] = Counter()
        quarantined = 0
        async with open_source(run, runs) as source:
            for log in (source.ev, source.calls):
                async for stored in messages(log):
                    quarantined += stored.commit is None
                    for event in stored.commit.events if stored.commit else ():
                        counts[event.type, stored.commit.producer.service if stored.commit else ""] += 1
        return counts, quarantined

    counts, malformed = _run(work())
    if as_json:
        typer.echo(
            json.dumps({"events": {f"{kind} {who}": n for (kind, who), n in counts.items()}, "malformed": malformed})
        )
        return
    for (kind, who), number in counts.most_common():
        typer.echo(f"{number:8}  {kind:30} {who}")


def _whole(stored: Stored) -> dict[str, Any]:
    body = COMMIT.dump_python(stored.commit, mode="json") if stored.commit else {"malformed": stored.reason}
    return {"sequence": stored.sequence, "subject": stored.subject, **body}


def lines_of(stored: Stored, as_json: bool) -> Iterator[str]:
    """A stored commit as `gyre log tail` shows it: a line an event, or one JSON object."""
    if as_json:
        yield json.dumps(_whole(stored))
    elif stored.commit is None:
        yield f"{stored.sequence:7}  malformed: {one_line(stored.reason)}"
    else:
        for event in stored.commit.events:
            fields = event.model_dump(exclude={"type", "v"})
            text = one_line(" ".join(f"{key}={_counted(value)}" for key, value in fields.items()), SHOWN)
            yield f"{stored.sequence:7}  {stored.commit.producer.service:10} {event.type:26} {text}"


def _counted(value: Any) -> Any:
    """The value as JSON has it, but of packed arrays how much there is."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, dict):
        return {key: _counted(each) for key, each in value.items()}
    return [_counted(each) for each in value] if isinstance(value, tuple) else value


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    with Errors():
        return asyncio.run(work)
