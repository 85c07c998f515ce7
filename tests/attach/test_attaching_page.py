"""What docs/attaching.md shows is what happens: each of its commands, over a run at rest on a server of its own."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

from bus.archive import import_run
from bus.archive_log import open_archive
from bus.credentials import server_of
from bus.log import Stored
from schemas.training import OptimizerStepped
from services.cli.app import app
from services.place import Note

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests/data/runs/small.jsonl.zst"
PAGE = (ROOT / "docs/attaching.md").read_text()
COMMANDS = re.findall(r"^\$ (gyre attach .*)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder as the page has it: the examples, the schemas, the first consumer, and the run."""
    folder = tmp_path_factory.mktemp("desk")
    for name in ("examples", "docs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "steps.py").write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    run = folder / "runs/small"
    run.mkdir(parents=True)
    server = server_of(run, "small", "laptop").start()
    try:
        asyncio.run(import_run(server.url, ARCHIVE, run))
        Note("small", server.url, "laptop").write(run)
    finally:
        server.stop()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def at_desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{shutil.os.environ['PATH']}")  # type: ignore[attr-defined]
    return desk


def attach(word: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Run the page's command that holds this word, on the recorded run; what it printed."""
    (command,) = [each for each in COMMANDS if word in each]
    words = shlex.split(command.replace(" demo", " small"))[1:]
    done = CliRunner().invoke(app, words)
    printed = capfd.readouterr()
    assert done.exit_code == 0, (done.output, printed.err)
    return printed.out


async def events_of(stream: str = "EV") -> list[tuple[Stored, int, object]]:
    with open_archive(ARCHIVE) as archive:
        log = archive.ev if stream == "EV" else archive.calls
        stored = [each async for each in log.read()]
    return [(each, index, event) for each in stored if each.commit for index, event in enumerate(each.commit.events)]


STEPS = [
    (stored.sequence, index, event)
    for stored, index, event in asyncio.run(events_of())
    if isinstance(event, OptimizerStepped)
]


def test_every_command_of_the_page_is_tried_here() -> None:
    assert len(COMMANDS) == 6


def test_the_first_consumer_prints_each_step(at_desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printed = attach("steps.py:", capfd)
    assert printed.splitlines() == [f"{seq}.{i} {event.step} {event.gradient_norm:.3f}" for seq, i, event in STEPS]


def test_the_alert_says_nothing_of_a_run_that_learns(at_desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    attach("reward_alert.py", capfd)
    assert not (at_desk / "alerts.jsonl").exists()
    kept = json.loads((at_desk / "runs/small/attached/alerts.json").read_text())
    assert kept["state"]["fallen"] is False
    assert len(kept["state"]["recent"]) == 16


def test_the_counter_that_begins_now_has_nothing_to_count(at_desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert attach("token_counter.py", capfd) == "calls=0 prefill=0 cached=0 sampled=0\n"


def test_the_export_has_each_event_once(at_desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    attach("parquet_export.py", capfd)
    table = ds.dataset(at_desk / "events").to_table().sort_by([("sequence", "ascending"), ("index", "ascending")])
    found = list(zip(*(table[name].to_pylist() for name in ("sequence", "index", "type")), strict=True))
    assert found == [(stored.sequence, i, event.type) for stored, i, event in asyncio.run(events_of())]  # type: ignore[attr-defined]


def test_plain_nats_reads_it_without_anything_of_ours(at_desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printed = attach("plain.py", capfd)
    assert printed.splitlines() == [f"{seq} {event.step} {event.seconds}" for seq, _, event in STEPS]


@pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="node and npm are not here")
def test_node_reads_it_and_finds_every_event_as_the_schemas_say(
    at_desk: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = shutil.copytree(ROOT / "examples/consumers/node", tmp_path / "node", ignore=lambda *_: ["node_modules"])
    npm = ("npm", "ci", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error")
    fetched = subprocess.run(npm, cwd=program, capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(f"npm ci: {fetched.stderr.splitlines()[-1:]}")
    (command,) = [each for each in COMMANDS if "node" in each]
    words = shlex.split(command.replace(" demo", " small").replace("examples/consumers/node", str(program)))[1:]
    assert CliRunner().invoke(app, words).exit_code == 0
    printed = capfd.readouterr().out.splitlines()
    events = [event for _, _, event in asyncio.run(events_of())]
    checked = int(printed[-1].split()[2])
    assert printed[-1] == f"{len(events)} events, {checked} checked, 0 invalid"
    assert checked > len(events) / 2
    assert [line.split()[:2] for line in printed[:-1]] == [[str(seq), str(event.step)] for seq, _, event in STEPS]
