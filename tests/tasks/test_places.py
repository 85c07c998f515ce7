"""Tasks that speak of /app, /tests, /solution and /logs find them in a sandbox with a file system of its own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gyre.config_containers import DockerSection, KubernetesSection
from gyre.sandboxes.bubblewrap import check_bubblewrap
from gyre.sandboxes.docker_spec import Body
from gyre.sandboxes.kubernetes_spec import Body as PodBody
from gyre.sandboxes.owners import OWNER
from gyre.sandboxes.port import Command, Limits, SandboxError
from gyre.sandboxes.process import ProcessSandbox
from gyre.tasks.folder import Task
from gyre.tasks.places import grading_places, working_places
from gyre.tasks.sources import bring
from services import workspace
from services.cli.app import app
from tests.tasks.layouts import harbor_folder, swe_folder, write

LITERAL = {
    "instruction.md": "Write what /app/in.txt holds, in capitals, to /app/out.txt.\n",
    "tests/test.sh": "#!/bin/sh\ncd /app || exit 1\n"
    "if cmp -s out.txt /tests/wanted; then echo 1 >/logs/verifier/reward.txt; else echo '{\"reward\": 0}' "
    ">/logs/verifier/reward.json; fi\n",
    "tests/wanted": "X\n",
    "solution/solve.sh": "#!/bin/sh\nset -e\ntr a-z A-Z </app/in.txt >/app/out.txt\n"
    "cat /solution/solve.sh >/logs/said\n",
}


def literal(path: Path) -> Path:
    write(harbor_folder(path, "[gyre]\nneeds_image = false\n"), LITERAL)
    return path


def one(folder: Path) -> Task:
    (task,) = bring(str(folder / "source"), folder / "tasks")
    return task


@pytest.fixture
def validated(tmp_path: Path) -> Callable[[str], Result]:
    literal(tmp_path / "source/literal")
    words = ["tasks", "validate", str(tmp_path / "source"), "--json", "--repeat", "1", "--set"]
    return lambda kind: CliRunner().invoke(app, [*words, f"sandbox.kind={kind}"])


def test_texts_as_they_are_in_the_wild_work_under_bubblewrap(validated: Callable[[str], Result]) -> None:
    try:
        check_bubblewrap()
    except SandboxError as error:
        pytest.skip(str(error))
    result = validated("bubblewrap")
    assert result.exit_code == 0, result.output
    (task,) = json.loads(result.stdout)["tasks"]
    assert (task["solution"], task["empty"], task["problems"]) == ([1.0], [0.0], [])


def test_the_process_sandbox_refuses_them(validated: Callable[[str], Result]) -> None:
    result = validated("process")
    assert result.exit_code == 1
    (problem,) = json.loads(result.stdout)["tasks"][0]["problems"]
    assert "its texts name /app, /logs, /solution, /tests" in problem


def test_a_container_is_told_the_same_folders_by_other_names(tmp_path: Path) -> None:
    literal(tmp_path / "source/literal")
    task, box = one(tmp_path), tmp_path / "box"
    places = grading_places(task, box / "ws", tmp_path / "tests", box / "logs")
    assert places == (
        ("/app", box / "ws"), ("/tests", tmp_path / "tests/task"), ("/logs", box / "logs"),
    )  # fmt: skip
    command = Command(("true",), box / "ws", box, {}, 1.0, places=places)
    docker = Body(Limits(), "1000:1000").of(command, "a:1", {})
    mounts = {each["Target"]: (each["Source"], each["ReadOnly"]) for each in docker["HostConfig"]["Mounts"]}
    assert mounts["/app"] == (str(box / "ws"), False)
    assert mounts["/tests"] == (str(tmp_path / "tests/task"), True)
    chosen = KubernetesSection(mounts={str(tmp_path): "claim"})
    pod = PodBody(chosen, Limits()).of(command, "a:1", "name", {OWNER: "me"}, {})
    told = {each["mountPath"]: each for each in pod["spec"]["containers"][0]["volumeMounts"]}
    assert (told["/app"]["subPath"], told["/app"]["readOnly"]) == ("box/ws", False)
    assert (told["/tests"]["subPath"], told["/tests"]["readOnly"]) == ("tests/task", True)


def test_a_folder_that_only_images_know_has_no_other_name(tmp_path: Path) -> None:
    command = Command(("true",), tmp_path, tmp_path, {}, 1.0, places=(("/tests", Path("/opt/t")),))
    with pytest.raises(SandboxError, match=r"/opt/t: is to be /tests as well"):
        Body(Limits(), "1:1", DockerSection(mounts={"/opt": ""}).mounts).of(command, "a:1", {})


def test_a_repository_is_found_where_its_image_has_it(tmp_path: Path) -> None:
    swe_folder(tmp_path / "source/halves", docker_image="some/halves:7")
    assert working_places(one(tmp_path), tmp_path / "ws", tmp_path) == (("/testbed", tmp_path / "ws"),)


async def test_a_workspace_begins_with_what_the_image_holds(tmp_path: Path) -> None:
    write(tmp_path / "in-the-image", {"a/b": "body", ".hidden": "x"})
    harbor_folder(tmp_path / "source/copy", '[environment]\ndocker_image = "b:2"\n', "FROM a\nRUN make\n")
    task = one(tmp_path).model_copy(update={"workdir": str(tmp_path / "in-the-image")})
    assert task.from_image
    sandbox, box = ProcessSandbox(), tmp_path / "box"
    place = workspace.make(task, box)
    await workspace.fill(task, place, box, sandbox)
    assert (place / "a/b").read_text() == "body"
    assert (place / ".hidden").read_text() == "x"
    gone = task.model_copy(update={"workdir": str(tmp_path / "nowhere")})
    with pytest.raises(workspace.WorkspaceError, match="of image b:2 cannot be copied: "):
        await workspace.fill(gone, place, box, sandbox)
    await sandbox.close()
