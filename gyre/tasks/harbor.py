"""Harbor's task folders (Terminal-Bench 2 and later are published as such), as they are.

`environment/` is the context of an image there, and the workspace what the image holds in its workdir. So a prebuilt
`environment.docker_image` is the image here, and the workspace begins as a copy of its workdir; a Dockerfile that only
copies files is done without an engine, and of any other one `gyre tasks build` builds the image. What cannot be had is
refused by name: more than one container, several steps, variables of the host.
"""

import re
import shutil
from pathlib import Path

from gyre.tasks.folder import read_instruction, refuse_links_out
from gyre.tasks.origin import origin_of
from gyre.tasks.places import APP
from gyre.tasks.task_file import HARBOR_VERIFIER_SECONDS, TaskError, TaskFile, read_task_file
from gyre.tasks.writing import Described, write_script, write_task

_CANARY = re.compile(r"\A(?:[ \t]*(?:<!--.*?canary.*?-->|#[^\n]*canary[^\n]*)[ \t]*\n)+", re.IGNORECASE)
_WRAPPER = """\
#!/bin/sh
# Runs the task's own test.sh, from which its reward is taken as Harbor takes it: reward.json counts before reward.txt.
export REWARD_FILE_OF_GYRE="$REWARD_FILE"
: "${LOGS_DIR:=${REWARD_FILE%/*}/logs}"
mkdir -p "$LOGS_DIR/verifier" && rm -f "$LOGS_DIR/verifier/reward.txt" "$LOGS_DIR/verifier/reward.json" || exit 125
export LOGS_DIR REWARD_FILE="$LOGS_DIR/verifier/reward.txt"
if [ -x "$TESTS_DIR/task/test.sh" ]; then set -- "$TESTS_DIR/task/test.sh"; else set -- sh "$TESTS_DIR/task/test.sh"; fi
TESTS_DIR="$TESTS_DIR/task" "$@"
"""


def recognises(path: Path) -> bool:
    """Whether a folder with task.toml is Harbor's and not gyre's own."""
    environment, script = path / "environment", path / "tests/test.sh"
    if any((environment / name).is_file() for name in ("Dockerfile", "docker-compose.yaml", "docker-compose.yml")):
        return True
    return script.is_file() and b"/logs/verifier" in script.read_bytes() and (path / "task.toml").is_file()


def read(path: Path) -> Described:
    """A folder with a task.toml. Raises TaskError."""
    settings = read_task_file(path / "task.toml")
    refuse_links_out(path)
    _refuse(path, settings)
    if not (path / "tests/test.sh").is_file():
        raise TaskError(f"{path}: tests/test.sh is missing; it must write /logs/verifier/reward.txt or reward.json")
    text = read_instruction(path / "instruction.md")
    name = settings.metadata.name or path.name
    origin = origin_of(path / "environment/Dockerfile", settings, name)
    return Described(name, _CANARY.sub("", text).strip() or text, settings, path, origin)


def write(described: Described, target: Path) -> None:
    """As a folder of gyre's own layout. Raises TaskError."""
    path, settings, origin = described.path, described.settings, described.origin
    origin.lay(target / "environment")
    if not (path / "environment/Dockerfile").is_file() and (path / "environment").is_dir():
        shutil.copytree(path / "environment", target / "environment", symlinks=True)
    write_task(
        target,
        described,
        **origin.fields(),
        environment_workdir=settings.environment.workdir or origin.workdir or APP,
        verifier_timeout_sec=settings.verifier.timeout_sec or HARBOR_VERIFIER_SECONDS,
        gyre_kind="harbor",
        gyre_from_image=origin.plain is None,
    )
    write_tests(path / "tests", target)
    if (path / "solution").is_dir():
        shutil.copytree(path / "solution", target / "solution", symlinks=True)


def write_tests(tests: Path, target: Path) -> None:
    """The tests with their own test.sh below tests/task, and one that calls it."""
    shutil.copytree(tests, target / "tests/task", symlinks=True)
    write_script(target / "tests/test.sh", _WRAPPER + _TAKE)


_TAKE = """\
code=$?
json="$LOGS_DIR/verifier/reward.json" text="$LOGS_DIR/verifier/reward.txt"
if [ -s "$json" ]; then
    python3 -I -c '
import json, sys
found = json.load(open(sys.argv[1]))
if isinstance(found, dict):
    found = found["reward"] if "reward" in found else found.popitem()[1] if len(found) == 1 else "several rewards"
print(found)' "$json" >"$REWARD_FILE_OF_GYRE" || exit 125
elif [ -e "$text" ]; then
    cat "$text" >"$REWARD_FILE_OF_GYRE" || exit 125
else
    echo "no reward was written (exit code $code)" >&2
    exit 125
fi
"""


def _refuse(path: Path, settings: TaskFile) -> None:
    environment = settings.environment
    if settings.steps:
        raise TaskError(f"{path}: steps: a task of several steps cannot be run; gyre gives one instruction")
    if environment.os.lower() != "linux":
        raise TaskError(f"{path}: environment.os = {environment.os!r}: only linux can be run")
    if environment.mcp_servers or environment.healthcheck:
        raise TaskError(f"{path}: environment.mcp_servers or healthcheck: gyre starts no services beside the agent")
    for table, env in (("environment", environment.env), ("verifier", settings.verifier.env)):
        if env:
            raise TaskError(f"{path}: {table}.env: gyre hands no variables on; set them in the image or in the scripts")
    if any((path / "environment" / name).exists() for name in ("docker-compose.yaml", "docker-compose.yml")):
        raise TaskError(f"{path}: environment/docker-compose.yaml: tasks of several containers cannot be run")
    if not environment.docker_image and not (path / "environment/Dockerfile").is_file():
        raise TaskError(f"{path}: environment has neither docker_image nor a Dockerfile; name an image")
