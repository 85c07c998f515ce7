"""Commands that read a log again: replay (time travel, step by step, why), restep, diff."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from services.cli.errors import Errors, fail
from services.cli.options import Json, Runs, Target
from services.exits import EXIT_DIFFERS
from services.source import Source, open_source
from services.states import STATES
from services.telling import telling
from services.views.terminal import one_line, show, wide

Found = TypeVar("Found")
DIFFERENCES = 20


def replay(
    run: Target,
    to: Annotated[
        str | None,
        typer.Option(metavar="MOMENT", help="500 (sequence), +90s (since the start), step:7, or an ISO 8601 time."),
    ] = None,
    state: Annotated[str | None, typer.Option(help=f"Which state: {', '.join(STATES)}.")] = None,
    *,
    step: Annotated[bool, typer.Option("--step", help="Walk event by event; ? shows the keys.")] = False,
    why: Annotated[
        str | None, typer.Option(metavar="SEQ[.INDEX]", help="Why an event was said, and what it led to.")
    ] = None,
    hops: Annotated[int, typer.Option(help="How far --why goes forward.", min=0, max=64)] = 4,
    shown: Annotated[int, typer.Option(help="Events of a type that --why names in a hop.", min=1)] = 3,
    verify: Annotated[bool, typer.Option("--verify", help="Decide every recorded decision again.")] = False,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Fold a run's log again: a state as of any moment, a walk event by event, an event's causes, every decision.

    Example: gyre replay run-1129-183000-ab12 --to +90s --state waterlevel
    """
    name = state or "progress"
    if name not in STATES:
        fail(f"--state {name}: no such state; one of {', '.join(STATES)}", 2)
    if sum((step, why is not None, verify)) > 1:
        fail("replay: give one of --step, --why and --verify", 2)
    if (verify or why is not None) and (to is not None or state is not None):
        fail("replay: --why and --verify read the whole log; give --to and --state without them", 2)
    if verify:
        _verify(run, folder, as_json)
    elif why is not None:
        _why(run, folder, why, (hops, shown), as_json)
    elif step:
        _walk(run, folder, state or "scheduler", to)
    else:
        _state(run, folder, name, to, as_json)


def restep(
    run: Target,
    step: Annotated[int, typer.Argument(help="A committed step, from 1.", min=1)],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="objective.X=Y", help="Another objective setting; repeatable."),
    ] = None,
    *,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Do the steps before it too: where its weights were not kept.")
    ] = False,
    tolerance: Annotated[float, typer.Option(help="Relative, of loss, gradient norm and gradient.", min=0.0)] = 1e-5,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Do a recorded step again from the log: loss, gradient norm, ratios, masks; ends with 6 if they are not the same.

    Example: gyre restep run-1129-183000-ab12 2 --set objective.ratio_high=1.02 --set objective.advantage=median
    """
    from services.views.restep_view import again, draw, under

    if overrides and from_start:
        fail("--from-start: other settings are tried at recorded weights; give it without --set", 2)
    work = (
        (lambda source, told: under(source, step, overrides, told))
        if overrides
        else (lambda source, told: again(source, step, told, from_start=from_start, tolerance=tolerance))
    )
    with Errors():
        found = asyncio.run(_watched(run, folder, "computing", work))
    typer.echo(json.dumps(found)) if as_json else draw(found, wide())
    sys.exit(EXIT_DIFFERS if found["differences"] else 0)


def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A run or an archive, or either with @MOMENT.")],
    other: Annotated[str, typer.Argument(metavar="B", help="What to hold against it.")],
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Compare two runs, or two moments: settings, counters, steps, endings, tasks, and where they first part.

    Example: gyre diff run-1129-183000-ab12 run-1129-190000-cd34
    """
    from services.diff import difference_of, plain
    from services.views.diff_drawing import draw

    with Errors():
        found = asyncio.run(difference_of(one, other, folder))
    typer.echo(json.dumps(plain(found))) if as_json else draw(found, wide())


def _state(run: str, folder: Path, name: str, to: str | None, as_json: bool) -> None:
    from services.moments import sequence_at
    from services.states import state_at

    async def look(source: Source) -> Any:
        return await state_at(source, name, await sequence_at(source, to) if to is not None else None)

    with Errors():
        found = asyncio.run(_with(run, folder, look))
    typer.echo(json.dumps(found, default=sorted, indent=None if as_json else 1))


def _verify(run: str, folder: Path, as_json: bool) -> None:
    from services.replay import verify_with_progress

    with Errors():
        found = asyncio.run(_with(run, folder, verify_with_progress))
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        typer.echo(
            f"{found.events} events, {found.decisions} decisions decided again, {found.trees} trees rebuilt, "
            f"{found.snapshots} snapshots compared: {len(found.differences)} differences"
        )
        for difference in found.differences[:DIFFERENCES]:
            typer.echo(f"  {one_line(difference)}")
    sys.exit(1 if found.differences else 0)


def _why(run: str, folder: Path, event: str, reach: tuple[int, int], as_json: bool) -> None:
    from services.why import lines, plain, why

    with Errors():
        found = asyncio.run(_with(run, folder, lambda source: why(source, event, *reach)))
    typer.echo(json.dumps(plain(found))) if as_json else show(Console(), lines(found))


def _walk(run: str, folder: Path, name: str, to: str | None) -> None:
    from services.views.step_keys import walk

    with Errors():
        asyncio.run(_with(run, folder, lambda source: walk(source, name, to)))


async def _with(run: str, folder: Path, work: Callable[[Source], Awaitable[Found]]) -> Found:
    async with open_source(run, folder) as source:
        return await work(source)


async def _watched(
    run: str, folder: Path, what: str, work: Callable[[Source, Callable[[int, int], None]], Awaitable[Found]]
) -> Found:
    """Work that says on stderr how far it is."""
    with telling(what) as shown:
        async with open_source(run, folder) as source:
            return await work(source, shown)


COMMANDS = (replay, restep, diff)
