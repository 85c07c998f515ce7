"""gyre tasks build: images of Dockerfiles by a real engine, once each, and a line that says which step failed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gyre.tasks.sources import images_of
from tests.sandboxes.engine import IMAGE, SOCKET, asked, forget, on_an_engine
from tests.services.conftest import Gyre, refusal
from tests.tasks.layouts import harbor_folder, write

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCKER = ("--set", f"sandbox.docker.socket={SOCKET}")
BUILT = f"FROM {IMAGE}\nRUN echo 4711 >/srv/number\nWORKDIR /app\nCOPY in.txt .\n"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A folder of tasks, whose images are gone afterwards."""
    yield tmp_path / "t"
    for found in images_of(str(tmp_path / "t"))[0]:
        if found.context is not None:
            forget(found.image)


def built(gyre: Gyre, source: Path, *options: str, code: int = 0) -> list[dict[str, Any]]:
    result = gyre("tasks", "build", source, "--json", "--logs", source.with_name("logs"), *DOCKER, *options)
    assert result.exit_code == code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["images"]
    return found


@on_an_engine
def test_an_image_is_built_once_and_told_by_its_labels(gyre: Gyre, source: Path) -> None:
    harbor_folder(source / "copy", "[gyre.build_args]\nCOLOUR = 'teal'\n", BUILT + "ARG COLOUR\nRUN echo $COLOUR >c\n")
    (first,) = built(gyre, source)
    assert (first["task"], first["state"], first["problem"]) == ("copy", "built", "")
    assert "RUN echo $COLOUR >c" in Path(first["log"]).read_text()
    status, inspected = asked(f"/images/{quote(first['image'])}/json")
    assert status == 200
    assert isinstance(inspected, dict)
    assert inspected["Config"]["WorkingDir"] == "/app"
    assert inspected["Config"]["Labels"]["gyre.task"] == "copy"
    assert first["image"].endswith(inspected["Config"]["Labels"]["gyre.context"][:32])
    (second,) = built(gyre, source)
    assert (second["state"], second["image"], second["log"]) == ("present", first["image"], None)


@on_an_engine
def test_what_cannot_be_built_is_one_line_and_keeps_no_other_one_out(gyre: Gyre, source: Path) -> None:
    harbor_folder(source / "fails", "", f"FROM {IMAGE}\nRUN echo going && echo wrong >&2 && exit 3\n")
    harbor_folder(source / "good", "", BUILT)
    harbor_folder(source / "named", "[environment]\ndocker_image = 'nobody.invalid/none:1'\n", BUILT)
    harbor_folder(source / "odd", "", f"FROM {IMAGE}\nFOO bar\n")
    harbor_folder(source / "slow", "[environment]\nbuild_timeout_sec = 1.0\n", f"FROM {IMAGE}\nRUN sleep 600\n")
    write(harbor_folder(source / "several"), {"environment/docker-compose.yaml": "services: {}\n"})
    found = {each["task"]: each for each in built(gyre, source, "--jobs", "3", code=1)}
    states = {name: each["state"] for name, each in found.items()}
    assert states == {"fails": "failed", "good": "built", "named": "missing", "odd": "failed", "slow": "failed"}
    assert re.match(r"step 2/\d+ RUN echo going", found["fails"]["problem"])
    assert "returned a non-zero code: 3" in found["fails"]["problem"]
    assert "wrong" in Path(found["fails"]["log"]).read_text()
    assert found["named"]["problem"].startswith("is not on this machine; `docker pull nobody.invalid/none:1`")
    assert "unknown instruction: FOO" in found["odd"]["problem"]
    assert "took longer than environment.build_timeout_sec = 1" in found["slow"]["problem"]
    assert not any("\n" in each["problem"] for each in found.values())
    people = gyre("tasks", "build", source, "--task", "good", "--logs", source.with_name("logs"), *DOCKER)
    assert (people.exit_code, "1 of 1 images are there" in people.stdout) == (0, True)


@on_an_engine
def test_images_that_tasks_name_are_fetched_only_where_that_is_asked_for(gyre: Gyre, source: Path) -> None:
    harbor_folder(source / "named", "[environment]\ndocker_image = 'nobody.invalid/none:1'\n", BUILT)
    (found,) = built(gyre, source, "--set", "sandbox.docker.pull=missing", code=1)
    assert found["state"] == "failed"
    assert "nobody.invalid" in found["problem"]


@on_an_engine
def test_tests_and_solutions_cannot_be_copied_into_an_image(gyre: Gyre, source: Path) -> None:
    harbor_folder(source / "greedy", "", f"FROM {IMAGE}\nRUN true\nCOPY ../tests /app/\n")
    (found,) = built(gyre, source, code=1)
    assert found["state"] == "failed"
    assert "tests" in found["problem"]


@on_an_engine
def test_a_run_whose_image_is_not_built_is_refused_with_the_command(gyre: Gyre, source: Path) -> None:
    harbor_folder(source / "copy", "", BUILT)
    words = ("--set", f"tasks.train={source}", "--set", f"tasks.heldout={source}", "--set", "sandbox.kind=docker")
    check = ("check", EXAMPLES / "demo.toml", *words, "--set", f"sandbox.image={IMAGE}", *DOCKER)
    said = refusal(gyre(*check))
    assert "task copy: its image localhost/gyre-task/copy:" in said
    assert f"is not built; `gyre tasks build {source}`" in said
    (problem,) = validated(gyre, source, 1)["problems"]
    assert "is not built; `gyre tasks build DIR`" in problem
    built(gyre, source)
    assert gyre(*check).exit_code == 0


def validated(gyre: Gyre, source: Path, code: int) -> dict[str, Any]:
    words = ("--json", "--repeat", "1", "--set", "sandbox.kind=docker", *DOCKER)
    result = gyre("tasks", "validate", source, *words)
    assert result.exit_code == code, result.output
    (task,) = json.loads(result.stdout)["tasks"]
    found: dict[str, Any] = task
    return found


@on_an_engine
def test_a_task_is_worked_on_and_graded_in_the_image_that_was_built_of_it(gyre: Gyre, source: Path) -> None:
    dockerfile = BUILT + "ENV COLOUR=teal\nRUN echo made >made.txt\n"
    folder = harbor_folder(source / "copy", "", dockerfile)
    tests = '#!/bin/sh\n[ "$(cat out.txt) $(cat made.txt)" = "$(cat /srv/number) teal made" ]\necho $((! $?)) '
    write(folder, {"tests/test.sh": tests + ">/logs/verifier/reward.txt\n"})
    write(folder, {"solution/solve.sh": '#!/bin/sh\necho "$(cat /srv/number) $COLOUR" >out.txt\n'})
    built(gyre, source)
    found = validated(gyre, source, 0)
    assert (found["problems"], found["solution"], found["empty"]) == ([], [1.0], [0.0])


def test_without_an_engine_it_is_one_line(gyre: Gyre, tmp_path: Path) -> None:
    harbor_folder(tmp_path / "t/copy", "", BUILT)
    options = ("--json", "--logs", tmp_path / "logs", "--set", f"sandbox.docker.socket={tmp_path}/none.sock")
    result = gyre("tasks", "build", tmp_path / "t", *options)
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)["images"]
    assert found["problem"].startswith("docker: no engine can be asked at")


def test_tasks_without_images_need_no_engine(gyre: Gyre, tmp_path: Path) -> None:
    options = ("--json", "--set", f"sandbox.docker.socket={tmp_path}/none.sock")
    result = gyre("tasks", "build", EXAMPLES / "first-tasks", "words:2:train", *options)
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"images": [], "refused": []})
