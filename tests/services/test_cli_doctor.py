"""`gyre doctor` on recorded runs, healthy and faulty, and on one that goes on."""

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import typer

from bus import subjects
from bus.jetstream import Bus
from bus.server import NatsServer
from gyre.config import Config
from gyre.core.diagnosis.doctor import KINDS
from schemas.envelope import Event
from schemas.roles import CellRegistered
from schemas.runs import RunFinished, RunStarted
from services.cli.app import app
from services.doctor import diagnose, is_live
from services.exits import EXIT_FOUND
from services.place import Note, Place
from services.source import open_source
from tests.core.world import DIGEST, WEIGHTS, registered
from tests.services.conftest import Gyre, refusal

RUNS = Path(__file__).parents[1] / "data" / "runs"
FOUND = {
    "small": set(),
    "again": set(),
    "broken-tests": {"reward-cliff", "zero-variance"},
    "crashing-tests": {"evaluator-outage"},
    "failing-harness": {"harness-failures", "zero-variance"},
    "hanging-harness": {"harness-timeouts", "zero-variance"},
    "unread-calls": {"unparsed-tool-calls", "zero-variance"},
    "babble": {"no-tool-calls", "truncated-answers", "zero-variance"},
    "dying-cell": {"cell-flapping"},
}
COMMANDS = set(typer.main.get_group(app).commands)
CONFIG = {"cells": {"count": 2, "heartbeat_seconds": 0.05, "lost_after_seconds": 1.0}}


@pytest.mark.parametrize("run", FOUND)
def test_a_recorded_run_is_told_what_is_wrong_with_it_and_nothing_else(gyre: Gyre, run: str) -> None:
    result = gyre("doctor", RUNS / f"{run}.jsonl.zst", "--json")
    assert result.exit_code == (EXIT_FOUND if FOUND[run] else 0), result.output
    told = json.loads(result.stdout)
    names = [each["name"] for each in told["findings"]]
    assert set(names) == FOUND[run]
    assert "zero-variance" not in names[:-1]
    assert (told["run"], told["live"]) == (run, False)
    assert {each["next"].split()[1] for each in told["findings"]} <= COMMANDS


def test_the_break_of_the_tests_is_told_with_the_assessment_that_shows_it(gyre: Gyre) -> None:
    archive = RUNS / "broken-tests.jsonl.zst"
    result = gyre("doctor", archive, "--only", "reward-cliff")
    assert result.exit_code == EXIT_FOUND
    assert "ModuleNotFoundError: No module named 'grader'" in result.stdout
    evidence, command = [line.split(maxsplit=1)[1] for line in result.stdout.splitlines()[-2:]]
    shown = json.loads(gyre("log", "show", archive, evidence.split(".")[0]).stdout)
    assert shown["events"][0]["type"] == "AssessmentRecorded"
    assert command == f"gyre replay {archive} --why {evidence.split()[0]}"


def test_a_healthy_run_is_one_line_and_exit_code_0(gyre: Gyre) -> None:
    result = gyre("doctor", RUNS / "small.jsonl.zst")
    assert (result.exit_code, result.stdout) == (0, "small: nothing found in 1059 events\n")


def test_every_finding_is_listed_with_what_it_means(gyre: Gyre) -> None:
    told = gyre("doctor", "--list").stdout
    assert all(f"{name} " in told and kind.means in told for name, kind in KINDS.items())
    listed = [json.loads(line) for line in gyre("doctor", "--list", "--json").stdout.splitlines()]
    assert [each["name"] for each in listed] == list(KINDS)


def test_what_cannot_be_looked_for_or_at_is_one_line(gyre: Gyre) -> None:
    assert "doctor: give a run or an archive" in refusal(gyre("doctor"), 2)
    assert "--only happiness: no such finding" in refusal(gyre("doctor", "r", "--only", "happiness"), 2)
    assert "neither an archive nor a run" in refusal(gyre("doctor", "nobody"))


async def test_a_cell_that_is_not_heard_in_a_run_that_goes_on_is_about_to_be_lost(tmp_path: Path) -> None:
    """Two cells are registered, one beats; once the run has said its end nobody listens any more."""
    async with _going_on(tmp_path) as (bus, folder):
        beating = asyncio.create_task(_beat(bus, "a"))
        try:
            async with open_source(folder.name, tmp_path) as source:
                report = await diagnose(source)
                assert report.live
                assert [each.name for each in report.findings] == ["lease-lapsing"]
                assert "cell 1 (b) was not heard" in report.findings[0].says
                await _say(bus, folder, RunFinished(steps=0, dispatched=0, launched=0, terminated=0))
                ended = await diagnose(source)
                assert (ended.live, ended.findings) == (False, ())
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


@asynccontextmanager
async def _going_on(runs: Path) -> AsyncIterator[tuple[Bus, Path]]:
    """A run that somebody supervises."""
    folder = runs / "r"
    folder.mkdir()
    server = await asyncio.to_thread(NatsServer(folder / "nats", "laptop").start)
    try:
        Note("r", server.url, "laptop").write(folder)
        bus = await Bus.connect(server.url, "r", "control", "control", folder, create=True, sync="laptop")
        begin = RunStarted(
            config=Config.of(CONFIG).table(), config_digest=DIGEST, seed=0, code_version="0", weights=WEIGHTS,
            tasks=("t",), heldout=("h",),
        )  # fmt: skip
        await _say(bus, folder, begin, registered(0, "a"), registered(1, "b"))
        assert not is_live(folder)
        with (folder / "control.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert is_live(folder)
            yield bus, folder
        await bus.close()
    finally:
        await asyncio.to_thread(server.stop)


async def _say(bus: Bus, folder: Path, *events: Event) -> None:
    for event in events:
        service = "cell" if isinstance(event, CellRegistered) else "control"
        entity = ("cell", event.cell) if isinstance(event, CellRegistered) else ("run",)
        place = Place(service, service, "r", folder, "", Config())
        await bus.ev.append(place.subject(*entity), place.commit((event,), as_of=0, correlation="r"))


async def _beat(bus: Bus, instance: str) -> None:
    while True:
        await bus.tell(subjects.hint("r", "heartbeat", 0), instance.encode())
        await asyncio.sleep(0.02)
