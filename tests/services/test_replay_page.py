"""docs/replay.md: each command on it runs on the recorded run, and prints what is shown below it."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.app import app
from tests.services.recorded import AGAIN, SMALL

PAGE = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SHOWN = [
    tuple(each.split("\n", 1)) for block in BLOCKS for each in re.split(r"^\$ ", block, flags=re.MULTILINE) if each
]
TABLE = re.findall(r"^\| [^|]*\| `gyre ([^`]*)`", PAGE, re.MULTILINE)
SERVER = ("log export", "log import")
"""Commands about a run's own folder."""
ELSEWHERE = {"doctor": (0, 7)}
"""Exit codes of commands that find things."""


def run(command: str, keys: str = "") -> str:
    """What one `gyre` command prints."""
    words = command.replace("OTHER", str(AGAIN)).replace("RUN", str(SMALL))
    result = CliRunner().invoke(app, shlex.split(words), input=keys, env={"COLUMNS": "200"})
    assert result.exit_code in ELSEWHERE.get(command.split(maxsplit=1)[0], (0,)), result.output
    return result.stdout


def piped(line: str) -> str:
    """What a line of commands prints: `printf KEYS | gyre ...`, or `gyre ... | jq ... | head`."""
    before, _, rest = line.rpartition("gyre ") if line.startswith("printf") else ("", "", line.removeprefix("gyre "))
    command, *after = re.split(r" \| (?=jq|head)", rest)
    keys = shlex.split(before)[1].replace("\\n", "\n") if before else ""
    text = run(command, keys)
    for part in after:
        text = subprocess.run(shlex.split(part), input=text, capture_output=True, text=True, check=True).stdout
    return text


def agrees(text: str, shown: str) -> bool:
    """Whether each line that is shown is there, in order; `...` stands for any text, on its own for any lines."""
    gap = r"[\s\S]*?"
    parts = [gap if line.strip() == "..." else _line(line) for line in shown.splitlines()]
    return re.fullmatch(r"\s*" + r"\s+".join(parts) + r"[\s]*", f" {text}") is not None


def _line(line: str) -> str:
    return r"\s+".join(".*?" if word == "..." else re.escape(word) for word in line.split())


@pytest.mark.parametrize(("line", "shown"), SHOWN, ids=[line[:60] for line, _ in SHOWN])
def test_each_command_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, shown: str
) -> None:
    if "| jq" in line and not shutil.which("jq"):
        pytest.skip("jq is not installed")
    monkeypatch.chdir(tmp_path)
    text = piped(line)
    assert agrees(text, shown), text


def test_what_is_shown_is_held_against_what_is_printed() -> None:
    assert agrees("a b\nc d\ne\n", "a ...\n...\ne")
    assert not agrees("a b\nc d\ne\n", "a ...\ne")
    assert not agrees("a b\n", "a")


@pytest.mark.parametrize("command", [each for each in TABLE if not each.startswith(SERVER)])
def test_each_command_of_the_table_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(command, "q\n")


def test_a_run_is_carried_elsewhere_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    carry, bring = (next(each for each in TABLE if each.startswith(form)) for form in SERVER)
    shutil.copy(SMALL, "run.jsonl.zst")
    run(bring)
    Path("run.jsonl.zst").unlink()
    result = CliRunner().invoke(app, [*carry.replace("RUN", "small").split(), "--runs", "elsewhere"])
    assert result.exit_code == 0, result.output
    assert Path("run.jsonl.zst").is_file()


def test_the_commands_are_found() -> None:
    assert len(SHOWN) >= 15
    assert len(TABLE) >= 15
