"""Harbor's and Terminal-Bench 1's folders as they are: what is understood, and what is refused by name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.fitting import refuse_unfit
from gyre.tasks.folder import Task
from gyre.tasks.sources import bring, examine
from gyre.tasks.task_file import TaskError
from tests.tasks.layouts import harbor_folder, nl2repo_folder, swe_folder, write

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
EXAMPLES = Path(__file__).parents[2] / "examples"


def brought(tmp_path: Path, toml: str = "", dockerfile: str | None = None) -> Task:
    harbor_folder(tmp_path / "source/copy", toml, *([dockerfile] if dockerfile else []))
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return task


def writes(text: str) -> Work:
    return lambda _, workspace: write(workspace, {"out.txt": text})


def test_a_dockerfile_that_only_copies_is_the_workspace(tmp_path: Path, graded: Graded, solved: Work) -> None:
    task = brought(tmp_path)
    assert (task.kind, task.image, task.workdir, task.from_image) == ("harbor", "a:1", "/app", False)
    assert [path.name for path in task.environment.iterdir()] == ["in.txt"]
    assert graded(task, solved) == 1.0


def test_the_canary_line_is_not_for_the_agent(tmp_path: Path) -> None:
    assert brought(tmp_path).instruction == "Copy in.txt to out.txt."


def test_limits_are_harbors_where_none_are_given(tmp_path: Path) -> None:
    task = brought(tmp_path, '[agent]\ntimeout_sec = 5\n[metadata]\ndifficulty = "hard"\ntags = ["a"]\n')
    assert (task.agent_timeout, task.verifier_timeout) == (5.0, 600.0)
    assert (task.difficulty, task.tags) == ("hard", ("a",))


def graded_by(tmp_path: Path, graded: Graded, script: str) -> float:
    folder = harbor_folder(tmp_path / "source/copy")
    (folder / "tests/test.sh").write_text(f'#!/bin/sh\nset -e\ncd "$LOGS_DIR/verifier"\n{script}\n')
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    return graded(task, writes("x\n"))


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ("echo 0.25 >reward.txt", 0.25),
        ("echo 0.25 >reward.txt; exit 3", 0.25),
        ('echo \'{"reward": 0.5, "other": 3}\' >reward.json; echo 0 >reward.txt', 0.5),
        ("echo '{\"accuracy\": 0.75}' >reward.json", 0.75),
        ("echo 1 >reward.json", 1.0),
    ],
)
def test_rewards_are_taken_as_harbor_takes_them(tmp_path: Path, graded: Graded, script: str, reward: float) -> None:
    assert graded_by(tmp_path, graded, script) == reward


@pytest.mark.parametrize("script", ["exit 0", "exit 1", ": >reward.json", "echo '{' >reward.json"])
def test_no_reward_is_an_error_of_the_tests_and_no_score(tmp_path: Path, graded: Graded, script: str) -> None:
    with pytest.raises(Exception, match=r"returned non-zero exit status 125"):
        graded_by(tmp_path, graded, script)


RUNS = "FROM a:1\nWORKDIR /srv/work\nRUN make \\\n  # a remark\n  all\n"


def test_a_prebuilt_image_holds_what_the_workspace_begins_with(tmp_path: Path) -> None:
    task = brought(tmp_path, '[environment]\ndocker_image = "b:2"\n', RUNS)
    assert (task.image, task.workdir, task.from_image, task.needs_image) == ("b:2", "/srv/work", True, True)
    assert not task.environment.exists()


def test_an_image_needs_no_dockerfile_beside_it(tmp_path: Path) -> None:
    folder = harbor_folder(tmp_path / "source/copy", '[environment]\ndocker_image = "b:2"\nworkdir = "/w"\n')
    (folder / "environment/Dockerfile").unlink()
    (folder / "tests/test.sh").write_text("#!/bin/sh\necho 1 >/logs/verifier/reward.txt\n")
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    assert (task.kind, task.image, task.workdir, task.from_image) == ("harbor", "b:2", "/w", True)
    assert [path.name for path in task.environment.iterdir()] == ["in.txt"]


@pytest.mark.parametrize(
    "dockerfile",
    [
        RUNS,
        "FROM a:1 AS build\nFROM b\nWORKDIR /app\nCOPY --from=build x .\n",
        "FROM a\nWORKDIR /app\nCOPY in.txt /etc/in.txt\n",
        "FROM a\nWORKDIR /app\nCOPY missing.txt .\n",
        "FROM a\nWORKDIR /app\nCOPY ../../solution/solve.sh .\n",
        "FROM a\nWORKDIR /app\nADD https://example.org/x .\n",
        "FROM a\nWORKDIR /app\nCOPY *.txt .\n",
        "FROM a\nUSER agent\n",
    ],
)
def test_a_dockerfile_that_does_more_than_copy_is_an_image_to_be_built(tmp_path: Path, dockerfile: str) -> None:
    task = brought(tmp_path, "", dockerfile)
    assert task.image.startswith("localhost/gyre-task/copy:")
    assert (task.built, task.from_image, task.needs_image) == (True, True, True)
    assert not task.environment.exists()
    refuse_unfit((task,), "docker")
    with pytest.raises(TaskError, match=r"needs one that every node can fetch; push it to your registry"):
        refuse_unfit((task,), "kubernetes")


def test_variables_are_kept_by_an_image_alone(tmp_path: Path) -> None:
    sets = "FROM a:1\nWORKDIR /app\nENV COLOUR=teal\n"
    assert brought(tmp_path / "a", "", sets).built
    assert not brought(tmp_path / "b", "[gyre]\nneeds_image = false\n", sets).built


def test_a_place_of_work_that_hangs_on_a_variable_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"WORKDIR /\$HOME/x: variables are not looked up; write environment\.workdir"):
        brought(tmp_path / "a", "", "FROM a\nWORKDIR $HOME/x\nRUN make\n")
    assert brought(tmp_path / "b", "[environment]\nworkdir = '/x'\n", "FROM a\nWORKDIR $A\nRUN b\n").workdir == "/x"


def test_a_later_stage_works_where_its_own_lines_say(tmp_path: Path) -> None:
    stages = "FROM a AS one\nWORKDIR /build\nFROM one AS two\nWORKDIR src\nFROM b\nCOPY --from=two x .\n"
    assert brought(tmp_path / "a", "", stages).workdir == "/app"
    assert brought(tmp_path / "b", "", stages + "FROM two\nRUN make\n").workdir == "/build/src"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[[steps]]\nname = 'one'\n", "steps: a task of several steps"),
        ("[environment]\nos = 'windows'\n", "environment.os = 'windows'"),
        ("[environment.env]\nKEY = '${KEY}'\n", "environment.env: gyre hands no variables on"),
        ("[verifier.env]\nKEY = 'x'\n", "verifier.env: gyre hands no variables on"),
        ("[environment.healthcheck]\ncommand = 'true'\n", "gyre starts no services"),
        ("[environment]\nworkdir = 'app'\n", "environment.workdir = 'app'"),
        ("[agent]\ntimeout_sec = inf\n", "agent.timeout_sec = inf"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(tmp_path: Path, toml: str, message: str) -> None:
    harbor_folder(tmp_path / "copy", toml)
    with pytest.raises(TaskError) as refused:
        examine(str(tmp_path))
    assert message in str(refused.value)
    assert "copy" in str(refused.value)


def test_several_containers_are_refused(tmp_path: Path) -> None:
    write(harbor_folder(tmp_path / "copy"), {"environment/docker-compose.yaml": "services: {}\n"})
    with pytest.raises(TaskError, match="tasks of several containers"):
        examine(str(tmp_path))


def test_a_task_that_needs_its_image_is_refused_without_one(tmp_path: Path) -> None:
    task = brought(tmp_path)
    with pytest.raises(TaskError, match=r"task copy: needs image a:1, which sandbox\.kind = process has not"):
        refuse_unfit((task,), "process")
    refuse_unfit((task,), "docker")
    refuse_unfit((brought(tmp_path / "not", "[gyre]\nneeds_image = false\n"),), "process")


def test_texts_that_name_places_of_a_container_need_one(tmp_path: Path) -> None:
    folder = harbor_folder(tmp_path / "source/copy", "[gyre]\nneeds_image = false\n")
    (folder / "tests/test.sh").write_text("#!/bin/bash\npython3 /tests/x.py && echo 1 > /logs/verifier/reward.txt\n")
    (folder / "instruction.md").write_text("Copy it to /app/out.txt; not to /apple nor src/app/x, ${A:-/solution}.\n")
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    assert task.fixed == ("/app", "/logs", "/tests")
    with pytest.raises(TaskError, match=r"its texts name /app, /logs, /tests, which sandbox\.kind = process has not"):
        refuse_unfit((task,), "process")
    refuse_unfit((task,), "bubblewrap")


def terminal_bench(path: Path, yaml: str = "instruction: Do it.\n", tests: str = "grep -q x out.txt") -> Path:
    dockerfile = "FROM a:1\nWORKDIR /app\nCOPY in.txt /app/\n"
    script = f'#!/bin/bash\n[ -f "$TEST_DIR/t.sh" ] || exit 9\n{tests}\n'
    write(path, {"task.yaml": yaml, "run-tests.sh": script, "tests/t.sh": "", "Dockerfile": dockerfile, "in.txt": "x"})
    write(path, {"solution.sh": "cp in.txt out.txt\n"})
    return path


def test_terminal_bench_1_pays_for_all_tests_or_nothing(tmp_path: Path, graded: Graded, solved: Work) -> None:
    terminal_bench(tmp_path / "source/one", "instruction: Do it.\nmax_agent_timeout_sec: 9\ndifficulty: hard\n")
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    assert (task.kind, task.agent_timeout, task.verifier_timeout, task.difficulty) == ("terminal-bench", 9, 60, "hard")
    assert graded(task, solved) == 1.0
    assert graded(task, lambda *_: None) == 0.0


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("instruction: [", "not readable as YAML"),
        ("difficulty: easy", "task.yaml: instruction: Field required"),
        ("just text", "task.yaml"),
        ("instruction: a\nmax_agent_timeout_sec: 0\n", "task.yaml: max_agent_timeout_sec"),
        ("!!python/object/apply:os.system ['touch ran']", "not readable as YAML"),
    ],
)
def test_a_bad_sheet_is_refused_in_one_line(tmp_path: Path, yaml: str, message: str) -> None:
    terminal_bench(tmp_path / "one", yaml)
    with pytest.raises(TaskError) as refused:
        examine(str(tmp_path))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["tasks", "first-tasks", "harbor", "swe", "nl2repo"])
def test_every_example_is_brought_and_can_be_examined(tmp_path: Path, kind: str) -> None:
    examine(str(EXAMPLES / kind))
    assert len(bring(str(EXAMPLES / kind), tmp_path / kind)) >= 2


def test_a_source_of_two_layouts_and_one_name_is_refused(tmp_path: Path) -> None:
    harbor_folder(tmp_path / "copy")
    harbor_folder(tmp_path / "other", '[metadata]\nname = "copy"\n')
    with pytest.raises(TaskError, match="also the name of"):
        examine(str(tmp_path))


def test_what_the_image_of_terminal_bench_1_must_not_have_is_never_copied(tmp_path: Path) -> None:
    folder = terminal_bench(tmp_path / "source/one")
    (folder / "Dockerfile").write_text("FROM a:1\nWORKDIR /app\nCOPY . .\n")
    (folder / "answer").symlink_to("solution.sh")
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    assert sorted(path.name for path in task.environment.iterdir()) == ["answer", "in.txt"]
    assert not (task.environment / "answer").exists(), "a link to nothing"
    (folder / "Dockerfile").write_text("FROM a:1\nWORKDIR /app\nCOPY answer .\n")
    (task,) = bring(str(tmp_path / "source"), tmp_path / "again")
    assert task.built, "left to the engine, whose context has no solution either"


@pytest.mark.parametrize("kind", ["swe", "nl2repo"])
def test_a_dockerfile_beside_a_repository_or_a_text_is_its_image(tmp_path: Path, kind: str) -> None:
    if kind == "swe":
        folder = swe_folder(tmp_path / "source/one")
    else:
        folder = nl2repo_folder(tmp_path / "source/one", {"tests/test_a.py": "import unittest\n"}, 1)
    write(folder, {"environment/Dockerfile": "FROM a:1\nRUN pip install x\n"})
    (task,) = bring(str(tmp_path / "source"), tmp_path / "tasks")
    assert (task.built, task.from_image, task.needs_image) == (True, False, True)
    assert not (task.environment / "Dockerfile").exists()
    (folder / "environment/Dockerfile").write_text("FROM a:1\n")
    (task,) = bring(str(tmp_path / "source"), tmp_path / "plain")
    assert (task.image, task.built) == ("a:1", False)
