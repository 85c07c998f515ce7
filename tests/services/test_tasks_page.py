"""What docs/tasks.md shows is what happens: its files make a task, its commands run and print what is shown."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from gyre.tasks.sources import bring
from tests.services.conftest import Gyre

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tasks.md").read_text()
FILES = re.findall(r"^File `([^`]+)`:\n```\w+\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SHOWN = [
    tuple(each.split("\n", 1)) for block in BLOCKS for each in re.split(r"^\$ gyre ", block, flags=re.MULTILINE) if each
]


def written(folder: Path) -> None:
    for name, text in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def plain(text: str) -> list[str]:
    """Words; durations are whatever they are, and a table is as wide as they make it."""
    return re.sub(r"[━┏┳┓┡╇┩└┴┘─]+", "", re.sub(r"\b\d+\.\d\b", "#", text)).split()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_each_command_on_the_page_runs_and_prints_what_is_shown(
    gyre: Gyre, tmp_path: Path, command: str, output: str
) -> None:
    written(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    result = gyre(*shlex.split(command))
    assert result.exit_code in ((0, 1) if command.startswith("tasks screen") else (0,)), result.output
    if output.strip():
        assert plain(result.stdout) == plain(output)


def test_the_files_and_commands_are_found() -> None:
    assert len(FILES) == 5
    assert len(SHOWN) >= 7


def test_the_kinds_of_source_are_all_brought(tmp_path: Path) -> None:
    written(tmp_path)
    for kind in ("harbor/count-the-votes", "swe/spans", "nl2repo/tinyconf"):
        shutil.copytree(ROOT / "examples" / kind, tmp_path / "my" / kind.partition("/")[2])
    tasks = bring(str(tmp_path / "my"), tmp_path / "tasks")
    assert {task.kind for task in tasks} == {"folder", "harbor", "swe", "nl2repo"}


def test_links_on_the_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
