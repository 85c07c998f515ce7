"""`gyre compare`: elastic, async and colocate on the same executions, side by side with their simulations."""

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gyre.config import Config
from services.cli.errors import Errors
from services.cli.options import EndJson, Set
from services.views.terminal import wide

if TYPE_CHECKING:
    from services.compare import Comparison


def compare(
    config: Annotated[Path, typer.Argument(help="TOML file of an elastic run with modelled compute.")],
    overrides: Set = None,
    as_json: EndJson = False,
) -> None:
    """Run elastic, async and colocate on the same executions, and say how much faster elastic is.

    Equal cells and equal mean staleness; compute is modelled, everything else real. Beside it: what the simulator says
    of the same, so that the difference is what the control plane takes.

    Example: gyre compare examples/compare.toml
    """
    import uvloop

    from services.compare import compare as run_each

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s")
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    with Errors():
        done = uvloop.run(run_each(Config.load(config, overrides or []), progress.print))
    if as_json:
        typer.echo(json.dumps(told(done)))
    else:
        draw(done, wide())


def told(done: "Comparison") -> dict[str, Any]:
    """The comparison as plain data."""
    from services.compare import describe, speedups

    return {
        "schedules": {kind: asdict(each.found) for kind, each in done.items()},
        "speedups": speedups({kind: each.found for kind, each in done.items()}),
        "simulated_speedups": speedups({kind: each.simulated for kind, each in done.items()}),
        "simulated": {kind: asdict(each.simulated) for kind, each in done.items()},
        "settings": {kind: describe(each.config) for kind, each in done.items()},
        "runs": {kind: each.run for kind, each in done.items()},
        "control": {kind: each.delays for kind, each in done.items()},
    }


def draw(done: "Comparison", console: Console) -> None:
    """Two tables for people: the schedules, and what the control plane took of the elastic one."""
    from services.compare import describe, speedups

    real = speedups({kind: each.found for kind, each in done.items()})
    virtual = speedups({kind: each.simulated for kind, each in done.items()})
    table = Table("schedule", title="Equal cells, equal executions, equal mean staleness", title_justify="left")
    for name in ("staleness", "in use", "seconds", "simulated", "elastic is faster", "simulated"):
        table.add_column(name, justify="right")
    for kind, each in done.items():
        found, simulated = each.found, each.simulated
        table.add_row(
            f"{kind}: {describe(each.config)}",
            f"{found.staleness:.3f}",
            f"{found.utilisation:.0%}",
            f"{found.seconds:.1f}",
            f"{simulated.seconds:.1f} ({found.seconds / simulated.seconds - 1:+.1%})",
            f"{real[kind]:.3f}x" if kind in real else "",
            f"{virtual[kind]:.3f}x ({real[kind] / virtual[kind] - 1:+.1%})" if kind in real else "",
        )
    console.print(table)
    control = Table("from decision to effect", "times", "median ms", "95 % below, ms", title="Elastic's control plane")
    for name, delay in done["elastic"].delays.items():
        control.add_row(name, f"{delay['count']:.0f}", f"{1000 * delay['p50']:.0f}", f"{1000 * delay['p95']:.0f}")
    console.print(control)


COMMANDS = (compare,)
