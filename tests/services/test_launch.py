"""A run for services that somebody else starts: opened on a server that is there, once, whatever cuts it short."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.archive_log import open_archive
from bus.errors import Unavailable
from bus.jetstream import Bus, JetStreamLog
from bus.log import Expect
from bus.memory import MemoryBroker, MemoryBus
from bus.server import NatsServer
from gyre.config import Config
from gyre.errors import ConfigError
from schemas.envelope import Commit
from schemas.runs import RunStarted
from services.control import launch, serve
from services.place import Note, Place, started
from services.setup import PerhapsBegun, SetupError
from services.source import messages
from tests.services.recorded import SMALL


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    yield server
    server.stop()


def config(folder: Path, url: str, *more: str) -> Config:
    given = ["run.name=tried", f"run.folder={folder / 'runs'}", f"bus.url={url}", "model.path=modelled"]
    return Config.load(None, [*given, "tasks.train=words:2:train", "tasks.heldout=words:2:heldout", *more])


async def test_a_run_without_name_or_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.name.*--set run\.name"):
        await launch(config(tmp_path, "nats://127.0.0.1:1", "run.name="))
    with pytest.raises(ConfigError, match=r"bus\.url.*--set bus\.url"):
        await launch(config(tmp_path, ""))


async def test_an_opening_that_was_cut_short_is_done_again_and_a_run_is_begun_once(
    tmp_path: Path, server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    cut = tmp_path / "runs" / "tried"
    (cut / "tasks").mkdir(parents=True)
    Note("tried", server.url, "always").write(cut)
    mark = tmp_path / "runs" / ".tried.opening"
    mark.touch()

    folder = await launch(config(tmp_path, server.url))
    assert folder == cut
    assert not mark.exists()
    mark.touch()  # as if it had been cut short just after its last word
    (folder / "proxy.url").write_text("http://proxy:1")  # of a proxy that works on while this one is started again
    assert await launch(config(tmp_path, server.url, "bus.max_bytes=2097152")) == folder
    assert not mark.exists()
    assert (folder / "proxy.url").read_text() == "http://proxy:1"
    assert caplog.records == []
    assert await launch(config(tmp_path, server.url, "run.seed=5")) == folder
    assert [record.message for record in caplog.records] == [
        "run tried was begun with another configuration and keeps it; another name begins a new run"
    ]

    bus = await Bus.connect(server.url, "tried", "reader", "reader-1", folder)
    try:
        assert await bus.ev.head() == 1
        assert isinstance(await started(bus.ev), RunStarted)
        assert [room.limit for room in await bus.room()] == [1 << 30, 1 << 30]
    finally:
        await bus.close()

    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    with pytest.raises(SetupError, match="its log is on"):
        await launch(config(tmp_path, server.url))


async def test_a_run_whose_first_word_was_stored_but_not_answered_keeps_its_folder(
    tmp_path: Path, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = JetStreamLog.append

    async def unanswered(log: JetStreamLog, subject: str, commit: Commit, expect: Expect | None = None) -> int:
        await append(log, subject, commit, expect)
        raise Unavailable("no answer in 20 s")

    monkeypatch.setattr(JetStreamLog, "append", unanswered)
    with pytest.raises(PerhapsBegun, match=r"gyre resume tried --runs .*` goes on if it has"):
        await launch(config(tmp_path, server.url))
    monkeypatch.setattr(JetStreamLog, "append", append)
    folder = await launch(config(tmp_path, server.url))
    assert list((folder / "weights").iterdir())
    assert (folder / "proxy.key").is_file()


async def test_a_run_is_followed_to_its_end_and_beyond_and_what_came_of_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_archive(SMALL) as archive:
        bus = await MemoryBus.connect(MemoryBroker(), archive.run, "control", "control-1", tmp_path, create=True)
        async for stored in messages(archive.ev):
            assert stored.commit is not None
            await bus.ev.append(stored.subject, stored.commit)
        begun = Config.recorded((await started(archive.ev)).config)
    (tmp_path / f"{bus.run}.jsonl.zst").touch()  # an earlier launcher archived it
    place = Place("control", "control-1", bus.run, tmp_path, "memory", begun)
    following = asyncio.create_task(serve(place, bus))
    while f"run {bus.run}: {begun.run.steps} steps in" not in (said := capsys.readouterr().out):
        done, _ = await asyncio.wait((following,), timeout=0.01)
        assert not done
    assert "(all closed)" in said
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
