"""SWE tasks: a repository without a past, tests kept back, and a reward by named tests."""

import hashlib
import json
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task
from gyre.tasks.sources import bring
from gyre.tasks.task_file import TaskError
from tests.tasks.layouts import FIXED, NEW_TEST, instance, swe_folder

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]
EXAMPLES = Path(__file__).parents[2] / "examples/swe"
SHARE = '[gyre]\nscoring = "share"\n'


def one(source: Path, target: Path) -> Task:
    (task,) = bring(str(source), target)
    return task


def brought(tmp_path: Path, **changes: object) -> Task:
    swe_folder(tmp_path / "source/halves", **changes)  # type: ignore[arg-type]
    return one(tmp_path / "source", tmp_path / "tasks")


def said(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def objects(folder: Path) -> dict[str, bytes]:
    """Everything in a repository's store, by its id."""
    files = [path for path in (folder / ".git/objects").rglob("*") if path.is_file()]
    assert all(len(path.parent.name) == 2 for path in files), "a pack would have to be looked into"
    return {path.parent.name + path.name: zlib.decompress(path.read_bytes()) for path in files}


def blob(text: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(text) + text, usedforsecurity=False).hexdigest()


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """The example whose bundle has a past, and a future that holds the solution."""
    tasks = bring(str(EXAMPLES), tmp_path_factory.mktemp("swe") / "tasks")
    return next(task for task in tasks if task.name == "gyre__spans-1")


def test_the_bundle_of_the_example_does_hold_the_solution(tmp_path: Path) -> None:
    said(tmp_path, "init", "-q", "--bare", ".")
    said(tmp_path, "fetch", "-q", str(EXAMPLES / "spans/repo.bundle"), "+refs/*:refs/all/*")
    assert len(said(tmp_path, "rev-list", "--all").split()) == 4
    assert "max(found[-1].last, span.last)" in said(tmp_path, "show", "refs/all/tags/v2:spans/spans.py")


def test_the_agent_gets_one_commit_and_nothing_else(spans: Task) -> None:
    environment = spans.environment
    assert len(said(environment, "rev-list", "--all").split()) == 1
    assert said(environment, "status", "--porcelain") == ""
    assert said(environment, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    assert said(environment, "reflog") == said(environment, "stash", "list") == ""
    assert {path.name for path in (environment / ".git").iterdir()} == {"HEAD", "config", "index", "objects", "refs"}
    reachable = said(environment, "rev-list", "--objects", "--all").splitlines()
    assert {line.split()[0] for line in reachable} == set(objects(environment))


def test_no_object_of_the_past_or_of_the_solution_is_present(spans: Task, tmp_path: Path) -> None:
    said(tmp_path, "init", "-q", "--bare", ".")
    said(tmp_path, "fetch", "-q", str(EXAMPLES / "spans/repo.bundle"), "+refs/*:refs/all/*")
    theirs = {line.split()[0] for line in said(tmp_path, "rev-list", "--objects", "--all").splitlines()}
    base = json.loads((EXAMPLES / "spans/instance.json").read_text())["base_commit"]
    given = {line.split()[2] for line in said(tmp_path, "ls-tree", "-r", "-t", base).splitlines()}
    given.add(said(tmp_path, "rev-parse", f"{base}^{{tree}}").strip())
    store = objects(spans.environment)
    assert set(store) & theirs == given
    assert not any(b"secret of the past" in body or b"max(found[-1].last" in body for body in store.values())


def test_the_tests_of_the_patch_are_nowhere_in_the_workspace(spans: Task) -> None:
    hidden = (spans.tests / "lay/tests/test_merged.py").read_bytes()
    assert b"test_neighbours_become_one" in hidden
    assert blob(hidden) not in objects(spans.environment)
    files = [path for path in spans.environment.rglob("*") if path.is_file()]
    assert not any(b"neighbours" in path.read_bytes() for path in files)
    assert b"max(found" not in b"".join(path.read_bytes() for path in spans.tests.rglob("*") if path.is_file())


def test_the_same_instance_makes_the_same_commit(tmp_path: Path) -> None:
    first = brought(tmp_path / "a")
    second = brought(tmp_path / "b")
    assert said(first.environment, "rev-parse", "HEAD") == said(second.environment, "rev-parse", "HEAD")


def test_all_named_tests_are_the_reward(tmp_path: Path, graded: Graded, solved: Work) -> None:
    task = brought(tmp_path)
    assert graded(task, solved) == 1.0
    assert graded(task, lambda *_: None) == 0.0


def partly(_task: Task, workspace: Path) -> None:
    (workspace / "halves.py").write_text("def half(number):\n    return 2 if number == 4 else 0\n")


def breaking(_task: Task, workspace: Path) -> None:
    (workspace / "halves.py").write_text("def half(number):\n    return number // 2 or 7\n")


def test_a_share_is_given_where_it_is_asked_for(tmp_path: Path, graded: Graded) -> None:
    assert graded(brought(tmp_path / "share", toml=SHARE), partly) == 0.5
    assert graded(brought(tmp_path / "whole"), partly) == 0.0


def test_breaking_what_passed_costs(tmp_path: Path, graded: Graded) -> None:
    assert graded(brought(tmp_path, toml=SHARE), breaking) == 0.0


def test_what_the_agent_made_of_the_tests_does_not_count(tmp_path: Path, graded: Graded) -> None:
    def spoil(_task: Task, workspace: Path) -> None:
        (workspace / "test_halves.py").write_text(NEW_TEST.replace("2)", "1)").replace("5)", "3)"))

    def delete_and_solve(_task: Task, workspace: Path) -> None:
        (workspace / "test_halves.py").unlink()
        (workspace / "test_halves.py").mkdir()
        (workspace / "halves.py").write_text(FIXED)

    task = brought(tmp_path)
    assert graded(task, spoil) == 0.0
    assert graded(task, delete_and_solve) == 1.0


def test_names_of_django_and_unittest_are_understood(tmp_path: Path, graded: Graded, solved: Work) -> None:
    names = ["test_four (test_halves.HalfTest)", "test_ten (test_halves.HalfTest.test_ten)"]
    assert graded(brought(tmp_path, FAIL_TO_PASS=names), solved) == 1.0


def test_bare_names_are_looked_for_in_the_changed_tests(tmp_path: Path, graded: Graded, solved: Work) -> None:
    task = brought(tmp_path, FAIL_TO_PASS=["test_four", "test_ten"], PASS_TO_PASS=["test_nothing"])
    assert graded(task, solved) == 1.0
    with pytest.raises(TaskError, match="test 'test_six': no file that the test patch touches has it"):
        brought(tmp_path / "other", FAIL_TO_PASS=["test_six"])


def test_patches_without_a_last_newline_are_applied(tmp_path: Path, graded: Graded, solved: Work) -> None:
    cut = {name: str(instance()[name]).rstrip("\n") for name in ("patch", "test_patch")}
    assert graded(brought(tmp_path, **cut), solved) == 1.0


def test_an_issue_may_speak_of_any_place(tmp_path: Path) -> None:
    assert brought(tmp_path, problem_statement="see /app/x and /tests").fixed == ()


def test_each_line_of_a_data_set_is_a_task(tmp_path: Path, graded: Graded, solved: Work) -> None:
    swe_folder(tmp_path / "one")
    (tmp_path / "data/repos").mkdir(parents=True)
    (tmp_path / "one/repo").rename(tmp_path / "data/repos/some__halves")
    lines = [json.dumps(instance(instance_id=f"some__halves-{number}")) for number in (1, 2)]
    (tmp_path / "data/dev.jsonl").write_text("\n".join(lines) + "\n")
    tasks = bring(str(tmp_path / "data/dev.jsonl"), tmp_path / "tasks")
    assert [task.name for task in tasks] == ["some__halves-1", "some__halves-2"]
    assert graded(tasks[1], solved) == 1.0


def test_a_line_of_a_data_set_ends_where_json_says(tmp_path: Path) -> None:
    """These others stand in its strings as they are."""
    swe_folder(tmp_path / "one")
    (tmp_path / "data/repos").mkdir(parents=True)
    (tmp_path / "one/repo").rename(tmp_path / "data/repos/some__halves")
    asked = "half(4)\u2028should\u2029be\x85two"
    line = json.dumps(instance(problem_statement=asked), ensure_ascii=False)
    (tmp_path / "data/dev.jsonl").write_text(f"{line}\r\n{line.replace('-7', '-8')}\n", encoding="utf-8", newline="")
    tasks = bring(str(tmp_path / "data/dev.jsonl"), tmp_path / "tasks")
    assert [task.instruction for task in tasks] == [asked] * 2


def test_an_image_is_where_its_people_have_it(tmp_path: Path) -> None:
    task = brought(tmp_path, docker_image="some/halves:7")
    assert (task.image, task.needs_image, task.workdir) == ("some/halves:7", True, "/testbed")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_patch": ""}, "instance.json: test_patch: "),
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": "[oops"}, "FAIL_TO_PASS"),
        ({"instance_id": "../up"}, "instance_id"),
        ({"FAIL_TO_PASS": '["other.py::test_a"]'}, "'other.py', which is no file of the tested repository"),
        ({"FAIL_TO_PASS": '["test_a (other.Case)"]'}, "no file of the tested repository is module other.Case"),
        ({"test_patch": "nonsense"}, "git apply: "),
        ({"test_patch": instance()["test_patch"].replace("test_halves.py", "../up.py")}, "git apply: "),
    ],
)
def test_a_bad_instance_is_refused_in_one_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(TaskError) as refused:
        brought(tmp_path, **changes)
    assert message in str(refused.value)
    assert "halves" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "up.py").exists()


