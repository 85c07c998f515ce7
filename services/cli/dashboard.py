"""`gyre dashboard` serves the page over a run's log; `gyre export-page` writes it as one file."""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import Errors
from services.cli.options import Json, Runs
from services.destinations import check_file

PORT = 8080


def dashboard(
    target: Annotated[
        str | None, typer.Argument(metavar="RUN|ARCHIVE|FOLDER", help="A run, an archive, or a folder of runs.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; one that others reach needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.", min=0, max=65535)] = PORT,
    token: Annotated[
        str | None,
        typer.Option(envvar="GYRE_DASHBOARD_TOKEN", help="Asked of every browser once; 16 characters or more."),
    ] = None,
    folder: Runs = Path("runs"),
) -> None:
    """Serve one page that shows runs as they go, or as they went: cells, steps, executions, trees, calls. Read-only.

    Example: gyre dashboard run-1129-183000-ab12 --port 8081
    """
    from services.dashboard.guard import Guard
    from services.dashboard.runs import Runs as Known
    from services.dashboard.server import serve

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s")
    with Errors():
        asyncio.run(serve(Known(target, folder), Guard(host, token), host, port, typer.echo))


def export_page(
    target: Annotated[str, typer.Argument(metavar="RUN|ARCHIVE", help="Name of a run, or path of an archive.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, .html.")],
    trees: Annotated[
        int, typer.Option(help="Executions whose trees and calls are in it, the latest ones first.", min=0, max=300)
    ] = 24,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Write the dashboard's page of a run as one file that needs no server. It holds what agents and models said.

    Example: gyre export-page run-1129-183000-ab12 -o page.html
    """
    from services.dashboard.export import export_page as export

    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)  # what a page would warn of and wait for ends this
    with Errors():
        check_file(out)
        text, kept = asyncio.run(export(target, folder, trees))
        out.write_bytes(text.encode())
    found = {"out": str(out), "bytes": len(text.encode()), "trees": kept}
    typer.echo(json.dumps(found) if as_json else f"{out}: {found['bytes']} bytes, {kept} executions to look into")


COMMANDS = (dashboard, export_page)
