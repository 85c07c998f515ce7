"""`gyre node`: a further machine of a cell."""

from typing import Annotated

import typer

from services.cli.errors import Errors


def node(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Runs beside, and is started again when it ends: the engine's server on this machine."),
    ] = None,
    port: Annotated[int, typer.Option(help="Where ranks are asked for.", min=0, max=65535)] = 7400,
) -> None:
    """Start ranks for a cell that spans several machines, until SIGTERM; GYRE_NODE_KEY holds the cell's secret.

    Example: gyre node --port 7400 -- /opt/sglang/bin/python -m sglang.launch_server --nnodes 4 --node-rank 1
    """
    from services.node import serve

    with Errors():
        serve(port, command or ())


COMMANDS = (node,)
