"""Who scores a run's preserved work, as [evaluator] says: who supplies the reward, who else is heard, and where."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gyre.config import Config
from gyre.config_evaluator import Kind
from gyre.evaluators.command import CommandEvaluator
from gyre.evaluators.judge.evaluator import JudgeEvaluator
from gyre.evaluators.port import Evaluator, EvaluatorError, Run
from gyre.evaluators.template import Template
from gyre.sandboxes.make import make_sandbox
from gyre.sandboxes.port import Sandbox
from gyre.tasks.folder import Task
from gyre.tasks.places import grading_places
from services.grading import Sandboxed


@dataclass(frozen=True, slots=True)
class Judges:
    """All that score."""

    designated: Evaluator
    """Its word is the reward."""
    beside: tuple[Evaluator, ...]
    """Recorded, and no reward changes."""
    sandbox: Sandbox

    async def close(self) -> None:
        """Nothing of theirs runs on."""
        await self.sandbox.close()


def judges_of(config: Config, hidden: Path) -> Judges:
    """One set for a whole process, made before it starts children of its own.

    Args:
        config: of the run.
        hidden: the run's folder, of which tests see nothing but what is theirs, where a sandbox can see to that.

    Raises:
        EvaluatorError, SandboxError: what is configured cannot be had here.
    """
    chosen = config.evaluator
    kind = chosen.sandbox or config.sandbox.kind
    check_evaluators(config)
    sandbox = make_sandbox(config.sandbox.model_copy(update={"kind": kind}), hidden)
    run = Sandboxed(sandbox, kind, chosen.image, chosen.setup_seconds)
    made = [_evaluator(config, each, run) for each in chosen.kinds]
    return Judges(made[0], tuple(made[1:]), sandbox)


def check_evaluators(config: Config) -> None:
    """A command can be split into words, and a judge's key is there if it takes one. Raises EvaluatorError."""
    judge, kinds = config.evaluator.judge, config.evaluator.kinds
    if "command" in kinds:
        Template.parse(config.evaluator.command, Path.cwd())
    if "judge" in kinds and judge.key_env and not os.environ.get(judge.key_env):
        rule = f"export {judge.key_env}, or leave it empty for a server that asks for none"
        raise EvaluatorError(f"evaluator.judge.key_env = {judge.key_env!r}: is not in this environment; {rule}")


def absent_program(config: Config, tasks: Iterable[Task]) -> str:
    """The program of `evaluator.command`, and that this machine has not got it; "" too where images would hold it.

    One that is named by a place (`{tests}/judge`, /tests/judge) or relative to the workspace is found out about when
    it is run.
    """
    program = _words(config)[0]
    elsewhere = "{" in program or ("/" in program and not Path(program).is_absolute())
    known = not program or elsewhere or _below(program, _mapped(config, tasks)) or shutil.which(program)
    return "" if known else f"{program}: no such program here"


def absent_file(config: Config, tasks: Iterable[Task]) -> str:
    """A file of `evaluator.command` that seems to be meant to be here, and is not; "" too where images would hold it.

    A later word that begins with ./, ../ or / and is no option's value, which may be a file to write. Whether it is
    meant so is not certain: the command is run in the workspace.
    """
    mapped = _mapped(config, tasks)
    absent = next((word for before, word in pairwise(_words(config)) if _is_no_file(before, word, mapped)), "")
    return f"{absent}: no such file here (one of the workspace is named without ./)" if absent else ""


def _kind(config: Config) -> str:
    return config.evaluator.sandbox or config.sandbox.kind


def _words(config: Config) -> tuple[str, ...]:
    if "command" not in config.evaluator.kinds or _kind(config) not in ("process", "bubblewrap"):
        return ("",)
    return Template.parse(config.evaluator.command, Path.cwd()).words


def _mapped(config: Config, tasks: Iterable[Task]) -> set[str]:
    """What tests find in their sandbox, whatever this machine has there."""
    none = Path()
    places = (place for task in tasks for place in grading_places(task, none, none, none))
    return {name for name, _ in places} if _kind(config) == "bubblewrap" else set()


def _below(word: str, places: set[str]) -> bool:
    return any(Path(word).is_relative_to(place) for place in places)


def _is_no_file(before: str, word: str, mapped: set[str]) -> bool:
    named = word.startswith(("./", "../", "/")) and "{" not in word and not any(map(str.isspace, word))
    return named and not before.startswith("-") and not _below(word, mapped) and not Path(word).exists()


def _evaluator(config: Config, kind: Kind, run: Run) -> Evaluator:
    chosen = config.evaluator
    if kind == "judge":
        return JudgeEvaluator(chosen.judge, run, os.environ.get(chosen.judge.key_env, ""))
    return CommandEvaluator(run, Template.parse(chosen.command, Path.cwd()) if kind == "command" else None)
