"""A task on disk: `task.toml`, `instruction.md`, `environment/`, `tests/test.sh` and `solution/solve.sh` in one folder.

Loading checks everything that can be checked without running anything, so that a bad task is refused before a run.
Folders in other layouts become such folders when a run is opened (`gyre.tasks.sources`).
"""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gyre.tasks.places import CONTAINED, fixed_places
from gyre.tasks.task_file import (
    AGENT_SECONDS,
    VERIFIER_SECONDS,
    Kind,
    TaskError,
    TaskFile,
    read_task_file,
)

__all__ = ["Task", "TaskError", "load_task", "load_tasks", "read_instruction", "refuse_doubles", "refuse_links_out"]


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
    kind: Kind = "folder"
    """The layout that it was brought from."""
    image: str = ""
    """Container image that it is worked on and graded in; empty: any will do."""
    needs_image: bool = False
    """Whether only a sandbox with images can run it."""
    workdir: str = ""
    """Where its texts take the workspace to be, such as /app; empty: wherever it is."""
    from_image: bool = False
    """Whether the workspace begins as what the image holds at `workdir`."""
    built: bool = False
    """Whether `gyre tasks build` makes the image, and nobody else has it."""
    fixed: tuple[str, ...] = ()
    """Absolute places that its texts name (/app, /tests, /logs, /solution): only a sandbox with a file system of its
    own has them."""

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
    settings = read_task_file(path / "task.toml")
    refuse_links_out(path)
    if not (path / "tests" / "test.sh").is_file():
        raise TaskError(f"{path}: tests/test.sh is missing; it must write a reward to $REWARD_FILE or exit with 0 or 1")
    return _task(path, settings)


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
    refuse_doubles([(task.name, task.path) for task in tasks])
    return tasks


def refuse_doubles(names: list[tuple[str, Path]]) -> None:
    """Raises TaskError where two tasks have one name."""
    seen: dict[str, Path] = {}
    for name, path in names:
        if name in seen:
            raise TaskError(f"{path}: metadata.name {name!r} is also the name of {seen[name]}; rename one")
        seen[name] = path


def read_instruction(file: Path) -> str:
    """The text of an instruction. Raises TaskError."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise TaskError(f"{file.parent}: {file.name} is missing") from error
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: not readable as UTF-8 text: {error}") from error
    if not text:
        raise TaskError(f"{file}: is empty; say what the agent has to do")
    return text


def refuse_links_out(path: Path) -> None:
    """A link that leads out of the task would carry the host's files into a workspace. Raises TaskError."""
    root = path.resolve()
    for folder, folders, files in os.walk(path):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            if entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(root):
                raise TaskError(f"{entry}: links to a place outside the task folder; copy the file instead")
            if not entry.is_symlink() and not entry.is_dir() and not entry.is_file():
                raise TaskError(f"{entry}: is neither a file nor a folder; remove it")


def _task(path: Path, settings: TaskFile) -> Task:
    environment, own = settings.environment, settings.gyre
    return Task(
        name=settings.metadata.name or path.name,
        path=path,
        instruction=read_instruction(path / "instruction.md"),
        difficulty=settings.metadata.difficulty,
        tags=tuple(settings.metadata.tags),
        setup_timeout=environment.setup_timeout_sec,
        agent_timeout=settings.agent.timeout_sec or AGENT_SECONDS,
        verifier_timeout=settings.verifier.timeout_sec or VERIFIER_SECONDS,
        kind=own.kind,
        image=environment.docker_image or "",
        needs_image=bool(environment.docker_image) and own.needs_image,
        workdir=environment.workdir or "",
        from_image=own.from_image,
        built=own.built,
        fixed=fixed_places(path, environment.workdir or "") if own.kind in CONTAINED else (),
    )
