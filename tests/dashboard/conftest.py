"""What tests of the dashboard share: the tale on a server and as an archive, and one Chromium for all of them."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from bus.archive import export_run
from bus.jetstream import Bus
from bus.server import NatsServer
from services.dashboard.export import export_page
from services.dashboard.guard import Guard
from services.dashboard.runs import Runs
from services.dashboard.server import served
from services.place import Note
from tests.dashboard.browser import Browser, browser, chromium
from tests.dashboard.tale import BEGIN, RUN, say, tale


@dataclass(frozen=True)
class Told:
    """The tale: dashboards over its archive and over its server, and what goes on being said on that."""

    archive: Path
    archived: str
    """URL of the dashboard over the archive."""
    live: str
    runs: Path
    bus: Bus
    zero: float
    """UTC seconds at which the tale on the server begins."""


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs in which the tale has one."""
    runs = tmp_path_factory.mktemp("runs")
    (runs / RUN).mkdir()
    return runs


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def told(story: Path) -> AsyncIterator[Told]:
    """Half of the tale is said when this is given; the archive has all of it."""
    folder, archive = story / RUN, story / "tale.jsonl.zst"
    with_all = story / "all"
    with_all.mkdir()
    await _archive(with_all, archive)
    server = NatsServer(folder / "nats").start()
    try:
        Note(RUN, server.url, "always").write(folder)
        bus = await Bus.connect(server.url, RUN, "control", "control-1", folder, create=True)
        half = [line for line in tale() if line.at < 24]
        zero = time.time() - 24
        await say(bus, half, zero)
        async with (
            served(Runs(str(archive), story), Guard("127.0.0.1", None), "127.0.0.1", 0) as archived,
            served(Runs(None, story), Guard("127.0.0.1", None), "127.0.0.1", 0) as live,
        ):
            yield Told(archive, archived, live, story, bus, zero)
        await bus.close()
    finally:
        server.stop()


async def _archive(folder: Path, path: Path) -> None:
    server = NatsServer(folder / "nats").start()
    try:
        bus = await Bus.connect(server.url, RUN, "control", "control-1", folder, create=True)
        await say(bus, tale(), BEGIN)
        await bus.close()
        await export_run(server.url, RUN, folder, path)
    finally:
        server.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def exported(told: Told) -> tuple[str, int]:
    """The archive's page as one file, and how many executions it holds."""
    return await export_page(str(told.archive), told.runs, 48)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chrome() -> AsyncIterator[Browser]:
    """One Chromium for all tests."""
    if chromium() is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    async with browser() as found:
        yield found
