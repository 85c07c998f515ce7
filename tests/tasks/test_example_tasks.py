"""The tasks in examples can be solved, and are not solved by doing nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.tasks.folder import Task, load_tasks

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = (*load_tasks(EXAMPLES / "tasks"), *load_tasks(EXAMPLES / "first-tasks"))
Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]


def nothing(_task: Task, _workspace: Path) -> None:
    """An agent that ends at once."""


def emptied(_task: Task, workspace: Path) -> None:
    """An agent that deletes everything."""
    for entry in workspace.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def half_summed(_task: Task, workspace: Path) -> None:
    """An agent that finds one of two sums."""
    (workspace / "total.txt").write_text("units=25\n")


def half_written(_task: Task, workspace: Path) -> None:
    """An agent that writes one file of three right and another one wrong."""
    (workspace / "red.txt").write_text("apple\n")
    (workspace / "blue.txt").write_text("sea\n")


def test_there_are_at_least_24_tasks_of_three_difficulties() -> None:
    tasks = load_tasks(EXAMPLES / "tasks")
    assert len(tasks) >= 24
    assert {task.difficulty for task in tasks} == {"easy", "medium", "hard"}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_solution_earns_everything(task: Task, graded: Graded, solved: Work) -> None:
    assert graded(task, solved) == 1.0


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_doing_nothing_earns_nothing(task: Task, graded: Graded) -> None:
    assert graded(task, nothing) == 0.0


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_an_emptied_workspace_is_graded_zero_and_not_an_error(task: Task, graded: Graded) -> None:
    assert graded(task, emptied) == 0.0


@pytest.mark.parametrize(
    ("name", "script", "earned"),
    [
        ("fix-greeting-script", 'echo "Hello, $1!"; [ "$1" != Bob ] || sleep 600', 0.5),
        ("fix-backup-script", 'mkdir "$2"; echo x >"$2/x.bak"; setsid sleep 20 & while :; do :; done', 0.3),
    ],
)
def test_work_that_hangs_loses_what_it_hangs_in(graded: Graded, name: str, script: str, earned: float) -> None:
    """Tests that were ended at their deadline would have no score, and hanging would be better than failing."""
    task = next(task for task in TASKS if task.name == name)
    (file,) = (path.name for path in task.environment.glob("*.sh"))

    def hang(_: Task, workspace: Path) -> None:
        (workspace / file).write_text(script)

    assert graded(task, hang) == earned


def test_part_of_the_work_earns_part_of_the_reward(graded: Graded) -> None:
    task = next(task for task in TASKS if task.name == "csv-sum")
    assert graded(task, half_summed) == 0.5


def test_each_file_of_a_first_task_counts(graded: Graded) -> None:
    task = next(task for task in TASKS if task.name == "three-colours")
    assert graded(task, half_written) == 0.4
