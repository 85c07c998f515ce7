"""Loading task folders: what is refused, and in which words."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import TaskError, load_task, load_tasks

SETTINGS = 'version = "1.0"\n[metadata]\nname = "{name}"\n[agent]\ntimeout_sec = {timeout}\n'


def make_task(path: Path, *, name: str = "one", timeout: str = "30.0") -> Path:
    (path / "tests").mkdir(parents=True)
    (path / "environment").mkdir()
    (path / "task.toml").write_text(SETTINGS.format(name=name, timeout=timeout))
    (path / "instruction.md").write_text("  Do it.\n\n")
    (path / "tests" / "test.sh").write_text("exit 0\n")
    return path


def test_a_task_knows_its_instruction_limits_and_places(tmp_path: Path) -> None:
    task = load_task(make_task(tmp_path / "a"))
    assert (task.name, task.instruction, task.agent_timeout, task.verifier_timeout) == ("one", "Do it.", 30.0, 60.0)
    assert task.environment.is_dir()
    assert (task.tests / "test.sh").is_file()
    assert task.instruction_file.is_file()


def test_tasks_come_in_order_of_their_folders(tmp_path: Path) -> None:
    make_task(tmp_path / "b", name="first")
    make_task(tmp_path / "a", name="second")
    (tmp_path / ".cache").mkdir()
    assert [task.name for task in load_tasks(tmp_path)] == ["second", "first"]


def without(name: str) -> Callable[[Path], None]:
    return lambda task: (task / name).unlink()


def with_text(name: str, text: str) -> Callable[[Path], None]:
    def spoil(task: Path) -> None:
        (task / name).write_text(text)

    return spoil


def linked(target: str) -> Callable[[Path], None]:
    return lambda task: (task / "environment" / "link").symlink_to(target)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("tests/test.sh"), "tests/test.sh is missing"),
        (without("instruction.md"), "instruction.md is missing"),
        (without("task.toml"), "task.toml is missing"),
        (with_text("instruction.md", " \n"), "is empty; say what"),
        (with_text("task.toml", "version = "), "not readable as TOML"),
        (with_text("task.toml", 'version = "1.0"\n[agent]\ntimeout_sec = 0'), "agent.timeout_sec = 0"),
        (with_text("task.toml", 'version = "1.0"\n[verifier]\ntimeout_sec = -1.0'), "verifier.timeout_sec = -1.0"),
        (with_text("task.toml", 'version = "1.0"\n[verifier]\ntimeout_sec = nan'), "verifier.timeout_sec = nan"),
        (with_text("task.toml", 'version = "1.0"\n[environment]\nsetup_timeout_sec = "9"'), "setup_timeout_sec = '9'"),
        (linked("/etc/hostname"), "links to a place outside the task folder"),
        (linked("../../../else"), "links to a place outside the task folder"),
        (lambda task: os.mkfifo(task / "environment" / "pipe"), "neither a file nor a folder"),
    ],
)
def test_a_bad_task_is_refused_in_one_line(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(make_task(tmp_path / "bad"))
    with pytest.raises(TaskError) as refused:
        load_tasks(tmp_path)
    text = str(refused.value)
    assert message in text
    assert "bad" in text
    assert "\n" not in text


def test_a_link_inside_the_task_is_allowed(tmp_path: Path) -> None:
    task = make_task(tmp_path / "a")
    (task / "environment" / "real").write_text("x")
    (task / "environment" / "link").symlink_to("real")
    assert load_task(task).name == "one"


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    make_task(tmp_path / "a")
    make_task(tmp_path / "b")
    with pytest.raises(TaskError, match="also the name of"):
        load_tasks(tmp_path)


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds no tasks"):
        load_tasks(tmp_path)
    with pytest.raises(TaskError, match="no such folder"):
        load_tasks(tmp_path / "missing")
