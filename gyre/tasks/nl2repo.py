"""NL2RepoBench's tasks: build a whole package from a text, scored by the share of hidden tests that pass.

A folder holds `start.md` (the text), `test_files.json` (paths of the hidden tests), `test_case_count.txt` (how many
tests those are), `test_commands.json` (how they are run) and, since the published ones have them in their image, the
hidden tests themselves below `hidden/` at those paths; below `solution/` may lie a package that passes them all.
The package is not installed: its folder, and `src` in it, are on Python's path.
"""

import json
import shlex
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from gyre.tasks.context import DOCKERFILE, IGNORE
from gyre.tasks.folder import read_instruction, refuse_links_out
from gyre.tasks.origin import image_of
from gyre.tasks.task_file import TaskError, TaskFile, read_task_file
from gyre.tasks.writing import Described, Expected, write_python_tests, write_script, write_task

_VERIFIER_SECONDS = 600.0
_SOLVE = '#!/bin/sh\nexec cp -R "${0%/*}/files/." .\n'


def recognises(path: Path) -> bool:
    """Whether a folder holds such a task."""
    return (path / "start.md").is_file() and (path / "test_files.json").is_file()


def read(path: Path) -> Described:
    """Such a folder. Raises TaskError."""
    refuse_links_out(path)
    settings = read_task_file(path / "task.toml") if (path / "task.toml").is_file() else TaskFile()
    hidden = [_inside(path, name) for name in _list(path / "test_files.json")]
    if missing := next((name for name in hidden if not (path / "hidden" / name).exists()), ""):
        raise TaskError(f"{path}: hidden/{missing} is missing; it is one of the tests named in test_files.json")
    files = [name for name in _tests(path / "hidden", hidden) if PurePosixPath(name).name != "conftest.py"]
    if not files:
        raise TaskError(f"{path}: hidden/ holds no test_*.py or *_test.py below {', '.join(hidden)}")
    extra = {"hidden": hidden, "files": files, "count": _count(path), "runner": _runner(path)}
    name = settings.metadata.name or path.name
    origin = image_of(path / "environment/Dockerfile", settings, name, settings.environment.docker_image or "")
    return Described(name, read_instruction(path / "start.md"), settings, path, origin, extra)


def write(described: Described, target: Path) -> None:
    """As a folder of gyre's own layout. Raises TaskError."""
    path, extra = described.path, described.extra
    seconds = described.settings.verifier.timeout_sec or _VERIFIER_SECONDS
    fields = described.origin.fields()
    twins = described.settings.gyre.twins
    fields |= {"verifier_timeout_sec": seconds * (1 + twins), "gyre_kind": "nl2repo", "gyre_scoring": "resolved"}
    write_task(target, described, **fields)
    lay = write_python_tests(
        target,
        Expected(
            files=tuple(extra["files"]),
            runner=extra["runner"],
            count=extra["count"],
            remove=tuple(extra["hidden"]),
            seconds=seconds * 0.8 / len(extra["files"]),
            twins=twins,
        ),
    )
    shutil.copytree(path / "hidden", lay, dirs_exist_ok=True)
    if (path / "environment").is_dir():
        ours = {str(path / "environment"): {DOCKERFILE, IGNORE}}
        shutil.copytree(
            path / "environment",
            target / "environment",
            symlinks=True,
            ignore=lambda folder, names: ours.get(folder, set()) & set(names),
        )
    if (path / "solution/solve.sh").is_file():
        shutil.copytree(path / "solution", target / "solution", symlinks=True)
    elif (path / "solution").is_dir():
        shutil.copytree(path / "solution", target / "solution/files", symlinks=True)
        write_script(target / "solution/solve.sh", _SOLVE)


def _list(file: Path) -> list[str]:
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: not readable as JSON: {error}") from error
    if not isinstance(found, list) or not found or not all(isinstance(each, str) and each for each in found):
        raise TaskError(f"{file}: must hold a list of strings, at least one")
    return found


def _inside(path: Path, name: str) -> str:
    parts = PurePosixPath(name).parts
    if PurePosixPath(name).is_absolute() or ".." in parts or not parts:
        raise TaskError(f"{path}/test_files.json: {name!r} leads out of the package")
    return "/".join(parts)


def _tests(hidden: Path, names: list[str]) -> list[str]:
    found = set()
    for top in (hidden / name for name in names):
        files = [top] if top.is_file() else top.rglob("*.py")
        found |= {str(file.relative_to(hidden)) for file in files if _is_test(file.name)}
    return sorted(found)


def _is_test(name: str) -> bool:
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def _count(path: Path) -> int:
    file = path / "test_case_count.txt"
    try:
        count = int(file.read_text(encoding="utf-8").strip())
    except (OSError, ValueError) as error:
        raise TaskError(f"{file}: must hold how many tests there are, a whole number: {error}") from error
    if count < 1:
        raise TaskError(f"{file}: {count}: must be at least 1")
    return count


def _runner(path: Path) -> str:
    """What the commands run: unittest where they say so, pytest otherwise."""
    file = path / "test_commands.json"
    words = [word for line in _list(file) for word in shlex.split(line)] if file.is_file() else ["pytest"]
    return "unittest" if "unittest" in words else "pytest"
