"""A command line that scores instead of the tasks' own tests, under the same contract; and how evaluators are named.

`{tests}`, `{task}` and `{instruction}` stand for the folder of the task's tests, its name and its instruction file.
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gyre.evaluators.port import EvaluatorError
from gyre.tasks.folder import Task
from schemas.rewards import EvaluatorKind

_PLACES = ("tests", "task", "instruction")
_PLACE = re.compile(r"\{(\w+)\}")
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Template:
    """A command line with places to fill in."""

    line: str
    words: tuple[str, ...]

    @classmethod
    def parse(cls, line: str, here: Path) -> "Template":
        """Split as a shell would; words that name files below `here` become absolute. Raises EvaluatorError."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise EvaluatorError(f"evaluator {line!r}: {error}; quote it as for a shell") from error
        if not words:
            raise EvaluatorError(f"evaluator {line!r}: is empty; give a command, or leave it out for the tasks' tests")
        for word in words:
            for place in _PLACE.findall(word):
                if place not in _PLACES:
                    known = ", ".join(f"{{{each}}}" for each in _PLACES)
                    raise EvaluatorError(f"evaluator {line!r}: {{{place}}} stands for nothing; one of {known}")
        return cls(line, tuple(str(here / word) if "/" in word and (here / word).is_file() else word for word in words))

    def files(self) -> tuple[Path, ...]:
        """The files that it names: it may read them where not everything can be read."""
        return tuple(Path(word) for word in self.words if Path(word).is_absolute() and Path(word).is_file())

    def arguments(self, task: Task, tests: Path, instruction: Path) -> tuple[str, ...]:
        """The command for one task, whose tests and instruction were copied to these places."""
        places = {"tests": str(tests), "task": task.name, "instruction": str(instruction)}
        return tuple(_PLACE.sub(lambda found: places[found[1]], word) for word in self.words)


def digest(template: Template | None, tasks: Iterable[Task]) -> str:
    """SHA-256, hex, of all that decides a score: the command, the files it names, and every task's tests.

    Raises EvaluatorError for a file that cannot be read.
    """
    found = sha256()
    try:
        for word in template.words if template else ():
            found.update(
                framed(word.encode(), Path(word).read_bytes() if "/" in word and Path(word).is_file() else b"")
            )
        for task in sorted(tasks, key=lambda task: task.name):
            found.update(framed(task.name.encode(), str(task.verifier_timeout).encode()))
            if template is not None and any("{instruction}" in word for word in template.words):
                found.update(framed(task.instruction.encode()))
            for path in sorted(path for path in task.tests.rglob("*") if path.is_file()):
                mode = b"x" if path.stat().st_mode & 0o100 else b"-"
                found.update(framed(str(path.relative_to(task.tests)).encode(), mode + path.read_bytes()))
    except OSError as error:
        raise EvaluatorError(f"evaluator: {error.filename} cannot be read: {error.strerror}") from error
    return found.hexdigest()


def scoring_name(kind: EvaluatorKind, digest_: str) -> str:
    """A token that names the scoring with this digest."""
    return f"{kind}-{digest_[:_DIGITS]}"


def framed(*parts: bytes) -> bytes:
    """Parts told apart by their lengths."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
