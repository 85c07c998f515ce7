"""`gyre plan`: what theory predicts for a schedule before anything runs, and which (mu, phi) to take."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.table import Table

from gyre.config import Config
from gyre.core.plan import Kind
from gyre.core.staleness import expected_mean
from gyre.core.theory import USUAL_BETA, Continuous, Prediction, Times, predict, recommend, schedules
from services.cli.errors import Errors, fail
from services.cli.options import Json
from services.exits import EXIT_FAILED

REASONS: Mapping[Kind, str] = {
    "elastic": "the longest burst that leaves half a batch ahead",
    "async": "one update a burst; a split pool gains nothing by waiting for more groups",
    "colocate": "nothing ahead where all cells switch together, else the longest burst with half a batch ahead",
}

Latency = Annotated[float | None, typer.Option(help="L: mean time from a group's dispatch to its readiness, any unit.")]
Rate = Annotated[float | None, typer.Option(help="v_T: groups trained on in one such unit.")]
Alpha = Annotated[
    float, typer.Option(help="Mean share of an interval passed at a continuous dispatch; 0: discrete staleness.")
]
Beta = Annotated[float, typer.Option(help="Mean offset of completions from the start of the burst before, in bursts.")]
Target = Annotated[float | None, typer.Option(help="Mean staleness to find (mu, phi) for, training steps.", min=0)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A schedule, from a file or from options, and what is wanted of it."""

    groups: int
    executions: int
    """Dispatched in a group, N + s."""
    mu: int
    phi: float
    kind: Kind
    standalone: int
    concurrency: int
    """Executions a cell serves, C_e."""
    steps: int
    times: Times | None = None
    target: float | None = None
    """Mean staleness to recommend (mu, phi) for."""

    def at(self, mu: int, phi: float) -> Prediction:
        """What is predicted for this (mu, phi). Raises ValueError."""
        return predict(self.groups, self.executions, mu, phi, self.times)

    def cells(self, found: Prediction) -> int:
        """Cells in rollout that start all that is dispatched at once."""
        return -(-found.depth_executions // self.concurrency)  # rounded up


def plan(  # noqa: PLR0917 - typer reads options from a signature
    config: Annotated[Path | None, typer.Argument(help="TOML file to start from; without it, the defaults.")] = None,
    groups: Annotated[int | None, typer.Option(help="Groups an update, B.", min=1)] = None,
    executions: Annotated[int | None, typer.Option(help="Executions in a group, N.", min=2)] = None,
    mu: Annotated[int | None, typer.Option(help="Updates between publications.", min=1)] = None,
    phi: Annotated[float | None, typer.Option(help="Groups dispatched ahead, in units of B.", min=0)] = None,
    kind: Annotated[str | None, typer.Option(help="elastic, async or colocate: what is recommended.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the run, S.", min=1)] = None,
    concurrency: Annotated[int | None, typer.Option(help="Executions that a cell serves, C_e.", min=1)] = None,
    latency: Latency = None,
    rate: Rate = None,
    alpha: Alpha = 0.0,
    beta: Beta = USUAL_BETA,
    staleness: Target = None,
    as_json: Json = False,
) -> None:
    """Predict staleness, depth and step time of a schedule, with continuous dispatch beside it; choose mu and phi.

    Example: gyre plan --groups 64 --mu 3 --phi 0.5 --latency 2.96 --rate 64 --staleness 1.5
    """
    if kind not in (None, *get_args(Kind)):
        fail(f"--kind {kind}: no such schedule; one of {', '.join(get_args(Kind))}", 2)
    if (latency is None) != (rate is None):
        fail("--latency and --rate: step times need both; without them give neither", 2)
    options: dict[str, Any] = {
        "groups": groups, "executions": executions, "mu": mu, "phi": phi, "kind": kind, "steps": steps,
        "concurrency": concurrency, "target": staleness,
    }  # fmt: skip
    with Errors():
        asked = replace(_read(config), **{key: value for key, value in options.items() if value is not None})
    try:
        asked = replace(asked, times=_times(latency, rate, asked.groups, alpha, beta))
        found = _json(asked)
    except ValueError as error:
        fail(str(error), EXIT_FAILED)
    typer.echo(json.dumps(found)) if as_json else _print(asked)


def _read(path: Path | None) -> Asked:
    config = Config.load(path)
    schedule, cells = config.schedule, config.cells
    return Asked(
        groups=schedule.groups,
        executions=schedule.executions + schedule.oversample,
        mu=schedule.mu,
        phi=schedule.phi,
        kind=schedule.kind,
        standalone=cells.standalone,
        concurrency=cells.concurrency,
        steps=config.run.steps,
    )


def _times(latency: float | None, rate: float | None, groups: int, alpha: float, beta: float) -> Times | None:
    """L and B / v_T. Raises ValueError."""
    if latency is None or rate is None:
        return None
    if not rate > 0:
        raise ValueError(f"rate: {rate:g} is not above 0; give the groups trained on in one unit of time")
    return Times(latency, groups / rate, alpha, beta)


def _json(asked: Asked) -> dict[str, Any]:
    """All that is predicted. Raises ValueError."""
    found = _row(asked, asked.mu, asked.phi)
    if asked.target is None:
        return found
    chosen = recommend(asked.target, asked.groups, asked.kind, asked.standalone)
    return {
        **found,
        "recommended": _row(asked, *chosen),
        "candidates": [_row(asked, mu, phi) for mu, phi in schedules(asked.target, asked.groups)],
    }


def _row(asked: Asked, mu: int, phi: float) -> dict[str, Any]:
    found = asked.at(mu, phi)
    run = expected_mean(asked.steps, asked.groups, phi, mu)
    return {
        "groups": asked.groups,
        "executions": asked.executions,
        **asdict(found),
        "steps": asked.steps,
        "staleness_of_run": run,
        "cells": asked.cells(found),
    }


def _print(asked: Asked) -> None:
    """The same for people, with the equations' numbers."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    found = asked.at(asked.mu, asked.phi)
    run = expected_mean(asked.steps, asked.groups, asked.phi, asked.mu)
    lines = [
        ("schedule", f"B = {asked.groups}, N = {asked.executions}, mu = {found.mu}, phi = {found.phi:g}"),
        ("mean staleness", f"{found.staleness:.3f} in the long run (eq. 2), {run:.3f} over {asked.steps} steps"),
        ("depth", _depth(asked, found)),
    ]
    if asked.times is not None:
        lines.append(("step time", _step_time(found.step_time, found.bound, f"eq. 19, beta {asked.times.beta:g}")))
        lines.append(("continuous twins", "the same under schedule.dispatch = continuous (eq. 13, 16, 18):"))
        lines.append(("  as stale", _continuous(found.continuous)))
        lines.append(("  as deep", _continuous(found.continuous_same_depth)))
    for key, text in lines:
        console.print(f"{key:20}{text}")
    if asked.target is not None:
        _print_candidates(console, asked)


def _print_candidates(console: Console, asked: Asked) -> None:
    """One line each: what has nearly the mean staleness that is wanted."""
    target = asked.target or 0.0
    chosen = recommend(target, asked.groups, asked.kind, asked.standalone)
    table = Table("", "mu", "phi", "E[d]", "depth", "executions", "step time", box=None, pad_edge=False)
    for mu, phi in dict.fromkeys((*schedules(target, asked.groups), chosen)):
        found = asked.at(mu, phi)
        time = "" if found.step_time is None else f"{found.step_time:.3f}"
        cells = (f"{mu}", f"{phi:g}", f"{found.staleness:g}", f"{found.depth:g}", f"{found.depth_executions}", time)
        table.add_row("*" if (mu, phi) == chosen else "", *cells)
    console.print(f"for a mean staleness of {target:g}")
    console.print(table)
    console.print(f"* {asked.kind}: {REASONS[asked.kind]}; set schedule.mu = {chosen[0]}, schedule.phi = {chosen[1]:g}")
    if asked.times is not None:
        console.print("step times are those of a fixed split without streaming; `gyre simulate` says what others gain")


def _depth(asked: Asked, found: Prediction) -> str:
    places = f"{asked.cells(found)} cells of {asked.concurrency} start them all at once"
    return f"{found.depth:g} groups, {found.depth_executions} executions just after a dispatch (eq. 1): {places}"


def _step_time(value: float | None, bound: str | None, source: str) -> str:
    found = f"{value:.3f} from update to update ({source})"
    return found if bound == "rollout" else f"{value:.3f}: the trainer is the bound, B / v_T"


def _continuous(found: Continuous | None) -> str:
    if found is None:
        return "none: no continuous dispatch is that fresh"
    if found.staleness is None:
        return f"Q_c = {found.depth:.1f}: the trainer is the bound, ready groups pile up and age"
    return (
        f"Q_c = {found.depth:.1f} groups, E[d] = {found.staleness:.3f}, "
        f"{found.step_time:.3f} from update to update, {found.ready:.1f} groups ready at a publication"
    )


COMMANDS = (plan,)
