"""The pictures in docs/img, taken of a real run: `make pictures`, or `python -m tests.dashboard.pictures ARCHIVE`."""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from services.dashboard.guard import Guard
from services.dashboard.runs import Runs
from services.dashboard.server import served
from tests.dashboard.browser import Browser, browser

IMAGES = Path(__file__).parents[2] / "docs" / "img"
LISTED = (
    "Number(document.documentElement.dataset.listed) > 0 && document.querySelector('#state').textContent != 'reading'"
)
OPENED = "document.querySelector('#look .call, #look .sample')"
MOMENT = 0.62
"""Share of the run at which the dark picture is taken."""
DEMO = ("demo", "--steps", "14", "--json", "--set", "cells.count=3")


async def take(archive: Path) -> None:
    """All of them, of one archive."""
    async with (
        served(Runs(str(archive), archive.parent), Guard("127.0.0.1", None), "127.0.0.1", 0) as url,
        browser() as chrome,
    ):
        await _picture(chrome, url, "dashboard.png", LISTED, 1440, 1180)
        seconds = await _seconds(chrome, url)
        await _picture(chrome, f"{url}#at={MOMENT * seconds:.1f}", "dashboard-dark.png", LISTED, 1440, 1180, "dark")
        execution, call = await _one(chrome, url)
        look = f"{url}#x={execution}&look=call:{call}"
        await _picture(chrome, look, "dashboard-call.png", OPENED, 1440, 820)
        await _picture(chrome, url, "dashboard-small.png", LISTED, 360, 1500, "dark")


async def _picture(
    chrome: Browser, url: str, name: str, ready: str, width: int, height: int, scheme: str = "light"
) -> None:
    async with chrome.page(width, height, scheme) as page:
        await page.open(url)
        await page.until(ready)
        if "#at=" in url:
            await page.until("(document.documentElement.dataset.at ?? 'now') !== 'now'")
        await asyncio.sleep(1)  # fonts, and the last of what a page draws by itself
        await page.picture(IMAGES / name, whole=False)
        assert page.troubles == []


async def _seconds(chrome: Browser, url: str) -> float:
    return float((await _answer(chrome, url, "overview"))["head"]["seconds"])


async def _one(chrome: Browser, url: str) -> tuple[str, str]:
    """An execution that made many calls and was trained on, and its last call."""
    found = await _answer(chrome, url, "executions?sort=calls&size=1")
    name = str(found["rows"][0][0])
    tree = await _answer(chrome, url, f"tree/{name}")
    return name, str(tree["lines"][-1]["calls"][-1][0])


async def _answer(chrome: Browser, url: str, path: str) -> dict[str, object] | dict[str, dict[str, object]]:
    async with chrome.page() as page:
        await page.open(url)
        await page.until(LISTED)
        run = await page.run("document.querySelector('#run').value")
        return dict(json.loads(await page.run(f"fetch('/api/runs/{run}/{path}').then((answer) => answer.text())")))


def main(arguments: list[str]) -> None:
    """Of the archive that is named, or of a demo that is run first."""
    if arguments:
        asyncio.run(take(Path(arguments[0]).absolute()))
        return
    with tempfile.TemporaryDirectory(prefix="gyre-pictures-") as folder:
        command = (sys.executable, "-m", "services.cli", *DEMO, "--set", f"run.folder={folder}")
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        asyncio.run(take(Path(json.loads(done.stdout.splitlines()[-1])["archive"]).absolute()))


if __name__ == "__main__":
    main(sys.argv[1:])
