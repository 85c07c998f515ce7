"""A run with a sink of its own, as a user starts it: asked while it goes on, and afterwards by its archive."""

import asyncio
from pathlib import Path

import pytest

from gyre.warehouse.live import DESK
from services.asking import asking
from tests.e2e.living import Command

pytestmark = pytest.mark.timeout(200)

CONFIG = """
[run]
name = "sunk"
steps = 2
folder = "{folder}"
[model]
path = "modelled"
[modelled]
token_seconds = 0.005
training_seconds = 0.1
[tasks]
train = "words:16:train"
heldout = "words:2:heldout"
[schedule]
groups = 2
executions = 2
mu = 1
tau_seconds = 0.05
[cells]
count = 2
concurrency = 4
[rollout]
max_tokens = 32
context_tokens = 300
[harness]
command = ["{{python}}", "-I", "-S", "{{stub}}", "--calls", "2", "--tokens", "16", "--most", "32"]
[packing]
row_tokens = 300
micro_step_tokens = 300
[evaluation]
episodes = 0
[analytics]
sink = true
"""


def config(folder: Path) -> Path:
    path = folder / "sunk.toml"
    path.write_text(CONFIG.format(folder=folder / "runs"))
    return path


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
