"""What a configured schedule means for processes, and what `gyre check` says of it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gyre.config import Config
from gyre.errors import ConfigError
from services.check import check_config
from services.cli.app import app
from services.supervisor import services_of

SMALL = ["tasks.train=words:2:train", "tasks.heldout=words:2:heldout"]


def _checked(*overrides: str) -> dict[str, object]:
    return check_config(Config.load(None, [*SMALL, *overrides]))


def test_standalone_engines_are_cells_behind_the_elastic_ones() -> None:
    services = services_of(Config.load(None, ["cells.count=2", "cells.standalone=2"]))
    assert [cell for name, cell in services if name == "cell"] == [0, 1, 2, 3]


def test_executions_beyond_n_are_counted() -> None:
    assert _checked("run.steps=3", "schedule.oversample=2")["executions"] == 3 * 4 * 10


def test_a_mean_that_hangs_on_when_groups_become_ready_is_not_promised() -> None:
    found = _checked("schedule.dispatch=continuous", "cells.concurrency=100")
    assert (found["staleness"], found["staleness_long_run"]) == (None, 3.0)  # Q_c / B + (mu - 1) / 2 at least


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["schedule.rho_min=1"], True),
        (["schedule.rho_min=0.75"], False),
        (["schedule.rho_min=0.76"], True),  # 3.04 groups are 4
        (["schedule.rho_min=1", "schedule.stream=false"], False),
        (["schedule.rho_min=1", "cells.count=1"], False),
        (["schedule.rho_min=1", "schedule.kind=async", "cells.trainers=1"], False),
    ],
)
def test_a_supply_that_no_satellite_can_find_while_streaming_is_warned_of(overrides: list[str], warned: bool) -> None:
    assert bool(_checked(*overrides)["warnings"]) is warned


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (['harness.command=["/opt/agents/not-here"]'], True),
        (['harness.command=["not-on-any-path", "--yolo"]'], True),
        (['harness.command=["/bin/sh", "-c", "exit"]'], False),
        (['harness.command=["sh", "-c", "exit"]'], False),
        ([], False),  # {python}
    ],
)
def test_a_harness_that_this_machine_has_not_is_warned_of(overrides: list[str], warned: bool) -> None:
    assert ("every execution would fail" in str(_checked(*overrides)["warnings"])) is warned


@pytest.mark.parametrize(
    ("command", "warned"),
    [("not-on-any-path {tests}", True), ("/not/here", True), ("sh judge.sh", False), ("{tests}/judge", False)],
)
def test_an_evaluator_that_this_machine_has_not_is_warned_of(command: str, warned: bool) -> None:
    found = str(_checked("evaluator.kind=command", f"evaluator.command={command}")["warnings"])
    assert (f"evaluator.command = {command.split(maxsplit=1)[0]}: no such program here" in found) is warned


def test_a_script_of_the_evaluator_that_this_machine_has_not_is_warned_of() -> None:
    found = str(_checked("evaluator.kind=command", "evaluator.command=sh ./nope.sh {tests}")["warnings"])
    assert "evaluator.command = ./nope.sh: no such file here" in found
    assert "unless the work holds it, nothing would get a valid score" in found


def test_the_warning_names_field_value_and_fix(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[schedule]\nrho_min = 1.0\n")
    arguments = [word for override in SMALL for word in ("--set", override)]
    said = CliRunner().invoke(app, ["check", str(tmp_path / "run.toml"), *arguments]).stdout
    (line,) = [each for each in said.splitlines() if each.startswith("warnings")]
    assert "schedule.rho_min = 1: asks for 4 groups" in line
    assert line.endswith("set it to at most 0.75")


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["sandbox.kind=bubblewrap"],
            "sandbox.kind = bubblewrap: bwrap is not installed: install the package bubblewrap",
        ),
        (["evaluator.sandbox=bubblewrap"], "evaluator.sandbox = bubblewrap: bwrap is not installed"),
    ],
)
def test_a_sandbox_that_cannot_work_here_is_refused_before_anything_starts(
    overrides: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError) as caught:
        _checked(*overrides)
    assert str(caught.value).startswith(line)
    assert str(caught.value).endswith("or use process, where agents are trusted")
