"""The absolute places that tasks of containers speak of, and what they are here.

/app (or another workdir) is the workspace, /tests the tests, /solution the reference solution and /logs a folder of the
execution's own, in which tests leave /logs/verifier/reward.txt or reward.json.
"""

import re
from pathlib import Path
from typing import Protocol

TESTS, SOLUTION, LOGS, APP = "/tests", "/solution", "/logs", "/app"
_TEXTS = ("instruction.md", "tests", "solution")
_MOST_BYTES = 1 << 20


def fixed_places(path: Path, workdir: str = "") -> tuple[str, ...]:
    """Those places that a task's instruction, tests or solution name.

    Not those that are the default of a variable, as in `${TESTS_DIR:-/tests}`.
    """
    names = sorted({TESTS, SOLUTION, LOGS, APP, *([workdir] if workdir else [])})
    wanted = {name: re.compile(rf"(?<![\w.~/}}$-])(?<!:-){re.escape(name)}(?![\w.-])") for name in names}
    texts = [_text(file) for top in _TEXTS for file in _files(path / top)]
    return tuple(name for name in names if any(wanted[name].search(text) for text in texts))


def _files(top: Path) -> list[Path]:
    return sorted(path for path in top.rglob("*") if path.is_file()) if top.is_dir() else [top] * top.is_file()


def _text(file: Path) -> str:
    if file.stat().st_size > _MOST_BYTES:
        return ""
    try:
        return file.read_text(encoding="utf-8")
    except ValueError:
        return ""


Places = tuple[tuple[str, Path], ...]
"""(absolute name, folder)"""
CONTAINED = {"harbor": "task", "terminal-bench": "tests"}
"""Layouts whose texts speak of these places -> where below its tests a brought task keeps what they call /tests."""


class _Placed(Protocol):
    """What is asked of a task here."""

    @property
    def kind(self) -> str: ...
    @property
    def workdir(self) -> str: ...
    @property
    def solution(self) -> Path: ...


def working_places(task: _Placed, workspace: Path, box: Path) -> Places:
    """For the agent, whose box holds a folder for logs."""
    if task.kind not in CONTAINED:
        return ((task.workdir, workspace),) if task.workdir else ()
    return ((task.workdir or APP, workspace), (LOGS, box / "logs"))


def names_of(task: _Placed, workspace: Path) -> tuple[str, ...]:
    """What a workspace is called in its task's texts."""
    return tuple(name for name, folder in working_places(task, workspace, workspace.parent) if folder == workspace)


def solving_places(task: _Placed, workspace: Path, box: Path) -> Places:
    """For the reference solution."""
    solution = ((SOLUTION, task.solution.parent),) if task.kind in CONTAINED else ()
    return (*working_places(task, workspace, box), *solution)


def grading_places(task: _Placed, workspace: Path, tests: Path, logs: Path) -> Places:
    """For the tests, which lie in `tests`."""
    if task.kind not in CONTAINED:
        return ((task.workdir, workspace),) if task.workdir else ()
    return ((task.workdir or APP, workspace), (TESTS, tests / CONTAINED[task.kind]), (LOGS, logs))
