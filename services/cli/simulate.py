"""`gyre simulate`: the paper's experiments in virtual time, or a recorded run under other settings."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.errors import Errors, fail
from services.cli.options import Json, Runs
from services.views.terminal import wide

if TYPE_CHECKING:
    from gyre.core.simulation.world import Watch

PRESETS = ("table1", "figure7", "table2", "scale")


def simulate(  # noqa: PLR0917 - each one is an option
    preset: Annotated[str | None, typer.Option(help=f"Experiment: {', '.join(PRESETS)}.")] = None,
    source: Annotated[str | None, typer.Option("--from", help="A recorded run or archive, told again.")] = None,
    seeds: Annotated[int, typer.Option(help="Simulations of each schedule, seeds 0, 1, ...", min=1, max=1000)] = 3,
    rows: Annotated[list[str] | None, typer.Option("--row", help="Only this row of table1; repeatable.")] = None,
    cells: Annotated[int, typer.Option(help="Cells of the preset scale.", min=2, max=100_000)] = 1024,
    executions: Annotated[
        int, typer.Option(help="Executions of the preset scale, at least.", min=1, max=1_000_000_000)
    ] = 1_000_000,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="With --from: another setting; repeatable.")
    ] = None,
    relief: Annotated[
        float | None,
        typer.Option(help="With --from: share of a call's time that goes as its engine empties, if not as measured."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw roles, waterlevel and use: .png, .svg or .pdf.")] = None,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """See runs through in virtual time, by the very deciders that schedule real ones.

    Example: gyre simulate --preset table1 --seeds 10
    """
    from gyre.core.simulation.presets import TABLE1
    from gyre.core.timeline_fold import TimelineFold
    from services.views.pictures import check_picture, draw
    from services.views.simulate_drawing import draw as draw_tables

    if (preset is None) == (source is None):
        fail("give one of --preset and --from", 2)
    if preset is not None and preset not in PRESETS:
        fail(f"--preset {preset}: no such experiment; one of {', '.join(PRESETS)}", 2)
    if unknown := [name for name in rows or () if name not in TABLE1]:
        fail(f"--row {unknown[0]}: no such row; one of {', '.join(TABLE1)}", 2)
    if relief is not None and not 0.0 <= relief < 1.0:
        fail(f"--relief {relief}: a share in [0, 1)", 2)
    folding = TimelineFold() if plot is not None else None
    watch = folding.add if folding is not None else None
    with Errors():
        if plot is not None:
            check_picture(plot)
        if source is not None:
            found = asyncio.run(_retell(source, folder, overrides or [], relief, watch))
        else:
            found = _experiment(str(preset), seeds, rows or list(TABLE1), (cells, executions), watch)
        if plot is not None and folding is not None:
            draw(folding.timeline(), plot, f"simulated {source or preset}")
    typer.echo(json.dumps(found)) if as_json else draw_tables(found, wide())


async def _retell(
    source: str, folder: Path, overrides: list[str], relief: float | None, watch: "Watch | None"
) -> dict[str, Any]:
    from services.source import open_source
    from services.whatif import read_past, report, retell

    async with open_source(source, folder) as opened:
        past = await read_past(opened)
    return report(past, retell(past, overrides, relief, watch), overrides)


def _experiment(
    preset: str, seeds: int, rows: list[str], size: tuple[int, int], watch: "Watch | None"
) -> dict[str, Any]:
    """`watch` is told of one more simulation: of the first row, or of the elastic schedule."""
    from gyre.core.simulation import published
    from services import simulate

    if preset == "scale":
        return simulate.scale(*size, watch)
    if watch is not None:
        simulate.show(rows[0] if len(rows) == 1 else "E0", watch)
    if preset == "table1":
        return simulate.table1(seeds, rows)
    return simulate.speedups(preset, published.FIGURE7 if preset == "figure7" else published.TABLE2, seeds)


COMMANDS = (simulate,)
