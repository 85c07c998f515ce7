"""`gyre log import`: all of a run comes back, or nothing is left that stands in the way of trying again."""

import asyncio
import json
from pathlib import Path

import pytest

from bus.archive import import_run
from bus.archive_log import open_archive
from bus.credentials import server_of
from services.importing import bring
from services.train import RunStopped, sole
from tests.services.conftest import Gyre, refusal
from tests.services.recorded import SMALL


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The recorded run with one byte of its middle changed: its index can still be read."""
    body = bytearray(SMALL.read_bytes())
    body[len(body) // 2] ^= 0xFF
    path = tmp_path / "damaged.jsonl.zst"
    path.write_bytes(body)
    return path


def run_of(path: Path) -> str:
    """The name of an archive's run."""
    with open_archive(path) as archive:
        return archive.run


def whole(gyre: Gyre, run: str) -> bool:
    """Whether the imported run says what the archive says."""
    return gyre("log", "stats", run, "--json").stdout == gyre("log", "stats", SMALL, "--json").stdout


def test_a_damaged_archive_leaves_no_folder_so_that_the_whole_one_can_come(gyre: Gyre, damaged: Path) -> None:
    assert str(damaged) in refusal(gyre("log", "import", damaged))
    assert not [each for each in Path("runs").rglob("*") if each.is_file()]
    done = gyre("log", "import", SMALL)
    assert done.exit_code == 0, done.output
    assert whole(gyre, done.stdout.strip())


def test_an_imported_run_is_not_resumed(gyre: Gyre, tmp_path: Path) -> None:
    run = gyre("log", "import", SMALL).stdout.strip()
    line = refusal(gyre("resume", run))
    assert line == f"run {run}: was imported from an archive: it replays, it does not resume"
    assert not list((tmp_path / "runs" / run).glob("*.jsonl.zst"))
    assert whole(gyre, run)


def test_an_import_that_was_killed_before_its_note_is_gone_on_with(gyre: Gyre, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / run_of(SMALL)
    folder.mkdir(parents=True)
    server = server_of(folder, folder.name, "always").start()
    asyncio.run(import_run(server.url, SMALL, folder))
    server.kill()
    assert json.loads(gyre("runs", "--json").stdout) == []
    done = gyre("log", "import", SMALL)
    assert (done.exit_code, done.stdout) == (0, f"{folder.name}\n")
    assert whole(gyre, folder.name)


def test_a_folder_of_anything_else_is_left_alone(gyre: Gyre, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / run_of(SMALL)
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    assert "exists already" in refusal(gyre("log", "import", SMALL))
    assert [each.name for each in folder.iterdir()] == ["notes.txt"]


def test_two_imports_of_one_run_do_not_meet(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / run_of(SMALL)
    folder.mkdir(parents=True)
    with sole(folder), pytest.raises(RunStopped, match="another gyre"):
        asyncio.run(bring(SMALL, tmp_path / "runs"))
    assert [each.name for each in folder.iterdir()] == ["control.lock"]
