"""Commands that look into one execution's training samples and calls: samples, call."""

import asyncio
import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.cli.errors import Errors, fail
from services.cli.options import Json, Runs, Target
from services.source import open_source

_RANGE = re.compile(r"(\d*):(\d*)")


def samples(
    run: Target,
    execution: Annotated[str, typer.Argument(help="Id of an execution.")],
    leaf: Annotated[str | None, typer.Option(help="Only the trajectory that ends in this call.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Every run of tokens, its text whole.")] = False,
    table: Annotated[
        str | None, typer.Option("--tokens", metavar="FROM:TO", help="A line for each token; : for all.")
    ] = None,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show what an execution trains, token by token, from the recorded event alone; and check it against the tree.

    Example: gyre samples run-1129-183000-ab12 x0-0 --tokens 0:40
    """
    from services.views.samples_drawing import draw
    from services.views.samples_view import plain, samples_of

    chosen = _range(table)

    async def look() -> Any:
        async with open_source(run, folder) as source:
            return await samples_of(source, execution, leaf)

    with Errors():
        found = asyncio.run(look())
    typer.echo(json.dumps(plain(found))) if as_json else draw(found, Console(), full=full, table=chosen)


def call(
    run: Target,
    call: Annotated[str, typer.Argument(help="Id of a call.")],
    full: Annotated[bool, typer.Option("--full", help="Texts and history whole.")] = False,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show one request record: how it was matched, its exact input, its output, and what it went through.

    Example: gyre call run-1129-183000-ab12 x0-0-c3
    """
    from services.views.call_drawing import draw
    from services.views.call_view import call_of

    async def look() -> Any:
        async with open_source(run, folder) as source:
            return await call_of(source, call)

    with Errors():
        found = asyncio.run(look())
    typer.echo(json.dumps(found)) if as_json else draw(found, Console(), full=full)


def _range(text: str | None) -> slice | None:
    if text is None:
        return None
    found = _RANGE.fullmatch(text)
    if found is None:
        fail(f"--tokens {text}: give positions as FROM:TO, e.g. 120:160, or : for all", 2)
    start, stop = (int(part) if part else None for part in found.groups())
    if stop is not None and stop <= (start or 0):
        fail(f"--tokens {text}: there is no token between; give the lower position first", 2)
    return slice(start, stop)


COMMANDS = (samples, call)
