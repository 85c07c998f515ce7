"""A run with a sink of its own, as a user starts it: asked while it goes on, and afterwards by its archive."""

import asyncio
from pathlib import Path

import pytest

from gyre.warehouse.live import DESK
from services.asking import asking
from tests.e2e.living import Command, write_modelled

pytestmark = pytest.mark.timeout(200)


def config(folder: Path) -> Path:
    return write_modelled(folder, "sunk", mu=1, sink="true", calls=2, tokens=16, most=32)


async def attended(command: Command, note: Path) -> None:
    """Wait until the run's sink answers."""
    async with asyncio.timeout(60):
        while not note.is_file():
            assert command.process.returncode is None
            await asyncio.sleep(0.05)


async def test_a_run_is_asked_through_its_sink_and_its_archive_has_columns(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    command = await Command.start("train", config(tmp_path), "--json")
    await attended(command, runs / "sunk" / "warehouse" / DESK)
    async with asking("sunk", runs) as asked:
        assert (await asked.rows("SELECT finished FROM runs WHERE run = {run:String}"))[0] in (
            {"finished": False}, {"finished": True},
        )  # fmt: skip
        assert [part.behind for part in asked.parts] == [part.head - part.reached for part in asked.parts]
    result = await command.result()
    archive = Path(result["archive"])
    assert (archive.parent / f"{archive.name}.columns" / "manifest.json").is_file()
    async with asking(str(archive), runs) as asked:
        assert await asked.rows("SELECT count() AS n, countIf(pearson > 0.99) AS close FROM steps") == [
            {"n": 2, "close": 2}
        ]
        assert (await asked.rows("SELECT count() AS n FROM executions"))[0]["n"] == result["terminated"]
    assert not (runs / "sunk" / "warehouse" / DESK).exists()
