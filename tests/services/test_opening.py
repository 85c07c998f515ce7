"""Two processes that open one run at once: one does, and the other leaves it alone."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bus.credentials import server_of
from bus.jetstream import Bus
from bus.server import NatsServer
from gyre.config import Config
from gyre.tasks.folder import TaskError
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


def unfit(folder: Path) -> Path:
    """A folder of tasks that begins to be opened, and is refused then: no image is at hand."""
    task = folder / "unfit" / "job"
    (task / "tests").mkdir(parents=True, exist_ok=True)
    (task / "instruction.md").write_text("Do it.\n")
    (task / "tests/test.sh").write_text("exit 0\n")
    (task / "task.toml").write_text('version = "1.0"\n[environment]\ndocker_image = "an-image"\n')
    return task.parent


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
    (folder / ".opening").touch()
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


@pytest.mark.parametrize("opener", [open_run, launch])
async def test_a_folder_that_nobody_opened_is_left_as_it_is_however_often_it_is_asked_for(
    tmp_path: Path, server: NatsServer, opener: Callable[[Config], Awaitable[object]]
) -> None:
    task = tmp_path / "runs/tried/tasks/train/mine/instruction.md"
    task.parent.mkdir(parents=True)
    task.write_text("Of the user.\n")
    config = Config.load(None, settings(tmp_path, server.url if opener is launch else ""))
    for _ in range(2):
        with pytest.raises(SetupError, match="is what a run left that did not begin; remove it, or another name"):
            await opener(config)
    assert [path for path in (tmp_path / "runs").rglob("*") if not path.is_dir()] == [task]


@pytest.mark.parametrize("opener", [open_run, launch])
async def test_what_lies_in_a_folder_outlives_an_opening_that_failed_there(
    tmp_path: Path, server: NatsServer, opener: Callable[[Config], Awaitable[object]]
) -> None:
    kept = tmp_path / "runs/tried/users/mine.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("Of the user.\n")
    given = [*settings(tmp_path, server.url if opener is launch else ""), f"tasks.train={unfit(tmp_path)}"]
    for _ in range(3):
        with pytest.raises((SetupError, TaskError)):
            await opener(Config.load(None, given))
    assert kept.read_text() == "Of the user.\n"


async def test_a_removal_that_is_cut_short_is_done_again_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "runs" / "tried"
    with monkeypatch.context() as patch:
        patch.setattr("services.setup.shutil.rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            await open_run(Config.load(None, [*settings(tmp_path), f"tasks.train={unfit(tmp_path)}"]))
    assert (folder / "tasks").exists()
    opened = await open_run(Config.load(None, settings(tmp_path)))
    assert opened.server
    opened.server.stop()


async def test_a_server_that_outlived_its_opening_is_ended_with_what_that_left(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "tried"
    (folder / "tasks").mkdir(parents=True)
    (folder / ".opening").touch()
    old = server_of(folder, "tried", "always").start()
    try:
        with pytest.raises(TaskError, match="needs image"):
            await open_run(Config.load(None, [*settings(tmp_path), f"tasks.train={unfit(tmp_path)}"]))
        with pytest.raises(ProcessLookupError):
            os.kill(old.pid, 0)
        assert not folder.exists()
    finally:
        old.stop()


async def test_an_opening_after_one_that_was_cut_short_has_a_server_of_its_own_and_its_own_durability(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "runs" / "tried"
    (folder / "tasks").mkdir(parents=True)
    (folder / ".opening").touch()
    old = server_of(folder, "tried", "always").start()
    try:
        opened = await open_run(Config.load(None, [*settings(tmp_path), "bus.durability=laptop"]))
        assert opened.server
        try:
            assert not opened.server.adopted
            assert await said(folder) == 1
            assert not (folder / ".opening").exists()
        finally:
            opened.server.stop()
    finally:
        old.stop()


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
