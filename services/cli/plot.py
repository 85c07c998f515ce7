"""`gyre plot`: a run's timeline as a picture."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from gyre.core.timeline import Timeline
from gyre.core.timeline_fold import TimelineFold
from services.cli.errors import Errors, fail
from services.cli.options import Json, Runs, Target
from services.source import Source, messages, open_source
from services.views.pictures import check_picture, draw


async def timeline_of(source: Source) -> Timeline:
    """The timeline of a run's log so far."""
    folding = TimelineFold()
    async for stored in messages(source.ev):
        for event in stored.commit.events if stored.commit else ():
            folding.add(stored.commit.time / 1e9 if stored.commit else 0.0, event)
    return folding.timeline()


def plot(
    run: Target,
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .svg or .pdf.")],
    start: Annotated[float | None, typer.Option("--from", help="Seconds since the first event.", min=0)] = None,
    end: Annotated[float | None, typer.Option("--to", help="Seconds since the first event.", min=0)] = None,
    folder: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Draw a run: the role of each cell, executions at large against the places for them, and how far cells are used.

    Example: gyre plot run-1129-183000-ab12 --out run.png --from 20 --to 60
    """

    async def work() -> tuple[str, Timeline]:
        async with open_source(run, folder) as source:
            return source.run, await timeline_of(source)

    with Errors():
        check_picture(out)
        name, timeline = asyncio.run(work())
        window = (start or 0.0, timeline.seconds if end is None else end)
        if window[0] >= window[1]:
            gap = f"--from {window[0]:g} --to {window[1]:g}"
            fail(f"{gap}: there is no time between; the run ends at {timeline.seconds:.1f}", 2)
        draw(timeline, out, name, window)
    typer.echo(json.dumps(report(name, out, timeline)) if as_json else f"{out}: {_line(name, timeline)}")


def report(name: str, out: Path, timeline: Timeline) -> dict[str, object]:
    """The figures behind the picture, times in seconds."""
    return {
        "run": name,
        "out": str(out),
        "seconds": timeline.seconds,
        "steps": len(timeline.steps),
        "step_seconds": list(timeline.step_seconds),
        "bursts": len(timeline.bursts),
        "staleness": timeline.staleness,
        "utilisation": timeline.utilisation,
        "shares": timeline.shares(),
        "cells": {
            lane.cell: {"utilisation": lane.utilisation, "seconds": dict(lane.seconds)} for lane in timeline.lanes
        },
    }


def _line(name: str, timeline: Timeline) -> str:
    return (
        f"{name}, {len(timeline.lanes)} cells, {len(timeline.steps)} steps in {timeline.seconds:.1f} s, "
        f"{100 * timeline.utilisation:.0f} % used, mean staleness {timeline.staleness:.3g}"
    )


COMMANDS = (plot,)