def test_a_missing_repository_is_named_with_the_way_out(tmp_path: Path) -> None:
    swe_folder(tmp_path / "source/halves")
    (tmp_path / "source/halves/repo").rename(tmp_path / "elsewhere")
    with pytest.raises(TaskError, match=r"its repository is missing; put halves/repo\.bundle"):
        bring(str(tmp_path / "source"), tmp_path / "tasks")


def bundled(tmp_path: Path, base_commit: str = "HEAD") -> Path:
    """A task whose bundle was made by a stranger."""
    folder = swe_folder(tmp_path / "source/halves", base_commit=base_commit)
    repo = folder / "repo"
    said(repo, "init", "-q", "-b", "main")
    said(repo, "add", "-A")
    said(repo, "-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "-m", "all")
    return folder


def test_hooks_settings_and_filters_of_a_repository_never_run(tmp_path: Path) -> None:
    folder = bundled(tmp_path)
    repo, mark = folder / "repo", tmp_path / "ran"
    hook = f"#!/bin/sh\ntouch '{mark}'\n"
    for name in ("post-checkout", "pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        (repo / ".git/hooks").mkdir(exist_ok=True)
        (repo / ".git/hooks" / name).write_text(hook)
        (repo / ".git/hooks" / name).chmod(0o755)
    (tmp_path / "evil").write_text(hook)
    (tmp_path / "evil").chmod(0o755)
    said(repo, "config", "core.fsmonitor", str(tmp_path / "evil"))
    said(repo, "config", "filter.evil.clean", str(tmp_path / "evil"))
    said(repo, "config", "filter.evil.smudge", str(tmp_path / "evil"))
    (repo / ".gitattributes").write_text("* filter=evil\n")
    task = one(tmp_path / "source", tmp_path / "tasks")
    assert not mark.exists()
    assert {path.name for path in (task.environment / ".git").iterdir()} == {
        "HEAD",
        "config",
        "index",
        "objects",
        "refs",
    }
    assert "evil" not in (task.environment / ".git/config").read_text()


@pytest.mark.parametrize("commit", ["0" * 40, "--upload-pack=evil", "", "main~5"])
def test_a_commit_that_is_not_in_the_bundle_is_named(tmp_path: Path, commit: str) -> None:
    folder = bundled(tmp_path, commit)
    said(folder / "repo", "bundle", "create", "-q", str(folder / "repo.bundle"), "--all")
    with pytest.raises(TaskError, match="halves"):
        one(tmp_path / "source", tmp_path / "tasks")


def test_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    folder = swe_folder(tmp_path / "source/halves")
    (folder / "repo/link").symlink_to("/etc/hostname")
    said(folder / "repo", "init", "-q", "-b", "main")
    said(folder / "repo", "add", "-A")
    said(folder / "repo", "-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "-m", "all")
    said(folder / "repo", "bundle", "create", "-q", str(folder / "repo.bundle"), "--all")
    (folder / "repo/link").unlink()
    commit = said(folder / "repo", "rev-parse", "HEAD").strip()
    (folder / "instance.json").write_text(json.dumps(instance(base_commit=commit)))
    with pytest.raises(TaskError, match="links to a place outside"):
        one(tmp_path / "source", tmp_path / "tasks")
