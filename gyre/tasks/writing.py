"""Writes task folders in gyre's own layout: what every adapter of another layout ends with."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.tasks.origin import Origin
from gyre.tasks.task_file import TaskFile

GUARDED = (
    ".coveragerc",
    ".pytest.ini",
    "conftest.py",
    "pytest.ini",
    "pyvenv.cfg",
    "setup.cfg",
    "sitecustomize.py",
    "tox.ini",
    "usercustomize.py",
)
"""What Python or a test runner runs or obeys by itself."""
_GRADERS = Path(__file__).parent / "graders"
_TEST_SH = '#!/bin/sh\nexec python3 -I "${0%/*}/grade.py"\n'


@dataclass(frozen=True, slots=True)
class Expected:
    """What `graders/grade.py` counts, as it lies beside it."""

    files: tuple[str, ...]
    """Files of tests, each run in a process of its own."""
    runner: str
    """pytest or unittest."""
    must_pass: tuple[str, ...] = ()
    keep_passing: tuple[str, ...] = ()
    count: int = 0
    """Tests in all, where they are not named; 0: those named above count."""
    scoring: str = "share"
    remove: tuple[str, ...] = ()
    """Files and folders of the work that are gone before the task's own are laid over it."""
    config: str = ""
    """The task's own pytest configuration, among what is laid over; empty: none."""
    seconds: float = 60.0
    """The most that one file of tests may take, and its twin again."""
    twins: bool = True
    """Whether a test counts only where its twin, which asks for something else, fails."""
    known: dict[str, list[str]] = field(default_factory=dict)
    """Functions of tests, by their file, that the agent may read: without twins that would tell it of others."""
    guarded: tuple[str, ...] = GUARDED
    """Names of files that are removed wherever the work has them."""


@dataclass(frozen=True, slots=True)
class Described:
    """A task in another layout that was read and found whole."""

    name: str
    instruction: str
    settings: TaskFile
    path: Path
    """Where it lies."""
    origin: Origin
    """Where its image comes from."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What only its adapter knows."""


def write_task(target: Path, described: Described, **fields: Any) -> None:
    """Write `task.toml` and `instruction.md`.

    `fields` replace what its settings say: `environment_workdir="/app"` is workdir in [environment].
    """
    settings = described.settings
    tables: dict[str, dict[str, Any]] = {
        "metadata": {"name": described.name, **settings.metadata.model_dump(include={"difficulty", "tags"})},
        "environment": settings.environment.model_dump(include={"setup_timeout_sec", "docker_image", "workdir"}),
        "agent": settings.agent.model_dump(include={"timeout_sec"}),
        "verifier": settings.verifier.model_dump(include={"timeout_sec"}),
        "gyre": settings.gyre.model_dump(exclude={"build_args"}),
    }
    for key, value in fields.items():
        table, _, name = key.partition("_")
        tables[table][name] = value
    target.mkdir(parents=True, exist_ok=True)
    (target / "task.toml").write_text(_toml(tables), encoding="utf-8")
    (target / "instruction.md").write_text(described.instruction.strip() + "\n", encoding="utf-8")


def write_python_tests(target: Path, expected: Expected) -> Path:
    """Write `tests/` with the grader of Python tests; the folder of what it lays over the work, still empty."""
    tests = target / "tests"
    (tests / "lay").mkdir(parents=True)
    for name in ("certain.py", "children.py", "files.py", "grade.py", "laid.py", "run_tests.py", "twins.py"):
        shutil.copyfile(_GRADERS / name, tests / name)
    told = {name: getattr(expected, name) for name in Expected.__slots__}
    (tests / "expected.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    write_script(tests / "test.sh", _TEST_SH)
    return tests / "lay"


def write_script(path: Path, text: str) -> None:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _toml(tables: dict[str, dict[str, Any]]) -> str:
    lines = ['version = "1.0"']
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items() if value is not None)]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """JSON's words for strings, booleans, numbers and lists of them are TOML's too."""
    return json.dumps(value).replace("\x7f", "\\u007f")
