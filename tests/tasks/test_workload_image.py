"""A real run of a task whose instruction needs a file that only the image built of its Dockerfile has."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gyre.config import Config
from gyre.tasks.sources import images_of
from gyre.tasks.task_file import TaskError
from schemas.dispatch import ExecutionTerminated
from schemas.rewards import AssessmentRecorded, RewardAssigned
from services.cli.app import app
from services.setup import open_run
from tests.sandboxes.engine import IMAGE, SOCKET, forget, on_an_engine
from tests.tasks.layouts import harbor_folder, write
from tests.tasks.test_workload_runs import played, services_of

pytestmark = on_an_engine
DOCKERFILE = f"FROM {IMAGE}\nRUN seq 3 9 | tac >/srv/numbers\nWORKDIR /app\nRUN echo largest >which\n"
AGENT = """
[ "$(cat which)" = largest ] || exit 9
head -n 1 /srv/numbers >/app/answer
echo part of it is done
"""
TESTS = """#!/bin/sh
mkdir -p /logs/verifier
if [ "$(cat /app/answer)" = "$(sort -n /srv/numbers | tail -n 1)" ]; then
    echo 1
else
    echo 0.25
fi >/logs/verifier/reward.txt
"""


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A folder with the task, whose image is gone afterwards."""
    folder = harbor_folder(tmp_path / "t/numbers", "", DOCKERFILE)
    instruction = "Write the number of /srv/numbers that /app/which asks for to /app/answer.\n"
    write(folder, {"instruction.md": instruction, "tests/test.sh": TESTS})
    yield tmp_path / "t"
    forget(images_of(str(tmp_path / "t"))[0][0].image)


def config_of(folder: Path, source: Path) -> Config:
    docker = {"socket": str(SOCKET), "door_image": IMAGE}
    return Config.of(
        {
            "run": {"name": "numbers", "folder": str(folder / "runs")},
            "tasks": {"train": str(source), "heldout": str(source)},
            "sandbox": {"kind": "docker", "docker": docker},
            "harness": {"command": ("/bin/sh", "-c", AGENT), "timeout_seconds": 60.0},
            "bus": {"durability": "laptop"},
        }
    )


async def test_an_execution_works_and_is_graded_in_the_image_of_its_dockerfile(tmp_path: Path, source: Path) -> None:
    with pytest.raises(TaskError, match=r"task numbers: its image .* is not built; `gyre tasks build "):
        await open_run(config_of(tmp_path, source))
    assert not (tmp_path / "runs/numbers").exists()
    options = ("--json", "--logs", str(tmp_path / "logs"), "--set", f"sandbox.docker.socket={SOCKET}")
    result = await asyncio.to_thread(CliRunner().invoke, app, ["tasks", "build", str(source), *options])
    (image,) = json.loads(result.stdout)["images"]
    opened = await open_run(config_of(tmp_path, source))
    assert opened.server is not None
    try:
        async with services_of(opened.folder):
            heard = (await played(opened.folder, ("numbers",)))["numbers"]
    finally:
        await asyncio.to_thread(opened.server.stop)
    said = {type(event): event for event in heard}
    assert (said[ExecutionTerminated].reason, said[RewardAssigned].reward) == ("completed", 1.0), heard
    assert said[AssessmentRecorded].provenance.image == image["image"]
