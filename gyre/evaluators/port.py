"""What is asked of an evaluator: the score of a workspace."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gyre.tasks.folder import Task


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one assessment found."""

    score: float | None
    """In [0, 1]; None when not valid."""
    detail: str = ""
    """One line for people."""

    @property
    def valid(self) -> bool:
        """Whether there is a score: an evaluator that failed has none, which is not zero."""
        return self.score is not None


class Evaluator(Protocol):
    """Scores workspaces."""

    async def evaluate(self, task: Task, workspace: Path, box: Path, limit_seconds: float) -> Verdict:
        """Score a workspace, which may be changed by it.

        Args:
            task: what was to be done.
            workspace: what was left, in a folder of its own.
            box: a private folder outside the workspace for everything else.
            limit_seconds: the most that it may take, besides the task's own limit.
        """


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    exit_code: int | None
    """None: it was ended from outside, by its deadline for one."""
    said: str
    """The last line of its output."""


class Run(Protocol):
    """Runs a command in a sandbox of the caller's choice."""

    async def __call__(
        self, arguments: tuple[str, ...], folder: Path, box: Path, environment: Mapping[str, str], seconds: float
    ) -> Finished:
        """Run it in `folder` for at most so many seconds."""
