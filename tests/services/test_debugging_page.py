"""docs/debugging.md: its walk is walked, and what it shows is what the commands say."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from gyre.core.diagnosis.doctor import KINDS
from gyre.tasks.word_folders import write_word_tasks
from services.exits import EXIT_FOUND
from tests.services.conftest import Gyre

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "debugging.md").read_text()
ARCHIVE = "broken-tests.jsonl.zst"


def blocks() -> list[tuple[str, list[str]]]:
    """Each command with the lines shown under it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ gyre "), []))
            else:
                found[-1][1].append(" ".join(line.split()))
    return found


@pytest.mark.timeout(180)
def test_a_fallen_reward_leads_to_its_cause(gyre: Gyre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    shutil.copy(ROOT / "tests" / "data" / "runs" / ARCHIVE, tmp_path)
    write_word_tasks(tmp_path / "mended", 3, 64, "train")
    for command, shown in blocks():
        result = gyre(*shlex.split(command))
        assert result.exit_code == (EXIT_FOUND if command.startswith("doctor") else 0), result.output
        said = iter(" ".join(line.split()) for line in result.stdout.splitlines())
        missing = [line for line in shown if not any(line in other for other in said)]
        assert missing == [], command


def test_every_finding_is_on_the_page_and_no_other() -> None:
    table = PAGE.partition("| finding | speaks when |")[2]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([a-z-]+)`", " ".join(first))) == set(KINDS)
