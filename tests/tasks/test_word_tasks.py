"""The generated word tasks: deterministic, disjoint, solvable, and graded in part."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from gyre.tasks.folder import Task, load_task, load_tasks
from gyre.tasks.word_folders import write_word_tasks
from gyre.tasks.words import WORDS, word_tasks

Work = Callable[[Task, Path], None]
Graded = Callable[[Task, Work], float]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def written(text_by_file: dict[str, str]) -> Work:
    def work(_task: Task, workspace: Path) -> None:
        for name, text in text_by_file.items():
            (workspace / name).write_text(text)

    return work


def task_of(folder: Path, family: str) -> Task:
    """The first held-out task of a family, on disk."""
    index = next(i for i, task in enumerate(word_tasks(0, "heldout")) if task.family == family)
    return load_task(write_word_tasks(folder, 0, index + 1, "heldout")[index])


def test_the_same_arguments_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_word_tasks(tmp_path / name, 3, 16, "train")
    write_word_tasks(tmp_path / "c", 4, 16, "train")
    assert contents(tmp_path / "a") == contents(tmp_path / "b") != contents(tmp_path / "c")


def test_no_held_out_instruction_occurs_in_training_whatever_the_seeds() -> None:
    train = {task.instruction for seed in range(5) for task in islice(word_tasks(seed, "train"), 400)}
    held_out = {task.instruction for seed in range(5) for task in islice(word_tasks(seed, "heldout"), 400)}
    assert len(held_out) > 400
    assert not train & held_out


def test_a_line_copy_is_at_most_a_quarter_of_the_tasks() -> None:
    families = [task.family for task in islice(word_tasks(0, "train"), 400)]
    assert 0 < families.count("line") <= 100
    assert set(families) == {"write", "append", "pair", "copy", "line"}


def test_there_are_sixty_different_words() -> None:
    assert len(set(WORDS)) == len(WORDS) == 60


def test_every_solution_earns_everything_and_doing_nothing_earns_nothing(
    tmp_path: Path, graded: Graded, solved: Work
) -> None:
    write_word_tasks(tmp_path / "tasks", 0, 16, "heldout")
    tasks = load_tasks(tmp_path / "tasks")
    assert [graded(task, solved) for task in tasks] == [1.0] * 16
    assert [graded(task, written({})) for task in tasks] == [0.0] * 16


@pytest.mark.parametrize(
    ("files", "reward"),
    [
        ({"WANTED": "elk\n"}, 1.0),
        ({"WANTED": "elk"}, 1.0),
        ({"WANTED": "owl\n"}, 0.3),
        ({"WANTED": "owl\nelk\n"}, 0.5),
        ({"WANTED": "elks\n"}, 0.3),
        ({"WANTED": "elk\n", "stray": ""}, 0.9),
        ({"WANTED": "elk\n", "two words": "", ".hidden": ""}, 0.8),
        ({"stray": "elk\n"}, 0.0),
        ({"WANTED": "x\n" * 100_000}, 0.3),
    ],
)
def test_part_of_a_write_earns_part_of_the_reward(
    tmp_path: Path, graded: Graded, files: dict[str, str], reward: float
) -> None:
    task = task_of(tmp_path / "tasks", "write")
    _, word, _, file, _ = task.instruction.split('"')
    named = {name.replace("WANTED", file): text.replace("elk", word) for name, text in files.items()}
    assert graded(task, written(named)) == reward


def test_half_a_pair_earns_half(tmp_path: Path, graded: Graded) -> None:
    task = task_of(tmp_path / "tasks", "pair")
    word, file = task.instruction.split('"')[1:4:2]
    assert graded(task, written({file: word})) == 0.5


def test_copying_the_wrong_line_or_spoiling_the_source_costs(tmp_path: Path, graded: Graded) -> None:
    task = task_of(tmp_path / "tasks", "line")
    here, there = task.instruction.split('"')[1:4:2]
    number = int(task.instruction.split()[2])
    lines = (task.environment / here).read_text().splitlines()
    assert graded(task, written({there: lines[number % 3]})) == 0.5
    assert graded(task, written({there: lines[number - 1], here: "gone\n"})) == 0.9


def test_a_bad_split_or_count_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split: 'test' is not one of train, heldout"):
        write_word_tasks(tmp_path, 0, 1, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count: 0 is not at least 1"):
        write_word_tasks(tmp_path, 0, 0, "train")
