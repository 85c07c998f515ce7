"""What tests of commands share: a run that was, as an archive, and the commands themselves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.cli.app import app
from services.source import Source, open_source
from tests.core.told import a_run
from tests.services.small_run import archive
from tests.services.told_run import archived

Gyre = Callable[..., Result]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the small run."""
    return asyncio.run(archive(tmp_path_factory.mktemp("small") / "r"))


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a run of two bursts."""
    return asyncio.run(archived(a_run(), tmp_path_factory.mktemp("told") / "run"))


@pytest.fixture
async def source(small_run: Path, tmp_path: Path) -> AsyncIterator[Source]:
    """The small run's log."""
    async with open_source(str(small_run), tmp_path) as opened:
        yield opened


@pytest.fixture
def gyre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gyre:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


def refusal(result: Result, code: int = 1) -> str:
    """The one line of a refused command."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    line = result.stderr.rstrip("\n")
    assert "\n" not in line
    assert "Traceback" not in line
    return line
