"""The command line: parse, hand over, print. Exit codes: docs/operations.md lists them."""

import json
import logging
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gyre.config import Config
from services.cli import (
    attach,
    compare,
    dashboard,
    doctor,
    inspect,
    keys,
    launch,
    log,
    node,
    plan,
    plot,
    regrade,
    simulate,
    tasks,
    users,
)
from services.cli.errors import Errors, fail
from services.cli.options import EndJson, Runs, Set
from services.cli.signals import ended_as_by_ctrl_c


class Commands(TyperGroup):
    """All commands: whatever reads, computes or prints, what people can mend is one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with Errors(), ended_as_by_ctrl_c():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    name="gyre",
    help="""Train LLM agents by online reinforcement learning; every fact is an event on NATS JetStream.

    Example: gyre demo --steps 3
    """,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Steps = Annotated[int | None, typer.Option(help="Optimizer steps, instead of the configured ones.", min=1)]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random, instead of the configured one.", min=0)]


app.add_typer(log.app, name="log")
app.add_typer(tasks.app, name="tasks")
for command in (
    *inspect.COMMANDS,
    *regrade.COMMANDS,
    *compare.COMMANDS,
    *attach.COMMANDS,
    *doctor.COMMANDS,
    *dashboard.COMMANDS,
    *launch.COMMANDS,
    *keys.COMMANDS,
    *node.COMMANDS,
    *plan.COMMANDS,
    *plot.COMMANDS,
    *simulate.COMMANDS,
):
    app.command()(command)
app.command("eval")(inspect.evaluate)
app.command("users")(users.users_command)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="TOML file.")],
    steps: Steps = None,
    seed: Seed = None,
    overrides: Set = None,
    as_json: EndJson = False,
) -> None:
    """Start a run and see it through.

    Example: gyre train examples/demo.toml --steps 4 --set cells.count=2
    """
    _train(Config.load, config, steps, seed, overrides, as_json)


@app.command()
def demo(steps: Steps = None, seed: Seed = None, overrides: Set = None, as_json: EndJson = False) -> None:
    """Train the shipped nano model on word tasks: the whole system on two cores in minutes.

    Example: gyre demo --steps 3 --seed 1 --json
    """
    from services.demo import demo_config

    _train(demo_config, None, steps, seed, overrides, as_json)


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="Name of a run.")],
    runs: Runs = Path("runs"),
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="bus.max_bytes=N", help="More room for its log.")
    ] = None,
    as_json: EndJson = False,
) -> None:
    """Go on with a run where its log ends. A full log may be given more room: --set bus.max_bytes=4294967296.

    Example: gyre resume run-1129-183000-ab12
    """
    from services.place import run_folder
    from services.train import resume as go_on

    _finish(go_on(run_folder(run, runs), overrides or []), as_json)


@app.command()
def serve(
    service: Annotated[
        str,
        typer.Argument(
            help="scheduler, runner, proxy, builder, evaluator, admission, packer, examiner, cell, analytics, traces, "
            "control."
        ),
    ],
    folder: Annotated[Path, typer.Option(help="Folder of the run.")],
    cell: Annotated[int | None, typer.Option(help="Which cell to be; without it, one that nobody is.", min=0)] = None,
    edge: Annotated[bool, typer.Option("--edge", help="Serve health, readiness and metrics beside it.")] = False,
) -> None:
    """Be one process of a run, until SIGTERM.

    Example: gyre serve cell --cell 1 --folder runs/demo
    """
    from services.runtime import SERVICES, main

    if service not in SERVICES:
        fail(f"service = {service}: no such service; one of {', '.join(SERVICES)}", 2)
    if service != "cell" and cell is not None:
        fail(f"--cell {cell}: give it with the service `cell`, and with no other", 2)
    sys.exit(main(service, folder, cell, edge))


def _train(
    load: Callable[[Path | None, list[str]], Config],
    path: Path | None,
    steps: int | None,
    seed: int | None,
    overrides: list[str] | None,
    as_json: bool,
) -> None:
    from services.train import train as start

    chosen = [f"run.{key}={value}" for key, value in (("steps", steps), ("seed", seed)) if value is not None]
    with Errors():
        config = load(path, [*(overrides or []), *chosen])
    _finish(start(config), as_json)


def _finish(work: Coroutine[Any, Any, dict[str, Any]], as_json: bool) -> None:
    import uvloop

    from services.demo import report

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s")
    with Errors():
        result = uvloop.run(work)
    typer.echo(json.dumps(result)) if as_json else report(result)
