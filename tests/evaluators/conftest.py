"""Work to be judged, and places to judge it in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gyre.evaluators.command import CommandEvaluator
from gyre.evaluators.port import Verdict
from gyre.evaluators.template import Template
from gyre.sandboxes.port import Limits
from gyre.tasks.folder import Task, load_task
from services.grading import Sandboxed
from tests.sandboxes.stand import KINDS, make

LIMITS = Limits()

TASK_FILE = 'version = "1.0"\n[verifier]\ntimeout_sec = {seconds}\n'


@dataclass
class Work:
    """A task, and what somebody left for it."""

    folder: Path
    run: Sandboxed

    @property
    def box(self) -> Path:
        return self.folder / "work/x.eval"

    @property
    def left(self) -> Path:
        """The judged state."""
        return self.box / "ws"

    def task(self, test: str = "exit 0", seconds: float = 30.0, **files: str) -> Task:
        """A task whose tests are this script; `files` lie beside it."""
        path = self.folder / "tasks/job"
        (path / "tests").mkdir(parents=True, exist_ok=True)
        (path / "task.toml").write_text(TASK_FILE.format(seconds=seconds))
        (path / "instruction.md").write_text("Write the sum of 2 and 2 to out.\n")
        (path / "tests/test.sh").write_text(f"#!/bin/sh\n{test}\n")
        for name, text in files.items():
            (path / "tests" / name.replace("_py", ".py")).write_text(text)
        return load_task(path)

    def leaves(self, **files: str) -> None:
        """What the agent left: NAME_py is NAME.py."""
        self.left.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = self.left / name.replace("_py", ".py").replace("_sh", ".sh")
            path.write_text(text)
            path.chmod(0o755)

    async def verdict(self, task: Task, command: str | None = None, limit: float = 60.0) -> Verdict:
        template = Template.parse(command, self.folder) if command else None
        self.left.mkdir(parents=True, exist_ok=True)
        return await CommandEvaluator(self.run, template).evaluate(task, self.left, self.box, limit)


@pytest.fixture(params=KINDS)
async def work(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Work]:
    """In each kind of sandbox that works here; pods keep the same contract in tests/sandboxes."""
    async with working(request.param, tmp_path) as work:
        yield work


@asynccontextmanager
async def working(kind: str, folder: Path) -> AsyncIterator[Work]:
    """Work in one kind of sandbox; skips the test where there is none."""
    stand = make(kind, LIMITS)
    try:
        yield Work(folder, Sandboxed(stand.sandbox, kind))
    finally:
        await stand.sandbox.close()
