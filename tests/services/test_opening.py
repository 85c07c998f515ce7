"""Two processes that open one run at once: one does, and the other leaves it alone."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bus.credentials import server_of
from bus.jetstream import Bus
from bus.server import NatsServer
from gyre.config import Config
from schemas.runs import RunStarted
from services.control import launch
from services.importing import bring
from services.place import Note, started
from services.setup import BegunElsewhere, SetupError, open_run, opening
from services.train import resume
from tests.services.recorded import SMALL

OPEN = "import asyncio, sys; from gyre.config import Config; from {} import {}; asyncio.run({}(Config.load(None, {})))"
BUSY = r"run tried: another gyre opens it just now; wait for it, or take another name"


def settings(folder: Path, url: str = "", run: str = "tried") -> list[str]:
    given = [f"run.name={run}", f"run.folder={folder / 'runs'}", f"bus.url={url}", "model.path=modelled"]
    return [*given, "tasks.train=words:2:train", "tasks.heldout=words:2:heldout"]


@contextmanager
def process(module: str, opener: str, given: list[str]) -> Iterator[subprocess.Popen[str]]:
    """One that opens a run and ends."""
    command = [sys.executable, "-c", OPEN.format(module, opener, opener, given)]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with started:
        try:
            yield started
        finally:
            started.kill()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    yield server
    server.stop()


async def said(folder: Path) -> int:
    """How many words its log has; the first is that it began."""
    bus = await Bus.connect(Note.read(folder).url, "tried", "control", "control-1", folder)
    try:
        assert isinstance(await started(bus.ev), RunStarted)
        return await bus.ev.head()
    finally:
        await bus.close()


@pytest.mark.parametrize("opener", ["services.setup open_run", "services.control launch"])
def test_who_comes_while_another_process_opens_the_run_leaves_it_whole(
    opener: str, tmp_path: Path, server: NatsServer
) -> None:
    folder = tmp_path / "runs" / "tried"
    given = settings(tmp_path, server.url if "launch" in opener else "")
    try:
        with process(*opener.split(), given) as first:
            until(folder.exists)
            first.send_signal(signal.SIGSTOP)  # before its first word: it still has to write version 0
            with process(*opener.split(), given) as second:
                _, errors = second.communicate(timeout=60)
                assert second.returncode != 0
                assert "another gyre opens it just now" in errors
            first.send_signal(signal.SIGCONT)
            _, errors = first.communicate(timeout=60)
            assert first.returncode == 0, errors
        assert asyncio.run(said(folder)) == 1
        assert (folder / "proxy.key").stat().st_size == 32
        assert [each.name for each in folder.parent.iterdir()] == ["tried"]
    finally:
        server_of(folder, "tried", "always").stop()


async def test_a_run_that_is_being_opened_is_neither_opened_nor_launched_nor_resumed_nor_imported(
    tmp_path: Path, server: NatsServer
) -> None:
    folder = tmp_path / "runs" / "tried"
    with opening(folder):
        for opener, url in ((open_run, ""), (launch, server.url)):
            with pytest.raises(SetupError, match=BUSY):
                await opener(Config.load(None, settings(tmp_path, url)))
        assert not folder.exists()
        folder.mkdir()
        Note("tried", server.url, "always").write(folder)
        with pytest.raises(SetupError, match=BUSY):
            await resume(folder)
        assert Note.read(folder).url == server.url
    with opening(tmp_path / "runs" / "small"), pytest.raises(SetupError, match="another gyre opens it"):
        await bring(SMALL, tmp_path / "runs")
    with opening(folder):  # whoever let go left nothing in the way
        pass
    assert [each.name for each in folder.parent.iterdir()] == ["tried"]


@pytest.mark.parametrize("left", [("users",), ("nats", "users"), ("nats", "users", "weights")], ids="-".join)
async def test_a_name_is_free_again_where_an_opening_was_cut_short(tmp_path: Path, left: tuple[str, ...]) -> None:
    folder = tmp_path / "runs" / "tried"
    (folder / "tasks/train/half-copied").mkdir(parents=True)
    for name in left:
        (folder / name).mkdir(mode=0o700)
    opened = await open_run(Config.load(None, settings(tmp_path)))
    try:
        assert await said(folder) == 1
        assert not (folder / "tasks/train/half-copied").exists()
    finally:
        assert opened.server
        opened.server.stop()


@pytest.mark.parametrize("more", ["logs", "mine.txt"])
async def test_a_folder_that_holds_anything_else_is_not_taken(tmp_path: Path, more: str) -> None:
    folder = tmp_path / "runs" / "tried"
    for name in ("tasks", "users", more):
        (folder / name).mkdir(parents=True)
    with pytest.raises(SetupError, match="is what a run left that did not begin; remove it, or another name"):
        await open_run(Config.load(None, settings(tmp_path)))
    assert {each.name for each in folder.iterdir()} == {"tasks", "users", more}


async def test_what_lies_where_a_run_of_elsewhere_would_is_not_removed(tmp_path: Path, server: NatsServer) -> None:
    there, here = (Config.load(None, settings(tmp_path / name, server.url)) for name in ("there", "here"))
    await open_run(there)
    folder = tmp_path / "here" / "runs" / "tried"
    with pytest.raises(
        BegunElsewhere, match=r"its log is on nats://.* already, but .*here/runs/tried is not its folder"
    ):
        await open_run(here)
    assert (folder / "weights").is_dir()
    assert not (folder / "run.json").exists()  # it is nobody's to resume
    with pytest.raises(SetupError, match="is what a run left that did not begin; remove it, or another name"):
        await open_run(here)
    assert await said(tmp_path / "there" / "runs" / "tried") == 1
