"""The page in a real browser: each view, live and from an archive, in both schemes, by keyboard, on a small screen."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.dashboard.guard import Guard
from services.dashboard.runs import Runs
from services.dashboard.server import served
from tests.dashboard.browser import Browser, Page
from tests.dashboard.conftest import Told
from tests.dashboard.tale import HOSTILE, say, tale

pytestmark = pytest.mark.asyncio(loop_scope="session")
PATIENCE_MS = 10_000
RIGHT = "(each) => each.getBoundingClientRect().right"
LISTED = "Number(document.documentElement.dataset.listed) > 0"
ALL = f"{LISTED} && document.querySelector('#state').textContent === 'finished'"


@asynccontextmanager
async def opened(chrome: Browser, url: str, ready: str = LISTED, **screen: object) -> AsyncIterator[Page]:
    """The page, loaded and listed; nothing may have gone wrong in it by the end."""
    async with chrome.page(**screen) as page:  # type: ignore[arg-type]
        await page.open(url)
        await page.until(ready)
        yield page
        assert page.troubles == []
        assert await page.run("document.title") != "owned"
        assert [each for each in page.requests if not each.startswith((url.partition("#")[0], "data:"))] == []


async def label(page: Page, chart: str) -> str:
    return str(await page.run(f"document.querySelector('#{chart} .plot').getAttribute('aria-label')"))


async def at(page: Page, seconds: float) -> None:
    await page.run(
        f"document.querySelector('.plot').dispatchEvent(new CustomEvent('seek', {{bubbles: true, detail: {seconds}}}))"
    )
    await page.until(f"document.documentElement.dataset.at === '{seconds:.3f}'")


async def every_view(page: Page) -> None:
    """Each says what the whole tale says."""
    facts = (await page.text("#facts")).split("\n")
    assert facts[facts.index("step") + 1] == "6"
    assert facts[facts.index("ended f") + 1] == "48"
    assert await label(page, "cells") == "Roles of 2 cells over 0:40. Now 2 rollout."
    assert "dispatched 48, launched 48, ended 48, at large 0" in await label(page, "levels")
    assert "held-out 0.75 at version 6" in await label(page, "reward")
    assert "completed 24, failed 12, timeout 12" in await label(page, "ends")
    assert "all zero 2, all one 3" in await label(page, "groups")
    assert await page.text("#batch h3") == "Groups 2 of 2"
    assert await page.count("#batch .m-done") == 5  # four micro-steps and a part of the bar
    assert await page.count("#tasks tbody tr") == 5
    assert "mean staleness of its groups 1" in await label(page, "staleness")
    assert await page.count("#cells rect.s-train") == 3


async def test_every_view_of_an_archive_says_what_the_log_says(chrome: Browser, told: Told) -> None:
    async with opened(chrome, told.archived, ALL) as page:
        await every_view(page)


async def test_a_live_page_follows_the_log(chrome: Browser, told: Told) -> None:
    async with opened(chrome, told.live, scheme="dark") as page:
        painted = await page.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert await page.text("#state") == "live"
        lags = []
        rest = [line for line in tale() if line.at >= 24]
        for part in (rest[:40], rest[40:-1], rest[-1:]):
            head = await say(told.bus, part, told.zero, first=1000 * (len(lags) + 1))
            said = time.monotonic()
            await page.until(f"Number(document.documentElement.dataset.shown) >= {head}")
            lags.append(time.monotonic() - said)
        await page.until("document.querySelector('#state').textContent === 'finished'")
        await every_view(page)
        assert painted < PATIENCE_MS  # `benchmarks.dashboard` measures both without other tests beside it
        assert max(lags) < PATIENCE_MS / 1000


async def test_the_slider_shows_any_moment_and_goes_back_to_the_end(chrome: Browser, told: Told) -> None:
    async with opened(chrome, told.archived, ALL) as page:
        await at(page, 4.0)
        assert await page.text("#state") == "as of 0:04"
        assert "waterlevel w\n16" in await page.text("#facts")
        assert await page.run("document.querySelector('#time input').getAttribute('aria-valuetext')") == "0:04 of 0:40"
        assert "at=4.0" in await page.run("location.hash")
        await page.press("]")
        await page.until("document.documentElement.dataset.at === '4.400'")
        await page.press("n")
        await page.until("document.documentElement.dataset.at === 'now'")
        assert "ended f\n48" in await page.text("#facts")
        await at(page, 39.6)
        await page.press(" ")
        await page.until("document.documentElement.dataset.at === 'now'")
        await page.until("document.querySelector('.play').textContent === '▶'")


async def test_executions_are_filtered_sorted_and_paged_by_the_server(chrome: Browser, told: Told) -> None:
    first = "document.querySelector('#executions tbody .link').textContent"
    async with opened(chrome, told.archived, ALL) as page:
        assert await page.count("#executions tbody tr") == 25
        await page.run("[...document.querySelectorAll('#executions-pages button')].at(-1).click()")
        await page.until("document.querySelector('#executions-pages span').textContent === '26–48 of 48, page 2 of 2'")
        await page.run("document.querySelectorAll('#executions thead button')[3].click()")
        await page.until("document.querySelectorAll('#executions th')[3].getAttribute('aria-sort') === 'descending'")
        await page.press("/")
        await page.call("Input.insertText", text="x0-")
        await page.until("document.querySelectorAll('#executions tbody tr').length === 4")
        await page.run(
            "(() => { const it = document.querySelector('#executions-ask select'); it.value = 'timeout';"
            "it.dispatchEvent(new Event('change')); })()"
        )
        await page.until(f"document.querySelectorAll('#executions tbody tr').length === 1 && {first} === 'x0-2'")
        assert any("text=x0-" in each and "status=timeout" in each for each in page.requests)


async def test_a_tree_leads_to_calls_and_samples_and_nothing_hostile_runs(chrome: Browser, told: Told) -> None:
    async with opened(chrome, f"{told.archived}#x=x0-0", "document.querySelector('[role=treeitem]')") as page:
        assert "10 calls" not in await page.text("#look")
        assert await page.count("[role=treeitem]") == 9
        assert "rejected: x0-0-c9" in await page.text("#look")
        await page.until("document.activeElement.getAttribute('role') === 'treeitem'")
        await page.press("Enter")
        await page.until("document.querySelector('.call h3')")
        assert HOSTILE in await page.text(".call")
        marked = await page.run(
            "[...document.querySelectorAll('.call mark')].map((each) => each.parentElement.tagName)"
        )
        assert set(marked) <= {"PRE", "HEADER"}
        assert await page.count(".by-user mark, .by-tool mark, .by-system mark") == 0
        assert await page.count("script") == 1
        await page.run(
            "[...document.querySelectorAll('.branch .link')].find((each) => each.textContent === 'x0-0-c1').click()"
        )
        await page.until("document.querySelector('.call h3')?.textContent === 'Call x0-0-c1'")
        assert await page.count(".by-assistant mark") >= 1
        await page.run("document.querySelector('[role=treeitem]').focus()")
        await page.press("ArrowDown")
        assert await page.run("[...document.querySelectorAll('[role=treeitem]')].indexOf(document.activeElement)") == 1
        await page.run("document.querySelector('.leaf.admitted').click()")
        await page.until("document.querySelector('.tokens mark')")
        assert await page.count(".tokens mark") == await page.run(
            "Number(document.querySelector('.sample .told li').textContent.split(' ')[0])"
        )
        assert "look=leaf" in await page.run("location.hash")
        await page.press("Escape")
        await page.until("!document.querySelector('#look').open")
        await page.until("!location.hash.includes('x=')")


async def test_keys_do_what_the_page_of_keys_says(chrome: Browser, told: Told) -> None:
    async with opened(chrome, told.archived, ALL) as page:
        await page.press("?")
        await page.until("document.querySelector('#keys').open")
        await page.press("Escape")
        await page.until("!document.querySelector('#keys').open")
        await page.press("Tab")
        assert await page.run("document.activeElement.className") == "skip"
        for _ in range(4):
            await page.press("Tab")
        assert await page.run("document.activeElement.className") == "plot"
        assert await page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await page.press("ArrowRight", "ArrowRight")
        assert "cell 0: rollout" in await page.text("#said")
        await page.press("End", "ArrowLeft", "Enter")
        await page.until("document.querySelector('#state').textContent.startsWith('as of')")
        await page.press("t", "t")
        assert await page.run("document.documentElement.dataset.theme") == "dark"
        assert await page.run(
            "[...document.querySelectorAll('input, select, button, .plot')].every((each) => "
            "each.innerText?.trim() || each.labels?.length || each.getAttribute('aria-label'))"
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_overflows_a_screen_of_360_pixels(chrome: Browser, told: Told, scheme: str) -> None:
    async with opened(chrome, told.archived, ALL, width=360, height=740, scheme=scheme) as page:
        assert await page.run("document.documentElement.scrollWidth") <= 360
        ground = await page.run("getComputedStyle(document.documentElement).backgroundColor")
        assert ("245, 245, 242" in ground) == (scheme == "light")
        await page.click("#executions tbody .link")
        await page.until("document.querySelector('#look .told')")
        assert await page.run("document.querySelector('#look').scrollWidth") <= 360
        assert await page.run(f"Math.max(...[...document.querySelectorAll('#look *')].map({RIGHT}))") <= 360


async def test_an_exported_page_needs_no_server(chrome: Browser, exported: tuple[str, int], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(exported[0])
    async with opened(chrome, path.as_uri()) as page:
        assert "ended f\n48" in await page.text("#facts")
        await page.press("[")
        await page.until("document.querySelector('#state').textContent.startsWith('as of 0:3')")
        await page.press("n")
        await page.run(
            "(() => { const it = document.querySelector('#search'); it.value = 'x0-0';"
            "it.dispatchEvent(new Event('input')); })()"
        )
        await page.until("document.querySelectorAll('#executions tbody tr').length === 1")
        await page.click("#executions tbody .link")
        await page.until("document.querySelector('[role=treeitem]')")
        await page.press("Enter")
        await page.until("document.querySelector('.call mark')")
        assert HOSTILE in await page.text(".call")
        assert page.requests == [path.as_uri()]


async def test_a_token_becomes_a_cookie_and_leaves_the_address(chrome: Browser, told: Told) -> None:
    token = "0123456789abcdef"
    guard = Guard("127.0.0.1", token)
    async with served(Runs(str(told.archive), told.runs), guard, "127.0.0.1", 0) as url, chrome.page() as page:
        await page.open(url)
        assert "token" in await page.text("body")
        await page.open(f"{url}?token={token}")
        await page.until(LISTED)
        assert token not in await page.run("location.href + document.cookie + document.documentElement.outerHTML")
        cookies = (await page.call("Network.getCookies"))["cookies"]
        assert [(each["httpOnly"], each["sameSite"]) for each in cookies] == [(True, "Strict")]


async def test_a_run_that_cannot_be_opened_is_said_in_one_line(chrome: Browser, told: Told, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsonl.zst"
    damaged.write_bytes(b"no archive")
    async with (
        served(Runs(str(damaged), tmp_path), Guard("127.0.0.1", None), "127.0.0.1", 0) as url,
        chrome.page() as page,
    ):
        await page.open(url)
        await page.until("!document.querySelector('#problem').hidden")
        assert "damaged" in await page.text("#problem")
        assert page.troubles == []
