"""The dashboard: how soon it shows an archive, what its answers cost, and how far it is behind a run that goes on.

    python -m benchmarks.dashboard [--events 1000000] [--log] [--steps 6] [--json]

The archive repeats a recorded run; it is opened from its columns (with `--log`: from its log). Then a demo is run and
looked at in headless Chromium (which has to be there): the page's first paint, and of each sequence of the log the time
from its commit until the page had drawn it. What one page is sent is said in bytes.
"""

import argparse
import asyncio
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.doctor import archived
from bus.archive_log import open_archive
from services.analytics.archive_columns import make_columns
from services.dashboard import filling, panels_rollout
from services.dashboard.guard import Guard
from services.dashboard.listing import Question, executions
from services.dashboard.runs import Runs
from services.dashboard.server import served
from services.dashboard.watch import Watch
from tests.dashboard.browser import Page, browser

POLL_SECONDS = 0.02
RECORD = """
window.seen = [];
new MutationObserver(() => seen.push([Date.now(), Number(document.documentElement.dataset.shown)]))
    .observe(document.documentElement, { attributes: true, attributeFilter: ["data-shown"] });
"""


async def archive(folder: Path, events: int, *, log: bool) -> dict[str, Any]:
    """Seconds of each thing that a page asks for, of an archive of so many events."""
    began = time.monotonic()
    path = await asyncio.to_thread(archived, folder, events)
    made = time.monotonic()
    if not log:
        await make_columns(path)
    found = {"events": events, "archive_seconds": made - began, "columns_seconds": time.monotonic() - made}
    filling.LARGE = math.inf if log else 0
    watch, began = Watch(str(path), folder), time.monotonic()
    following = watch.begin()
    await watch.caught_up()
    sections = await watch.sections()
    found |= {"open_seconds": time.monotonic() - began, "sent_bytes": sum(map(len, sections.values()))}
    ask, at = watch.store.ask, watch.seconds
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "overview_as_of_half": lambda: watch.sections(at / 2),
        "list_by_reward": lambda: asyncio.to_thread(executions, ask, at, Question(sort="reward")),
        "list_searched": lambda: asyncio.to_thread(executions, ask, at, Question(text="x12", sort="seconds")),
        "tasks": lambda: asyncio.to_thread(panels_rollout.tasks, ask, at),
    }
    for name, work in asked.items():
        began = time.monotonic()
        await work()
        found[f"{name}_seconds"] = time.monotonic() - began
    found["executions"] = executions(ask, at, Question(size=1))["total"]
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return found


async def demo(folder: Path, steps: int) -> dict[str, Any]:
    """First paint, and how far the page is behind, while a demo runs on the same cores."""
    command = (
        "-m",
        "services.cli",
        "demo",
        "--steps",
        str(steps),
        "--set",
        f"run.folder={folder}",
        "--set",
        "run.name=demo",
    )
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=quiet, stderr=quiet)
    note = folder / "demo" / "run.json"
    while not note.is_file():  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(POLL_SECONDS)
    async with (
        served(Runs(None, folder), Guard("127.0.0.1", None), "127.0.0.1", 0) as url,
        browser() as chrome,
        chrome.page() as page,
    ):
        await page.open(url)
        await page.until("Number(document.documentElement.dataset.shown) > 0")
        paint = await page.run("performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000")
        shown = await _follow(page, process)
    lags = sorted(await _lags(folder / "demo" / "demo.jsonl.zst", shown))
    return {
        "first_paint_seconds": paint,
        "sequences": len(lags),
        "lag_p50": lags[len(lags) // 2],
        "lag_p99": lags[len(lags) * 99 // 100],
        "lag_max": lags[-1],
    }


async def _follow(page: Page, process: asyncio.subprocess.Process) -> list[tuple[float, int]]:
    """(UTC seconds, last sequence that is drawn) whenever that changed, until the demo ends."""
    await page.run(RECORD)
    await process.wait()
    return [(when / 1000, drawn) for when, drawn in await page.run("seen")]


async def _lags(path: Path, shown: list[tuple[float, int]]) -> list[float]:
    """Of each sequence that came while the page was open: seconds from its commit until it was drawn."""
    with open_archive(path) as log:
        times = {each.sequence: each.commit.time / 1e9 async for each in log.ev.read() if each.commit}
    return [
        seen - times[sequence]
        for (_, before), (seen, after) in pairwise(shown)
        for sequence in range(before + 1, after + 1)
    ]


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="How quick the dashboard is.")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the archive; 0: none")
    parser.add_argument("--log", action="store_true", help="open the archive from its log instead of its columns")
    parser.add_argument("--steps", type=int, default=6, help="steps of the demo; 0: none")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="gyre-dashboard-") as name:
        if options.events:
            found |= asyncio.run(archive(Path(name), options.events, log=options.log))
        if options.steps:
            found |= asyncio.run(demo(Path(name), options.steps))
    if options.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:28} {value:,.3f}" if isinstance(value, float) else f"{key:28} {value:,}")


if __name__ == "__main__":
    main()
