"""What docs/scheduling.md shows is what happens: each command runs, each output is printed, each setting exists."""

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from gyre.config import Config
from gyre.config_schedule import CellsSection, ScheduleSection
from gyre.core.plan import Kind
from tests.services.conftest import Gyre

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scheduling.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SHOWN = [
    tuple(each.split("\n", 1)) for block in BLOCKS for each in re.split(r"^\$ gyre ", block, flags=re.MULTILINE) if each
]


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_each_command_on_the_page_runs_and_prints_what_is_shown(
    gyre: Gyre, told: Path, tmp_path: Path, command: str, output: str
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    result = gyre(*shlex.split(command.replace("RUN", str(told)).partition(" #")[0]))
    assert result.exit_code == 0, result.output
    if output.strip():
        assert result.stdout.split() == output.split()


def test_the_commands_are_found() -> None:
    assert len(SHOWN) >= 4


def test_each_setting_on_the_page_exists_and_has_the_default_that_is_shown() -> None:
    named = re.findall(r"`(schedule|cells)\.([a-z_]+)`", PAGE)
    assert {key for section, key in named if section == "schedule"} <= set(ScheduleSection.model_fields)
    assert {key for section, key in named if section == "cells"} <= set(CellsSection.model_fields)
    defaults = dict(re.findall(r'^\| `((?:schedule|cells)\.[a-z_]+)` \| `?"?([a-z0-9]+)"?`? \|', PAGE, re.MULTILINE))
    assert len(defaults) >= 5
    for key, shown in defaults.items():
        section, field = key.split(".")
        assert str(getattr(getattr(Config(), section), field)).lower() == shown


def test_each_kind_of_schedule_has_its_line() -> None:
    assert set(re.findall(r"^\| `([a-z]+)`(?: \(default\))? \| [a-z]", PAGE, re.MULTILINE)) >= set(get_args(Kind))


def test_the_picture_on_the_page_is_there() -> None:
    for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE):
        assert (ROOT / "docs" / name).read_bytes().startswith(b"\x89PNG")
