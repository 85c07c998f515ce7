"""Runs a task's own scripts as the evaluator would: a fresh workspace, the tests outside it, the reward in a file."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]


@pytest.fixture
def graded(tmp_path: Path) -> Graded:
    """The reward of a task after some work was done in its workspace."""

    def run(task: Task, work: Work) -> float:
        workspace, reward = tmp_path / "workspace", tmp_path / "judge/reward/reward.txt"
        for folder in (workspace, reward.parents[1]):
            subprocess.run(["rm", "-rf", str(folder)], check=True)  # nested deeper than Python bears
        workspace.mkdir()
        reward.parent.mkdir(parents=True)
        if task.environment.is_dir():
            shutil.copytree(task.environment, workspace, dirs_exist_ok=True)
        work(task, workspace)
        env = {"PATH": os.environ["PATH"], "TESTS_DIR": str(task.tests), "REWARD_FILE": str(reward)}
        subprocess.run(["sh", str(task.tests / "test.sh")], cwd=workspace, env=env, timeout=100, check=True)
        return float(reward.read_text())

    return run


@pytest.fixture
def solved() -> Work:
    """The work that the task's own solution does."""

    def run(task: Task, workspace: Path) -> None:
        subprocess.run(["sh", str(task.solution)], cwd=workspace, check=True, timeout=30, capture_output=True)

    return run


@pytest.fixture
def python_with_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that need pytest find it: the Python on the path is this one."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
