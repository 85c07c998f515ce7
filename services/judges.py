"""Who scores a run's preserved work, as [evaluator] says: who supplies the reward, who else is heard, and where."""

import os
import shutil
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


def absent_part(config: Config) -> str:
    """What of `evaluator.command` this machine has not, and what it is; "" too where images would hold it.

    The program, or a file that is plainly meant to be here: a later word that begins with ./, ../ or / and is no
    option's value, which may be a file to write. What is named by a place (`{tests}/judge`) or relative to the
    workspace is found out about when it is run.
    """
    kind = config.evaluator.sandbox or config.sandbox.kind
    if "command" not in config.evaluator.kinds or kind not in ("process", "bubblewrap"):
        return ""
    program, *others = Template.parse(config.evaluator.command, Path.cwd()).words
    elsewhere = "{" in program or ("/" in program and not Path(program).is_absolute())
    if not (elsewhere or shutil.which(program)):
        return f"{program}: no such program here"
    absent = next((word for before, word in pairwise([program, *others]) if _is_no_file(before, word)), "")
    return f"{absent}: no such file here (one of the workspace is named without ./)" if absent else ""


def _is_no_file(before: str, word: str) -> bool:
    named = word.startswith(("./", "../", "/")) and "{" not in word and not any(map(str.isspace, word))
    return named and not before.startswith("-") and not Path(word).exists()


def _evaluator(config: Config, kind: Kind, run: Run) -> Evaluator:
    chosen = config.evaluator
    if kind == "judge":
        return JudgeEvaluator(chosen.judge, run, os.environ.get(chosen.judge.key_env, ""))
    return CommandEvaluator(run, Template.parse(chosen.command, Path.cwd()) if kind == "command" else None)
