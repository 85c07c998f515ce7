"""The task's own settings of pytest: they neither cost honest work its score nor give a verdict that nobody earned."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task
from gyre.tasks.sources import bring
from tests.tasks.layouts import FIXED, SOURCE, patch, swe_folder

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
OLD = "import halves, pytest\n\ndef test_nothing():\n    assert halves.half(0) == 0\n"
NEW = OLD + "\ndef test_four():\n    assert halves.half(4) == 2\n"
BACKWARDS = "def pytest_collection_modifyitems(items):\n    items.reverse()\n    del items[0]\n"
pytestmark = pytest.mark.usefixtures("python_with_pytest")


def brought(tmp_path: Path, name: str, settings: str) -> Task:
    named = {"FAIL_TO_PASS": "test_four", "PASS_TO_PASS": "test_nothing"}
    changes = {key: json.dumps([f"test_halves.py::{test}"]) for key, test in named.items()}
    changes |= {"patch": patch("halves.py", SOURCE, FIXED), "test_patch": patch("test_halves.py", OLD, NEW)}
    swe_folder(tmp_path / "source/halves", {"test_halves.py": OLD, name: settings}, **changes)
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return task


def leaving(text: str) -> Work:
    return lambda _, workspace: (workspace / "halves.py").write_text(text) and None


@pytest.mark.parametrize(
    "settings",
    [
        "addopts = -x",
        "addopts = --maxfail=1 --sw",
        "addopts = --cov=halves --cov-report=term",
        "addopts = -n auto",
        "addopts = -n 2 --durations 2",
        "addopts = --reruns 3 --verbosity 3",
        "addopts = --cov halves --ignore halves",
        "addopts = --lf",
        "addopts = -k nothing",
        "addopts = -m 'not slow' elsewhere\nmarkers = slow",
        "addopts = --strict-config\nasyncio_mode = auto",
        "python_functions = test_n* test_f*",
        "filterwarnings = error\npythonpath = .",
    ],
)
def test_honest_work_earns_all_whatever_the_settings(tmp_path: Path, graded: Graded, settings: str) -> None:
    task = brought(tmp_path, "pytest.ini", f"[pytest]\n{settings}\n")
    assert graded(task, leaving(FIXED)) == 1.0
    assert graded(task, leaving(SOURCE)) == 0.0


def test_a_conftest_may_sort_and_leave_out(tmp_path: Path, graded: Graded) -> None:
    assert graded(brought(tmp_path, "conftest.py", BACKWARDS), leaving(FIXED)) == 1.0


ENDS = "import os\nos._exit(4)\n"


@pytest.mark.parametrize("settings", ["minversion = 99", "required_plugins = pytest-nowhere"])
def test_settings_that_pytest_refuses_are_no_verdict_but_pytests_own_words(
    tmp_path: Path, graded: Graded, capfd: pytest.CaptureFixture[str], settings: str
) -> None:
    with pytest.raises(subprocess.CalledProcessError) as ended:
        graded(brought(tmp_path, "pytest.ini", f"[pytest]\n{settings}\n"), leaving(FIXED))
    assert ended.value.returncode == 125
    assert settings.rsplit(maxsplit=1)[-1] in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conftest.py", "import halves\n"),
        ("pytest.ini", "[pytest]\naddopts = -p halves\n"),
        ("pytest.ini", "[pytest]\npythonpath = .\nminversion = 1\n"),
    ],
)
def test_work_that_ends_pytest_while_it_reads_settings_is_not_left_out(
    tmp_path: Path, graded: Graded, name: str, text: str
) -> None:
    assert graded(brought(tmp_path, name, text), leaving(ENDS)) == 0.0
