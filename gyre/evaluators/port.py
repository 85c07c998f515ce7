"""What is asked of an evaluator: the score of a workspace, and by which rules it was found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gyre.errors import GyreError
from gyre.tasks.folder import Task
from schemas.rewards import EvaluatorKind, Provenance


class EvaluatorError(GyreError):
    """An evaluator cannot be used; one line with the way out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one assessment found."""

    score: float | None
    """In [0, 1]; None when not valid."""
    detail: str = ""
    """One line for people."""
    provenance: Provenance | None = None
    """Who judged; None when nobody came to."""
    transcript: bytes = b""
    """What a judge asked, was answered and ran, as lines of JSON, to be kept beside the log."""

    @property
    def valid(self) -> bool:
        """Whether there is a score: an evaluator that failed has none, which is not zero."""
        return self.score is not None


class Evaluator(Protocol):
    """Scores workspaces."""

    @property
    def kind(self) -> EvaluatorKind:
        """What sort it is."""

    @property
    def title(self) -> str:
        """What it is called in the log: `tests`, a command line, or a model and where it is asked."""

    def digest(self, tasks: Iterable[Task]) -> str:
        """SHA-256, hex, of all that decides the scores of these tasks. Raises EvaluatorError: a file is unreadable."""

    async def evaluate(self, task: Task, workspace: Path, box: Path, limit_seconds: float) -> Verdict:
        """Score a workspace, which may be changed by it.

        Args:
            task: what was to be done.
            workspace: what was left, in a folder of its own inside `box`, so that a sandbox shows both or none.
            box: a private folder for everything else.
            limit_seconds: the most that it may take, besides the task's own limit.
        """


@dataclass(frozen=True, slots=True)
class Errand:
    """A command that judges, to be run in a sandbox."""

    arguments: tuple[str, ...]
    folder: Path
    """Its current directory."""
    box: Path
    """Its private folder; what it writes elsewhere is lost where a sandbox can see to that."""
    seconds: float
    """Its deadline, from when it runs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    visible: tuple[Path, ...] = ()
    """What it may read and not write, besides its box: tests, mostly."""
    image: str = ""
    """Container image for it; empty: the configured one."""
    places: tuple[tuple[str, Path], ...] = ()
    """Further absolute names of folders, where the sandbox has a file system of its own."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    exit_code: int | None
    """None: it was ended from outside, by its deadline for one."""
    said: str
    """The last line of its output."""
    reason: str = ""
    """What ended it from outside, besides its deadline."""
    output: bytes = b""
    """The end of all that it wrote to stdout and stderr."""


class Run(Protocol):
    """Runs a command in a sandbox of the caller's choice; then nothing that it started lives on."""

    @property
    def sandbox(self) -> str:
        """Kind of the sandbox."""

    def image(self, task: Task) -> str:
        """Container image for a task's tests; "": whatever the sandbox takes where none is named."""

    async def clear(self, box: Path) -> None:
        """Remove an errand's box, whatever its command made of it."""

    async def __call__(self, errand: Errand) -> Finished:
        """Run it. Raises EvaluatorError where it cannot be started."""
