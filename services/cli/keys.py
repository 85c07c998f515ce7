"""`gyre keys`: the secrets of containers."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import Errors


def keys(
    folder: Annotated[Path, typer.Argument(help="Folder to write to: one folder a service.")],
    run: Annotated[str, typer.Option(help="Name of the run that the users of its NATS server may work in.")],
    renew: Annotated[
        bool, typer.Option("--renew", help="Also those that are there, but for the one that servers share.")
    ] = False,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST[:PORT]", help="Each NATS server of a cluster, as the others reach it; repeatable."),
    ] = None,
) -> None:
    """Make a password for each service, and the configuration of a NATS server that knows them.

    Example: gyre keys deploy/keys --run demo
    """
    from services.keys import write_keys

    with Errors():
        write_keys(folder, run, renew, server or ())


COMMANDS = (keys,)
