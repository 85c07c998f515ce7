"""A task on disk: `task.toml`, `instruction.md`, `environment/`, `tests/test.sh` and `solution/solve.sh` in one folder.

Loading checks everything that can be checked without running anything, so that a bad task is refused before a run.
"""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gyre.errors import GyreError

Seconds = Annotated[float, Field(gt=0, le=7 * 86400, allow_inf_nan=False)]


class TaskError(GyreError):
    """A task folder cannot be used; one line naming the task, what is wrong and what to do."""


class _Section(BaseModel):
    """A table of task.toml; keys that gyre doesn't use are other tools' business and are let pass."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Metadata(_Section):
    """What the task is, for people and for selecting tasks."""

    name: str = ""
    difficulty: str = "unknown"
    tags: list[str] = []


class Setup(_Section):
    """Limits on preparing the workspace."""

    setup_timeout_sec: Seconds = 60.0


class AgentLimits(_Section):
    """Limits on the agent's own time."""

    timeout_sec: Seconds = 600.0


class VerifierLimits(_Section):
    """Limits on grading."""

    timeout_sec: Seconds = 60.0


class TaskFile(_Section):
    """`task.toml` as a whole."""

    version: str
    metadata: Metadata = Metadata()
    environment: Setup = Setup()
    agent: AgentLimits = AgentLimits()
    verifier: VerifierLimits = VerifierLimits()


class Task(BaseModel):
    """A task that can be run: where it lies, what the agent is told, and how long each stage may take (seconds)."""

    model_config = ConfigDict(frozen=True)

    name: str
    path: Path
    instruction: str
    difficulty: str
    tags: tuple[str, ...]
    setup_timeout: float
    agent_timeout: float
    verifier_timeout: float

    @property
    def environment(self) -> Path:
        """Files to copy into a fresh workspace; the folder may be missing, which means none."""
        return self.path / "environment"

    @property
    def instruction_file(self) -> Path:
        """The instruction as the harness is given it."""
        return self.path / "instruction.md"

    @property
    def tests(self) -> Path:
        """What only the evaluator may see; holds `test.sh`."""
        return self.path / "tests"

    @property
    def solution(self) -> Path:
        """A script that reaches reward 1.0 in a fresh workspace; not every task has one."""
        return self.path / "solution" / "solve.sh"


def load_task(path: Path) -> Task:
    """The task in folder `path`. Raises TaskError."""
    path = path.absolute()
    if not path.is_dir():
        raise TaskError(f"{path}: no such task folder")
    settings = _task_file(path / "task.toml")
    _refuse_links_out(path)
    if not (path / "tests" / "test.sh").is_file():
        raise TaskError(f"{path}: tests/test.sh is missing; it must write a reward to $REWARD_FILE or exit with 0 or 1")
    return Task(
        name=settings.metadata.name or path.name,
        path=path,
        instruction=_instruction(path / "instruction.md"),
        difficulty=settings.metadata.difficulty,
        tags=tuple(settings.metadata.tags),
        setup_timeout=settings.environment.setup_timeout_sec,
        agent_timeout=settings.agent.timeout_sec,
        verifier_timeout=settings.verifier.timeout_sec,
    )


def load_tasks(folder: Path) -> tuple[Task, ...]:
    """Every task below `folder` in order of folder name; hidden entries are skipped. Raises TaskError."""
    if not folder.is_dir():
        raise TaskError(f"{folder}: no such folder of tasks")
    paths = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    tasks = tuple(load_task(path) for path in paths)
    if not tasks:
        raise TaskError(
            f"{folder}: holds no tasks; each task is a folder with task.toml, instruction.md and tests/test.sh"
        )
    seen: dict[str, Path] = {}
    for task in tasks:
        if task.name in seen:
            raise TaskError(
                f"{task.path}: metadata.name {task.name!r} is also the name of {seen[task.name]}; rename one"
            )
        seen[task.name] = task.path
    return tasks


def _task_file(file: Path) -> TaskFile:
    try:
        raw: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return TaskFile.model_validate(raw)
    except FileNotFoundError as error:
        raise TaskError(f"{file.parent}: task.toml is missing") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"{file}: {key} = {first['input']!r}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: not readable as TOML: {error}") from error


def _instruction(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise TaskError(f"{file.parent}: instruction.md is missing") from error
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: not readable as UTF-8 text: {error}") from error
    if not text:
        raise TaskError(f"{file}: is empty; say what the agent has to do")
    return text


def _refuse_links_out(path: Path) -> None:
    """A link that leads out of the task would carry the host's files into a workspace."""
    root = path.resolve()
    for folder, folders, files in os.walk(path):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            if entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(root):
                raise TaskError(f"{entry}: links to a place outside the task folder; copy the file instead")
            if not entry.is_symlink() and not entry.is_dir() and not entry.is_file():
                raise TaskError(f"{entry}: is neither a file nor a folder; remove it")
