"""Where tasks come from: folders in gyre's layout or another one, a data set of SWE instances, an index of a screening.

`examine` says what is wrong without writing anything; `bring` makes every task a folder of gyre's own layout, which is
what a run keeps and runs.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gyre.tasks import harbor, nl2repo, swe, terminal_bench
from gyre.tasks.context import Context
from gyre.tasks.folder import Task, load_task, load_tasks, refuse_doubles
from gyre.tasks.task_file import BUILD_SECONDS, TaskError
from gyre.tasks.word_folders import write_word_tasks
from gyre.tasks.writing import Described

_LAYOUTS: tuple[ModuleType, ...] = (swe, nl2repo, terminal_bench, harbor)
WORDS = "words:"


@dataclass(frozen=True, slots=True)
class Found:
    """A task as it was found: its name, where, and what makes it a folder of gyre's layout (it may raise TaskError)."""

    name: str
    path: Path
    write: Callable[[Path], object]
    image: str = ""
    """Its image; empty: any will do."""
    context: Context | None = None
    """What the image is built of; None: it is somebody else's."""
    build_seconds: float = BUILD_SECONDS
    """The most that building it may take."""


@dataclass(frozen=True, slots=True)
class Index:
    """Tasks of a source that are chosen by name."""

    source: str
    """Folder, data set or word tasks; a folder is taken from where the index lies."""
    seed: int
    tasks: tuple[str, ...]


def examine(source: str) -> None:
    """Refuse a source that cannot be used, as far as can be told without unpacking. Raises TaskError."""
    if not source.startswith(WORDS) and not is_index(source):
        found = list(_found(Path(source).expanduser()))
        refuse_doubles([(each.name, each.path) for each in found])
    elif not source.startswith(WORDS):
        examine(read_index(Path(source)).source)


def bring(source: str, target: Path, seed: int = 0) -> tuple[Task, ...]:
    """Every task of `source` as a folder below the new folder `target`. Raises TaskError.

    `seed` is that of word tasks (`words:<count>:<split>`).
    """
    if source.startswith(WORDS):
        _, count, split = source.split(":")
        write_word_tasks(target, seed, int(count), "heldout" if split == "heldout" else "train")
    elif is_index(source):
        return _bring_chosen(read_index(Path(source)), target)
    else:
        target.mkdir(parents=True)
        found = list(_found(Path(source).expanduser()))
        refuse_doubles([(each.name, each.path) for each in found])
        for each in found:
            each.write(target / each.path.name if each.path.is_dir() else target / each.name)
    return load_tasks(target)


def bring_each(source: str, target: Path) -> tuple[tuple[Task, ...], tuple[TaskError, ...]]:
    """Like `bring`, but a bad task keeps no other one out: (tasks, what is wrong with those that are not among them).

    Raises TaskError where the source as a whole cannot be used.
    """
    folder = Path(source).expanduser()
    if source.startswith(WORDS) or not folder.is_dir():
        return bring(source, target), ()
    tasks: list[Task] = []
    wrong: list[TaskError] = []
    for path in _folders(folder):
        try:
            found = _read(path)
            found.write(target / path.name)
            tasks.append(load_task(target / path.name))
        except TaskError as error:
            wrong.append(error)
    refuse_doubles([(task.name, task.path) for task in tasks])
    return tuple(tasks), tuple(wrong)


def images_of(source: str) -> tuple[tuple[Found, ...], tuple[TaskError, ...]]:
    """The tasks of `source` that name an image or build one, and what is wrong with others.

    Raises TaskError where the source as a whole cannot be used.
    """
    if source.startswith(WORDS):
        return (), ()
    if is_index(source):
        index = read_index(Path(source))
        some, wrong = images_of(index.source)
        return tuple(found for found in some if found.name in index.tasks), wrong
    path = Path(source).expanduser()
    if not path.is_dir():
        return tuple(found for found in _found(path) if found.image), ()
    found: list[Found] = []
    wrongs: list[TaskError] = []
    for folder in _folders(path):
        try:
            found.append(_read(folder))
        except TaskError as error:
            wrongs.append(error)
    return tuple(each for each in found if each.image), tuple(wrongs)


def is_index(source: str) -> bool:
    """Whether a source is a screening's index."""
    return source.endswith(".json") and Path(source).expanduser().is_file()


def read_index(file: Path) -> Index:
    """What `gyre tasks screen` wrote. Raises TaskError."""
    file = file.expanduser().absolute()
    try:
        raw: Any = json.loads(file.read_text(encoding="utf-8"))
        source, seed, tasks = str(raw["source"]), int(raw["seed"]), tuple(str(each) for each in raw["tasks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TaskError(f"{file}: not an index that `gyre tasks screen` wrote: {error!r}") from error
    if not tasks:
        raise TaskError(f"{file}: names no task; screen other tasks, or with more rollouts")
    return Index(source if source.startswith(WORDS) else str(file.parent / source), seed, tasks)


def _bring_chosen(index: Index, target: Path) -> tuple[Task, ...]:
    whole = target.with_name(f"{target.name}.whole")
    try:
        tasks = {task.name: task for task in bring(index.source, whole, index.seed)}
        if missing := [name for name in index.tasks if name not in tasks]:
            raise TaskError(f"{index.source}: holds no task {missing[0]!r}, which the index names; screen it again")
        target.mkdir(parents=True)
        for name in index.tasks:
            tasks[name].path.rename(target / tasks[name].path.name)
    finally:
        shutil.rmtree(whole, ignore_errors=True)
    return load_tasks(target)


def _found(source: Path) -> Iterator[Found]:
    if source.suffix == ".jsonl" and source.is_file():
        for described in swe.read_lines(source):
            yield _described(described, source, swe.write)
        return
    for path in _folders(source):
        yield _read(path)


def _folders(source: Path) -> list[Path]:
    if not source.is_dir():
        raise TaskError(f"{source}: no such folder of tasks")
    paths = sorted(entry for entry in source.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not paths:
        raise TaskError(
            f"{source}: holds no tasks; each task is a folder with task.toml, instruction.md and tests/test.sh"
        )
    return [path.absolute() for path in paths]


def _read(path: Path) -> Found:
    layout = next((each for each in _LAYOUTS if each.recognises(path)), None)
    if layout is None:
        task = load_task(path)
        return Found(task.name, path, lambda target: shutil.copytree(path, target, symlinks=True), task.image)
    return _described(layout.read(path), path, layout.write)


def _described(described: Described, path: Path, write: Callable[[Any, Path], None]) -> Found:
    origin = described.origin
    context = origin.context if origin.built else None
    seconds = described.settings.environment.build_timeout_sec
    return Found(described.name, path, _Writing(write, described), origin.image, context, seconds)


@dataclass(frozen=True, slots=True)
class _Writing:
    """A description and what writes it."""

    layout_write: Callable[[Any, Path], None]
    described: Any

    def __call__(self, target: Path) -> None:
        self.layout_write(self.described, target)
