"""Terminal-Bench 1's task folders: `task.yaml`, `run-tests.sh`, `tests/`, `solution.sh` and a Dockerfile.

`run-tests.sh` says by its exit code whether all tests passed, which is the reward there: 1 or 0.
"""

import shutil
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gyre.tasks.folder import refuse_links_out
from gyre.tasks.origin import origin_of
from gyre.tasks.places import APP
from gyre.tasks.task_file import Seconds, TaskError, TaskFile, read_task_file
from gyre.tasks.writing import Described, write_script, write_task

_HIDDEN = ("docker-compose.yaml", "run-tests.sh", "solution.sh", "solution.yaml", "task.toml", "task.yaml", "tests")
"""What lies beside the Dockerfile and is not for its image."""
_TEST_SH = """\
#!/bin/sh
# Runs the task's own run-tests.sh: all tests pass, or none counts.
TEST_DIR="$TESTS_DIR/tests" T_BENCH_TEST_DIR="$TESTS_DIR/tests" bash "$TESTS_DIR/run-tests.sh"
case $? in
0) echo 1 >"$REWARD_FILE" ;;
126 | 127) exit 125 ;;
*) echo 0 >"$REWARD_FILE" ;;
esac
"""


class Sheet(BaseModel):
    """`task.yaml`; other keys are let pass."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instruction: Annotated[str, Field(min_length=1)]
    difficulty: str = "unknown"
    tags: list[str] = []
    max_agent_timeout_sec: Seconds = 360.0
    max_test_timeout_sec: Seconds = 60.0


def recognises(path: Path) -> bool:
    """Whether a folder is one of those."""
    return (path / "task.yaml").is_file() and (path / "run-tests.sh").is_file()


def read(path: Path) -> Described:
    """Such a folder; a `task.toml` beside may name its image ([environment] docker_image). Raises TaskError."""
    refuse_links_out(path)
    sheet = _sheet(path / "task.yaml")
    settings = read_task_file(path / "task.toml") if (path / "task.toml").is_file() else TaskFile()
    name = settings.metadata.name or path.name
    origin = origin_of(path / "Dockerfile", settings, name, _HIDDEN)
    if not origin.image:
        raise TaskError(f"{path}: has no Dockerfile; write a task.toml with [environment] docker_image = NAME")
    return Described(name, sheet.instruction, settings, path, origin, {"sheet": sheet})


def write(described: Described, target: Path) -> None:
    """As a folder of gyre's own layout. Raises TaskError."""
    path, sheet, origin = described.path, described.extra["sheet"], described.origin
    origin.lay(target / "environment")
    write_task(
        target,
        described,
        **origin.fields(),
        metadata_difficulty=sheet.difficulty,
        metadata_tags=sheet.tags,
        environment_workdir=described.settings.environment.workdir or origin.workdir or APP,
        agent_timeout_sec=sheet.max_agent_timeout_sec,
        verifier_timeout_sec=sheet.max_test_timeout_sec,
        gyre_kind="terminal-bench",
        gyre_from_image=origin.plain is None,
    )
    write_script(target / "tests/test.sh", _TEST_SH)
    shutil.copyfile(path / "run-tests.sh", target / "tests/run-tests.sh")
    if (path / "tests").is_dir():
        shutil.copytree(path / "tests", target / "tests/tests", symlinks=True)
    if (path / "solution.sh").is_file():
        write_script(target / "solution/solve.sh", (path / "solution.sh").read_text(encoding="utf-8"))


def _sheet(file: Path) -> Sheet:
    import yaml

    try:
        found: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        return Sheet.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise TaskError(f"{file}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise TaskError(f"{file}: not readable as YAML: {str(error).splitlines()[0]}") from error
