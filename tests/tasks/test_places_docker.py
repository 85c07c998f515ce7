"""Harbor tasks in real containers: texts as they are in the wild, and a workspace that an image begins with."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from services.cli.app import app
from tests.sandboxes.engine import IMAGE, SOCKET, on_an_engine
from tests.tasks.layouts import harbor_folder, swe_folder, write

pytestmark = on_an_engine
DOCKER = ("sandbox.kind=docker", f"sandbox.docker.socket={SOCKET}")


def validated(source: Path) -> dict[str, Any]:
    words = [word for each in DOCKER for word in ("--set", each)]
    result = CliRunner().invoke(app, ["tasks", "validate", str(source), "--json", "--repeat", "1", *words])
    assert result.stdout, result.output
    (task,) = json.loads(result.stdout)["tasks"]
    found: dict[str, Any] = task
    return found


def test_texts_that_name_places_of_a_container_find_them_in_one(tmp_path: Path) -> None:
    folder = harbor_folder(tmp_path / "source/copy", "", f"FROM {IMAGE}\nWORKDIR /app\nCOPY in.txt .\n")
    tests = "#!/bin/sh\ncmp /app/in.txt /app/out.txt && echo 1 >/logs/verifier/reward.txt && exit\n"
    write(folder, {"tests/test.sh": tests + "echo 0 >/logs/verifier/reward.txt\n"})
    write(folder, {"solution/solve.sh": "#!/bin/sh\ncp /app/in.txt /app/out.txt && [ -f /solution/solve.sh ]\n"})
    found = validated(tmp_path / "source")
    assert (found["problems"], found["solution"], found["empty"]) == ([], [1.0], [0.0])


def test_a_workspace_begins_with_what_a_prebuilt_image_holds(tmp_path: Path) -> None:
    toml = f'[environment]\ndocker_image = "{IMAGE}"\nworkdir = "/etc/apt"\n'
    folder = harbor_folder(tmp_path / "source/copy", toml, "FROM a\nRUN make\nWORKDIR /etc/apt\n")
    tests = "#!/bin/sh\n[ -d sources.list.d ] && [ -f done ] && echo 1 >/logs/verifier/reward.txt && exit\n"
    write(folder, {"tests/test.sh": tests + "echo 0 >/logs/verifier/reward.txt\n"})
    write(folder, {"solution/solve.sh": "#!/bin/sh\n[ -d /etc/apt/sources.list.d ] && touch /etc/apt/done\n"})
    found = validated(tmp_path / "source")
    assert (found["problems"], found["solution"], found["empty"]) == ([], [1.0], [0.0])


def test_a_repository_is_graded_in_its_image_and_a_solution_that_cannot_run_there_is_told(tmp_path: Path) -> None:
    swe_folder(tmp_path / "source/halves", docker_image=IMAGE)
    found = validated(tmp_path / "source")
    assert found["empty"] == [0.0]
    # The slim image has no git to apply the patch with: the reason is told, not a score made up.
    assert found["solution"] == [0.0]
    assert any(said.startswith("solution/solve.sh ended with exit code 127") for said in found["problems"])
