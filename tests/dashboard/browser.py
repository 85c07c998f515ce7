"""A headless Chromium spoken to in its own protocol: what tests of pages and `make pictures` need, and no more.

Every page that is opened here keeps what went wrong in it: uncaught errors, console errors, refused requests and
violations of the page's own policy.
"""

import asyncio
import base64
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-port=0",
)  # fmt: skip
PATIENCE_SECONDS = 20.0
NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
KEYS = {
    "Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, ""), "Tab": ("Tab", 9, "\t"), " ": ("Space", 32, " "),
    "ArrowLeft": ("ArrowLeft", 37, ""), "ArrowUp": ("ArrowUp", 38, ""), "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""), "Home": ("Home", 36, ""), "End": ("End", 35, ""),
}  # fmt: skip


def chromium() -> str | None:
    """Where Chromium is, if it is."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class BrowserError(AssertionError):
    """What a page was asked to do went wrong in it."""


@dataclass
class Browser:
    """One process; each page has cookies and storage of its own."""

    socket: aiohttp.ClientWebSocketResponse
    _numbers: "count[int]" = field(default_factory=lambda: count(1))
    _waiting: dict[int, "asyncio.Future[Any]"] = field(default_factory=dict)
    _pages: dict[str, "Page"] = field(default_factory=dict)

    async def listen(self) -> None:
        """Take in what the browser says, until it goes."""
        async for message in self.socket:
            said = json.loads(message.data)
            if "id" in said:
                waiting = self._waiting.pop(said["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(said)
            elif (page := self._pages.get(said.get("sessionId", ""))) is not None:
                page.hear(said["method"], said["params"])

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """One command of the protocol."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        session_id = {"sessionId": session} if session else {}
        await self.socket.send_json({"id": number, "method": method, "params": parameters, **session_id})
        said = await asyncio.wait_for(self._waiting[number], PATIENCE_SECONDS)
        if "error" in said:
            raise BrowserError(f"{method}: {said['error']['message']}")
        return said["result"]

    @asynccontextmanager
    async def page(self, width: int = 1360, height: int = 900, scheme: str = "light") -> AsyncIterator["Page"]:
        """A page in a context of its own."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.look(width, height, scheme)
        try:
            yield page
        finally:
            await self.call("Target.disposeBrowserContext", browserContextId=context)


@dataclass
class Page:
    """One page."""

    browser: Browser
    session: str
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """Requests that were dropped because the machine's networks changed: not the page's fault."""
    _loaded: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, method: str, said: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                found = said["exceptionDetails"]
                self.troubles.append(f"error: {found.get('exception', {}).get('description') or found['text']}")
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning"):
                self.troubles.append(f"console: {[each.get('value') for each in said['args']]}")
            case "Log.entryAdded" if NETWORK_CHANGED in said["entry"]["text"]:
                self.moved.append(said["entry"].get("url", ""))
            case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                self.troubles.append(f"{said['entry']['source']}: {said['entry']['text']}")
            case "Network.requestWillBeSent":
                self.requests.append(said["request"]["url"])
            case "Page.loadEventFired":
                self._loaded.set()

    async def call(self, method: str, **parameters: Any) -> Any:
        return await self.browser.call(method, self.session, **parameters)

    async def look(self, width: int, height: int, scheme: str = "light") -> None:
        """Be a screen of this size and in these colours."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def open(self, url: str) -> None:
        """Go there; once more where the machine's networks changed meanwhile, which makes Chromium drop requests."""
        for _ in range(5):
            self._loaded.clear()
            self.moved.clear()
            await self.call("Page.navigate", url=url)
            await asyncio.wait_for(self._loaded.wait(), PATIENCE_SECONDS)
            if not self.moved:
                return

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise BrowserError(found["exceptionDetails"].get("exception", {}).get("description", str(found)))
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true, as seen after each frame; gives its value."""
        waiting = (
            "new Promise((done) => { const look = () => { let found = false; try { found = (%s); } catch {} "
            "if (found) done(found); else setTimeout(look, 15); }; look(); })"
        )
        try:
            return await self.run(waiting % script)
        except TimeoutError:
            text = await self.run("document.body.innerText.slice(0, 300)")
            raise BrowserError(f"never true: {script}\n{self.troubles}\n{text}") from None

    async def text(self, selector: str) -> str:
        return str(await self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def count(self, selector: str) -> int:
        return int(await self.run(f"document.querySelectorAll({json.dumps(selector)}).length"))

    async def click(self, selector: str) -> None:
        await self.until(f"document.querySelector({json.dumps(selector)})")
        await self.run(f"document.querySelector({json.dumps(selector)}).click()")

    async def press(self, *keys: str) -> None:
        """Real key presses, at whatever has the focus."""
        for key in keys:
            code, number, text = KEYS.get(key, (key, 0, key))
            down = {"key": key, "code": code, "windowsVirtualKeyCode": number} | ({"text": text} if text else {})
            await self.call("Input.dispatchKeyEvent", type="keyDown", **down)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code, windowsVirtualKeyCode=number)

    async def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page, all of it or what is on the screen."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A Chromium for a while."""
    program = chromium()
    assert program is not None, "no Chromium here: apt-get install chromium"
    with tempfile.TemporaryDirectory(prefix="gyre-chromium-", ignore_cleanup_errors=True) as folder:
        flags = (*FLAGS, f"--user-data-dir={folder}")
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(program, *flags, stdout=quiet, stderr=quiet, stdin=quiet)
        try:
            url = await _where(Path(folder) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
                found = Browser(socket)
                listening = asyncio.create_task(found.listen())
                try:
                    yield found
                finally:
                    with contextlib.suppress(TimeoutError, BrowserError, ConnectionError):
                        await found.call("Browser.close")
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)
        finally:
            if process.returncode is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 5)
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _where(note: Path, process: asyncio.subprocess.Process) -> str:
    """Chromium writes its port and path once it listens."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while process.returncode is None:
            with contextlib.suppress(OSError, ValueError):
                port, path = note.read_text().splitlines()
                return f"ws://127.0.0.1:{port}{path}"
            await asyncio.sleep(0.02)
    raise BrowserError("chromium ended at once")
