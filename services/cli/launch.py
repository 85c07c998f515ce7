"""`gyre launch`: a run whose services are started by somebody else, such as Compose."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gyre.config import Config
from services.cli.errors import Errors


def launch(
    config: Annotated[Path, typer.Argument(help="TOML file.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one field; repeatable.")
    ] = None,
    edge: Annotated[bool, typer.Option("--edge", help="Serve health, readiness and metrics beside it.")] = False,
) -> None:
    """Open a run, or go on with it, and follow it until SIGTERM; `gyre serve` is each of its processes.

    Example: gyre launch examples/demo.toml --set run.name=demo --set bus.url=nats://127.0.0.1:4222
    """
    import uvloop

    from services.control import launch as opened
    from services.runtime import main

    with Errors():
        folder = uvloop.run(opened(Config.load(config, overrides or [])))
    sys.exit(main("control", folder, None, edge))


COMMANDS = (launch,)
