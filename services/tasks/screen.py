"""How hard are tasks for a policy? Several rollouts each, and an index of those that it solves sometimes.

Rollouts are episodes of an evaluation: engine, proxy, harness, sandbox and tests are those of a run. The index is
written after each batch of tasks, so that a second call goes on where the first one ended.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.tasks.folder import Task, TaskError
from gyre.tasks.sources import WORDS, bring
from services.eval_run import score_tasks

SOLVED = 1.0 - 1e-6
"""Score from which on a task counts as solved."""
_DIGITS = 6  # scores are float32 in the log
Shown = Callable[[int, int], None]
"""(tasks with all their rollouts, tasks)."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for."""

    source: str
    model: str
    rollouts: int
    index: Path
    seed: int = 0
    """Of word tasks."""
    runs: Path = Path("runs")
    overrides: Sequence[str] = ()
    batch: int = 16
    """Tasks of one evaluation, after which the index is written."""


@dataclass(slots=True)
class Screening:
    """What is known about each task."""

    wish: Wish
    scores: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def resumed(cls, wish: Wish) -> "Screening":
        """With what the index file says already. Raises TaskError where that is about something else."""
        if not wish.index.exists():
            return cls(wish)
        try:
            told: Any = json.loads(wish.index.read_text(encoding="utf-8"))
            asked = (_source(wish), wish.seed, wish.model)
            found = (told["source"], told["seed"], told["model"])
            scores = {str(name): [float(score) for score in scores] for name, scores in told["scores"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TaskError(f"{wish.index}: is no index that can be gone on with; name another --index") from error
        if found != asked:
            raise TaskError(f"{wish.index}: is about source, seed and model {found}, not {asked}; name another --index")
        return cls(wish, scores)

    def missing(self, name: str) -> int:
        """Rollouts that a task still lacks."""
        return max(0, self.wish.rollouts - len(self.scores.get(name, ())))

    def solved(self, name: str) -> int:
        """How many rollouts solved a task."""
        return sum(score >= SOLVED for score in self.scores.get(name, ()))

    def chosen(self) -> list[str]:
        """Tasks that have all their rollouts, some of which solved it and some not."""
        return [
            name for name in self.scores if not self.missing(name) and 0 < self.solved(name) < len(self.scores[name])
        ]

    def told(self) -> dict[str, Any]:
        """The index."""
        return {
            "source": _source(self.wish),
            "seed": self.wish.seed,
            "model": self.wish.model,
            "rollouts": self.wish.rollouts,
            "tasks": self.chosen(),
            "solved": {name: self.solved(name) for name in self.scores},
            "scores": self.scores,
        }

    def write(self) -> None:
        """Replace the index file as a whole."""
        self.wish.index.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.wish.index.with_name(f"{self.wish.index.name}.new")
        fresh.write_text(json.dumps(self.told(), indent=1) + "\n", encoding="utf-8")
        os.replace(fresh, self.wish.index)


async def screen(wish: Wish, shown: Shown) -> Screening:
    """Give each task its rollouts and write the index.

    Raises:
        TaskError: the source or the index cannot be used.
        EvaluationFailed: there is no such model, or the services could not go on; the index holds what was found.
    """
    screening = Screening.resumed(wish)
    with tempfile.TemporaryDirectory(prefix="gyre-screen-") as name:
        tasks = bring(wish.source, Path(name) / "tasks", wish.seed)
        for task in tasks:
            screening.scores.setdefault(task.name, [])
        screening.write()
        for batch in _batches(tasks, screening):
            shown(sum(not screening.missing(task.name) for task in tasks), len(tasks))
            await _rollouts(screening, batch, Path(name) / "batch")
            screening.write()
    return screening


async def _rollouts(screening: Screening, tasks: list[Task], folder: Path) -> None:
    for task in tasks:
        shutil.copytree(task.path, folder / task.path.name, symlinks=True)
    wish = screening.wish
    lacking = screening.missing(tasks[0].name)
    drawn = f"run.seed={wish.rollouts - lacking}"  # further rollouts must not be the first ones again
    found = await score_tasks(wish.model, wish.runs, folder, lacking, [*wish.overrides, drawn])
    for task, scores in zip(tasks, found, strict=True):
        screening.scores[task.name] += [round(score, _DIGITS) for score in scores]
    shutil.rmtree(folder)


def _batches(tasks: tuple[Task, ...], screening: Screening) -> list[list[Task]]:
    """Tasks that lack rollouts, those that lack the same number together, in order of their folders."""
    by_lack: dict[int, list[Task]] = {}
    for task in sorted(tasks, key=lambda task: task.path.name):
        if lack := screening.missing(task.name):
            by_lack.setdefault(lack, []).append(task)
    size = screening.wish.batch
    return [group[at : at + size] for group in by_lack.values() for at in range(0, len(group), size)]


def _source(wish: Wish) -> str:
    """As it stands in the index: folders as seen from where that lies."""
    if wish.source.startswith(WORDS):
        return wish.source
    return os.path.relpath(Path(wish.source).expanduser().absolute(), wish.index.absolute().parent)
