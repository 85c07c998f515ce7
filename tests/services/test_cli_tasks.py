"""gyre tasks validate: sound tasks pass, and each way of being unsound is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.services.conftest import Gyre, refusal
from tests.tasks.layouts import harbor_folder, swe_folder, write

EXAMPLES = Path(__file__).parents[2] / "examples"
SHARED = ("--set", "sandbox.kind=process")


def task(path: Path, *, tests: str = "", solve: str = "echo done >out", toml: str = "") -> Path:
    files = {
        "task.toml": f'version = "1.0"\n{toml}',
        "instruction.md": "Write done to out.\n",
        "tests/test.sh": tests or 'grep -qx done out && echo 1 >"$REWARD_FILE" || echo 0 >"$REWARD_FILE"\n',
    }
    write(path, files | ({"solution/solve.sh": solve + "\n"} if solve else {}))
    return path


def told(gyre: Gyre, source: Path, *options: str, code: int = 0) -> Any:
    result = gyre("tasks", "validate", source, "--json", *SHARED, *options)
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"  # a tuple would be cut
    return json.loads(result.stdout)


@pytest.mark.parametrize("kind", ["tasks", "first-tasks", "harbor", "swe", "nl2repo"])
def test_all_example_tasks_are_sound(gyre: Gyre, kind: str) -> None:
    found = told(gyre, EXAMPLES / kind, "--repeat", "2")
    assert found["sound"] == len(found["tasks"]) >= 2
    assert found["refused"] == []
    for each in found["tasks"]:
        assert (each["solution"], each["empty"], each["problems"]) == ([1.0, 1.0], [0.0, 0.0], [])


def test_people_get_a_table_and_a_count(gyre: Gyre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    name = f"one-with-{'-'.join(['a'] * 40)}-long-name"
    task(tmp_path / "t" / name)
    result = gyre("tasks", "validate", tmp_path / "t", *SHARED)
    assert result.exit_code == 0
    assert f" {name} " in result.stdout
    assert "1 of 1 tasks are sound (sandbox.kind = process)" in result.stdout


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"solve": ""}, "solution/solve.sh is missing"),
        ({"solve": "echo else >out"}, "solution: scores 0 and not 1"),
        ({"solve": "exit 3"}, "solution/solve.sh ended with exit code 3"),
        ({"solve": "echo done >out; sleep 60", "toml": "[agent]\ntimeout_sec = 0.3\n"}, "solution/solve.sh"),
        ({"tests": 'echo 1 >"$REWARD_FILE"'}, "empty: scores 1 and not 0"),
        ({"tests": "exit 7"}, "empty: scores none and not 0: tests ended with exit code 7"),
        (
            {"tests": "sleep 60", "toml": "[verifier]\ntimeout_sec = 0.3\n"},
            "empty: scores none and not 0: tests were end",
        ),
    ],
)
def test_an_unsound_task_is_told_why(gyre: Gyre, tmp_path: Path, fields: dict[str, str], problem: str) -> None:
    task(tmp_path / "t/bad", **fields)
    task(tmp_path / "t/good")
    found = told(gyre, tmp_path / "t", "--repeat", "1", code=1)
    assert [each["sound"] for each in found["tasks"]] == [False, True]
    assert any(said.startswith(problem) for said in found["tasks"][0]["problems"]), found


def test_tests_that_do_not_always_say_the_same_are_found(gyre: Gyre, tmp_path: Path) -> None:
    count = tmp_path / "count"
    tests = f'echo x >>"{count}"; echo $(( $(wc -l <"{count}") % 3 == 0 )) >"$REWARD_FILE"\n'
    task(tmp_path / "t/flaky", tests=tests)
    found = told(gyre, tmp_path / "t", "--repeat", "4", "--jobs", "1", code=1)
    assert any("not the same score every time" in said for said in found["tasks"][0]["problems"])


def test_a_workspace_that_holds_the_tests_or_the_solution_is_found(gyre: Gyre, tmp_path: Path) -> None:
    leaky = task(tmp_path / "t/leaky")
    write(leaky, {"environment/notes/old.sh": (leaky / "tests/test.sh").read_text()})
    (leaky / "solution/solve.sh").write_text("# what is to be done, step by step\necho done >out\n")
    write(leaky, {"environment/hint": (leaky / "solution/solve.sh").read_text()})
    problems = told(gyre, tmp_path / "t", "--repeat", "1", code=1)["tasks"][0]["problems"]
    assert problems == ["the agent is given tests/test.sh", "the agent is given solution/solve.sh"]


def test_a_solution_may_link_to_its_work_by_the_tasks_own_name_for_the_workspace(gyre: Gyre, tmp_path: Path) -> None:
    solve = "mkdir v2; echo done >v2/out; ln -s /app/v2/out out"
    task(tmp_path / "t/linked", solve=solve, toml='[environment]\nworkdir = "/app"\n')
    assert told(gyre, tmp_path / "t", "--repeat", "1")["sound"] == 1


def test_a_solution_that_takes_most_of_its_limit_is_remarked(gyre: Gyre, tmp_path: Path) -> None:
    limits = "[agent]\ntimeout_sec = 4.0\n"
    task(tmp_path / "t/slow", solve="echo done >out; sleep 2.2", toml=limits)
    found = told(gyre, tmp_path / "t", "--repeat", "1", "--jobs", "1")["tasks"][0]
    assert found["sound"]
    assert "agent.timeout_sec = 4 s; raise it" in found["remarks"][0]


def test_a_bad_folder_keeps_no_other_one_out(gyre: Gyre, tmp_path: Path) -> None:
    task(tmp_path / "t/good")
    shutil.rmtree(task(tmp_path / "t/untested") / "tests")
    swe_folder(tmp_path / "t/broken", test_patch="nonsense")
    found = told(gyre, tmp_path / "t", "--repeat", "1", code=1)
    assert [each["name"] for each in found["tasks"]] == ["good"]
    assert ["tests/test.sh is missing" in said or "git apply" in said for said in found["refused"]] == [True, True]


def test_a_task_that_cannot_run_here_is_not_called_sound(gyre: Gyre, tmp_path: Path) -> None:
    harbor_folder(tmp_path / "t/boxed")
    (problem,) = told(gyre, tmp_path / "t", code=1)["tasks"][0]["problems"]
    assert "needs image a:1, which sandbox.kind = process has not" in problem


def test_one_task_may_be_chosen_and_an_unknown_one_is_refused(gyre: Gyre, tmp_path: Path) -> None:
    task(tmp_path / "t/one")
    task(tmp_path / "t/two")
    assert [each["name"] for each in told(gyre, tmp_path / "t", "--task", "two")["tasks"]] == ["two"]
    assert "--task three: " in refusal(gyre("tasks", "validate", tmp_path / "t", "--task", "three"))


def test_several_sources_are_validated_together(gyre: Gyre, tmp_path: Path) -> None:
    task(tmp_path / "a/one", toml='[metadata]\nname = "first"\n')
    task(tmp_path / "b/one")
    result = gyre("tasks", "validate", tmp_path / "a", tmp_path / "b", "--json", "--repeat", "1", *SHARED)
    assert [each["name"] for each in json.loads(result.stdout)["tasks"]] == ["first", "one"]


def test_a_missing_folder_is_one_line(gyre: Gyre, tmp_path: Path) -> None:
    assert "no such folder of tasks" in refusal(gyre("tasks", "validate", tmp_path / "nowhere"))
