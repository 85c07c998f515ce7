"""What README and docs say is there: links, commands with their options, settings, variables, configurations."""

import os
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from gyre.config import Config
from services.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/README.md")])
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
TASK_FILE = re.compile(r"^File `[^`]+`:\n```.*?^```", re.DOTALL | re.MULTILINE)
SOURCES = {".py", ".yaml", ".sh", ".mjs", ".gpu", ".example"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not heading or heading in anchors(file), target


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop().resolve()
        if page in seen:
            continue
        seen.add(page)
        linked = (page.parent / target for target in re.findall(r"\]\(([^)\s#:]+\.md)(?:#[^)]*)?\)", prose(page)))
        ahead += [each for each in linked if each.is_file()]
    assert {name(page) for page in (ROOT / "docs").glob("*.md")} - {name(page) for page in seen} == set()


def configurations() -> Iterator[tuple[str, str]]:
    """Each TOML block that is a run's."""
    for page in PAGES:
        for at, (_, kind, text) in enumerate(FENCE.findall(TASK_FILE.sub("", page.read_text()))):
            if kind == "toml":
                yield f"{name(page)}-{at}", textwrap.dedent(text)


@pytest.mark.parametrize("text", [pytest.param(text, id=place) for place, text in configurations()])
def test_each_configuration_that_is_shown_is_accepted_as_it_stands(text: str) -> None:
    table = tomllib.loads(text)
    assert Config.of(table).model_fields_set == set(table)


def test_the_configurations_are_found() -> None:
    assert len(list(configurations())) >= 15


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `gyre ...`, but for what follows a pipe or says what it is for."""
    text = page.read_text()
    shown = "\n".join(block for _, _, block in FENCE.findall(text))
    found = re.findall(r"`gyre ([a-z][^`]*)`", prose(page))
    found += re.findall(r"(?:^|\$ |\| |-T )gyre ([a-z][^\n|]*)", shown, re.MULTILINE)
    for line in found:
        yield shlex.split(line.partition(" #")[0].replace("\n", " ").replace("\\", "").replace("...", ""))


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and the words behind its name."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, words[0]
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page))], ids=name)
def test_each_command_exists_with_the_options_it_is_given(page: Path) -> None:
    for words in commands(page):
        command, rest = command_of(words)
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
        ours = rest[: rest.index("--")] if "--" in rest else rest
        given = {word.partition("=")[0] for word in ours if re.match(r"--?[a-z]", word)}
        assert given - known == set(), words


def exists(key: str) -> bool:
    """Whether the configuration has this dotted key; free tables hold any."""
    section: Any = Config
    for part in key.split("."):
        fields = getattr(section, "model_fields", None)
        if fields is None:
            return True
        if part not in fields:
            return False
        section = fields[part].annotation
    return True


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_setting_that_is_named_exists(page: Path) -> None:
    sections = "|".join(Config.model_fields)
    named = re.findall(rf"`((?:{sections})(?:\.[a-z_]+)+)(?: = [^`]*)?`", prose(page))
    named += re.findall(rf"--set '?((?:{sections})(?:\.[a-z_]+)+)=", page.read_text())
    modules = {key for key in named if (ROOT / key.replace(".", "/")).with_suffix(".py").is_file()}
    files = {key for key in named if key.endswith((".json", ".md", ".png", ".py", ".toml", ".txt"))}
    assert {key for key in named if not exists(key)} - modules - files == set()


def test_each_variable_that_is_named_is_read_somewhere() -> None:
    used: set[str] = set()
    for folder, inner, files in os.walk(ROOT):
        inner[:] = [each for each in inner if not each.startswith(".") and each not in {"runs", "docs"}]
        for file in files:
            if Path(file).suffix in SOURCES:
                used |= set(re.findall(r"GYRE_[A-Z_]+", (Path(folder) / file).read_text(errors="replace")))
    told = {word for page in PAGES for word in re.findall(r"\bGYRE_[A-Z_]+\b", page.read_text())}
    assert told - used == set()
