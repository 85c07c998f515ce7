"""What docs/harnesses.md shows is what happens."""

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gyre.config import Config
from gyre.proxy.adapters.registry import KNOWN
from services.cli.app import app

PAGE = (Path(__file__).parents[3] / "docs" / "harnesses.md").read_text()


def blocks(language: str, text: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_worked_example_gives_the_tree_that_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = PAGE[PAGE.index("## Adding one") :]
    (tmp_path / "quill.jsonl").write_text(blocks("json", lesson)[0])
    (tmp_path / "quill.py").write_text(blocks("python", lesson)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command, _, shown = blocks("console", lesson)[0].partition("\n")
    result = CliRunner().invoke(app, command.removeprefix("$ gyre ").split())
    assert (result.exit_code, result.stdout) == (0, shown)


def test_each_configuration_on_the_page_is_one() -> None:
    tables = [tomllib.loads(block) for block in blocks("toml") if "[harness]" in block]
    assert len(tables) >= 6
    for table in tables:
        assert Config.of(table).harness.command


def test_each_known_adapter_has_its_line() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)) == {adapter.name for adapter in KNOWN}
