"""`gyre simulate`: rows of the paper, a scaled one, and a recorded run told again."""

import asyncio
import json
import random
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gyre.config import Config
from gyre.core.simulation.setting import Setting, Timings
from gyre.core.simulation.workload import Durations, Sampled
from schemas.runs import RunStarted
from services.source import open_source
from services.views.simulate_drawing import draw
from services.whatif import read_past
from tests.core.simulation.small import told as simulated
from tests.services.conftest import Gyre, refusal
from tests.services.recorded import SMALL
from tests.services.tampered import Message, tampered
from tests.services.told_run import archived

CONFIG = Config.of(
    {
        "run": {"steps": 9},
        "schedule": {"groups": 2, "executions": 4, "mu": 2, "phi": 0.5},
        "cells": {"count": 2, "concurrency": 8},
    }
)
TASKS = ("a", "b", "c")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a run whose durations are known."""
    timings = Timings(to_train=0.7, to_rollout=0.4, update=1.5, publication=0.3, launch=0.2)
    setting = Setting(CONFIG.plan(TASKS), capacity=8, timings=timings)
    work = Sampled(Durations(20.0, 0.5, 0.5), 8.0, 2, 4, random.Random(1))
    _, log = simulated(setting, work)
    (first, started), *later = log.pairs
    assert isinstance(started, RunStarted)
    pairs = [(first, started.model_copy(update={"config": CONFIG.table(), "tasks": TASKS})), *later]
    return asyncio.run(archived(pairs, tmp_path_factory.mktemp("recorded") / "run"))


def test_rows_of_the_paper_come_with_its_hours_and_residuals(gyre: Gyre) -> None:
    result = gyre("simulate", "--preset", "table1", "--row", "E0", "--row", "C0", "--seeds", 1, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["rows"]) == ["E0", "C0"]
    assert (found["rows"]["E0"]["paper_hours"], found["rows"]["C0"]["paper_hours"]) == (16.12, 23.23)
    assert found["rows"]["E0"]["staleness"] == 1.375
    assert found["rows"]["C0"]["staleness"] == 1.5
    assert all(abs(row["residual_percent"]) < 12 for row in found["rows"].values())
    assert found["rms_percent"] < 12
    assert found["broken_orderings"] == []
    assert [each.partition(":")[0] for each in found["assumed"]] == ["fitted to Table 1", "fitted too"]


def test_a_scaled_run_says_how_long_it_took(gyre: Gyre) -> None:
    result = gyre("simulate", "--preset", "scale", "--cells", 64, "--executions", 1000)
    assert result.exit_code == 0, result.output
    assert "1536 executions on 64 cells, 6 steps" in result.stdout


def test_a_recorded_run_told_again_takes_as_long(gyre: Gyre, recorded: Path) -> None:
    result = gyre("simulate", "--from", recorded, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["calibrated_on"], len(found["steps"]), found["settings"]) == (3, 9, [])
    assert (found["in_sample"]["steps"], found["held_out"]["steps"], found["unseen"]) == (3, 6, [])
    assert abs(found["held_out"]["error_percent"]) < 5
    page = " ".join(gyre("simulate", "--from", recorded).stdout.split())
    assert "3 steps it was calibrated on:" in page
    assert "6 held-out steps after them:" in page


def test_other_settings_give_another_run_of_the_same_executions(gyre: Gyre, recorded: Path) -> None:
    result = gyre("simulate", "--from", recorded, "--set", "schedule.mu=1", "--set", "schedule.phi=1.5", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["settings"] == ["schedule.mu=1", "schedule.phi=1.5"]
    assert found["staleness"] > 1.0
    page = gyre("simulate", "--from", recorded, "--set", "schedule.mu=1", "--set", "schedule.phi=1.5").stdout.split()
    assert "retold with schedule.mu=1, schedule.phi=1.5" in " ".join(page)


def test_it_is_drawn_like_a_real_run(gyre: Gyre, recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = gyre("simulate", "--from", recorded, "--plot", "again.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "again.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give one of --preset and --from"),
        (("--preset", "table1", "--from", "run"), "give one of --preset and --from"),
        (("--preset", "table9"), "no such experiment; one of table1"),
        (("--preset", "table1", "--row", "Z9"), "no such row; one of A0"),
        (("--from", "run", "--relief", "1.5"), "a share in [0, 1)"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    gyre: Gyre, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refusal(gyre("simulate", *arguments), 2)


async def test_a_call_that_nobody_can_read_hides_none_behind_it(tmp_path: Path) -> None:
    def begun_with_a_broken_one(_: list[Message], calls: list[Message]) -> None:
        calls.insert(0, (calls[0][0], {"run": "no commit"}))

    async with open_source(str(SMALL), tmp_path) as source:
        relief = (await read_past(source)).relief
    async with tampered(SMALL, tmp_path, begun_with_a_broken_one) as source:
        assert (await read_past(source)).relief == relief > 0.0


@pytest.mark.parametrize("option", ["--seeds", "--cells", "--executions"])
def test_what_would_never_end_is_a_wrong_use(gyre: Gyre, option: str) -> None:
    result = gyre("simulate", "--preset", "scale", option, 10**12)
    assert (result.exit_code, result.stdout) == (2, "")
    assert option in result.stderr


def test_a_setting_that_cannot_be_kept_is_refused(gyre: Gyre, recorded: Path) -> None:
    assert "schedule.phi" in refusal(gyre("simulate", "--from", recorded, "--set", "schedule.phi=0.3"))
    assert "neither an archive nor a run" in refusal(gyre("simulate", "--from", "nobody"))


def test_settings_of_a_run_told_again_are_no_markup() -> None:
    nothing = {"steps": 0}
    told = {"run": "r", "calibrated_on": 1, "settings": ["a.b=[/c]"], "staleness": 1.0, "steps": [], "unseen": []}
    drawn = StringIO()
    draw(told | {"in_sample": nothing, "held_out": nothing}, Console(file=drawn))
    assert "retold with a.b=[/c]: mean staleness 1" in drawn.getvalue()
