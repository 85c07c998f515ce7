"""A run's page as one file: what the page would ask the server for, asked beforehand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from gyre.errors import GyreError
from services.dashboard import looks
from services.dashboard.listing import MOST, Question, executions
from services.dashboard.page import one_file
from services.dashboard.watch import Watch

FRAMES = 24
"""Moments that the slider of the file has."""
ROWS = 300
CALLS = 240
"""Calls whose messages are in the file."""
Answers = dict[str, Any]


async def export_page(target: str, runs: Path, trees: int) -> tuple[str, int]:
    """The page of a run or archive as it is now, and how many executions can be looked into in it.

    Args:
        target: a run's name in `runs`, or the path of an archive.
        runs: the folder of runs.
        trees: most executions whose trees and calls are in the file, the latest ones first.

    Raises:
        GyreError: it cannot be opened.
    """
    async with _followed(target, runs) as watch:
        answers: Answers = {"overview": _plain(await watch.sections())}
        frames = [round(watch.seconds * place / FRAMES, 3) for place in range(1, FRAMES)]
        for at in frames:
            answers[f"overview?at={at:.3f}"] = _plain(await watch.sections(at))
        pages = [
            executions(watch.store.ask, watch.seconds, Question(page=page, size=MOST)) for page in range(ROWS // MOST)
        ]
        rows = [row for page in pages for row in page["rows"]]
        answers["executions"] = pages[0] | {"rows": rows}
        kept = await _trees(watch, [str(row[0]) for row in rows[:trees]], answers)
        told = {
            "run": answers["overview"]["head"]["run"],
            "frames": frames,
            "exported": datetime.now(UTC).isoformat(timespec="seconds"),
            "answers": answers,
        }
        return one_file(told), kept


@asynccontextmanager
async def _followed(target: str, runs: Path) -> AsyncIterator[Watch]:
    watch = Watch(target, runs)
    following = watch.begin()
    try:
        await watch.opened()
        await watch.caught_up()
        yield watch
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _trees(watch: Watch, names: list[str], answers: Answers) -> int:
    """Trees, samples and calls of some executions; one that has said nothing yet has none."""
    source = await watch.opened()
    room, kept = CALLS, 0
    for name in names:
        try:
            tree = answers[f"tree/{name}"] = await looks.tree(source, name)
        except GyreError:
            continue
        kept += 1
        for admitted in (tree["admitted"] or {}).get("trajectories", ()):
            leaf = admitted["leaf"]
            answers[f"sample/{name}/{leaf}?from=0"] = await looks.sample(source, name, leaf, 0)
        for call in [each[0] for line in tree["lines"] for each in line["calls"]][:room]:
            answers[f"call/{call}"] = await looks.call(source, call)
            room -= 1
    return kept


def _plain(sections: dict[str, bytes]) -> dict[str, Any]:
    return {name: orjson.loads(body) for name, body in sections.items()}
