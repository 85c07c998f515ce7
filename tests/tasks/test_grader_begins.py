"""A run of tests begins only where it is as it should be: what is amiss before that is no verdict on the work."""

import ctypes
import os
import socket
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task
from gyre.tasks.graders import run_tests
from gyre.tasks.sources import bring
from tests.tasks.layouts import nl2repo_folder, write

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
LANDLOCK = int(ctypes.CDLL(None).syscall(run_tests.CREATE_RULESET, None, ctypes.c_size_t(0), 1))
CLOSES = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import run_tests
for _ in range(20):
    run_tests.close(Path(sys.argv[2]))
"""


@pytest.mark.parametrize("text", ["", "import gone\n"], ids=["missing", "broken"])
def test_an_image_without_pytest_is_no_verdict(
    tmp_path: Path, graded: Graded, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    venv.create(tmp_path / "image")
    if text:
        (packages,) = (tmp_path / "image").glob("lib/python*/site-packages")
        (packages / "pytest.py").write_text(text)
    monkeypatch.setenv("PATH", f"{tmp_path}/image/bin:/usr/bin:/bin")
    nl2repo_folder(tmp_path / "source/thing", {"tests/test_one.py": "def test_a():\n    assert True\n"}, 1)
    (tmp_path / "source/thing/test_commands.json").write_text('["pytest"]')
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    with pytest.raises(subprocess.CalledProcessError) as ended:
        graded(task, lambda _, workspace: write(workspace, {"thing.py": ""}))
    assert ended.value.returncode == 125


@pytest.mark.skipif(LANDLOCK < 1, reason="the kernel has no Landlock")
def test_a_folder_that_the_kernel_will_not_close_is_told(tmp_path: Path) -> None:
    """It does so sixteen times for one process."""
    graders = str(Path(run_tests.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-I", "-c", CLOSES, graders, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "OSError" in done.stderr.splitlines()[-1]


def test_what_is_no_file_beside_the_tests_is_no_hindrance(tmp_path: Path, graded: Graded) -> None:
    text = (
        "import unittest, thing\nclass One(unittest.TestCase):\n    def test_a(self): self.assertEqual(thing.a(), 1)\n"
    )
    nl2repo_folder(tmp_path / "source/thing", {"tests/test_one.py": text}, 1)
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    os.mkfifo(task.path / "pipe")
    (task.path / "nowhere").symlink_to("gone")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(task.path / "s"))
    assert graded(task, lambda _, workspace: write(workspace, {"thing.py": "def a(): return 1\n"})) == 1.0
