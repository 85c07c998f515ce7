"""The evaluator that runs the task's own `tests/test.sh` in the workspace, or a command that is given instead.

It sees TESTS_DIR (their folder, outside the workspace) and REWARD_FILE, where they may write a number in [0, 1].
Without it, exit 0 means 1 and exit 1 means 0; everything else is the evaluator's failure and no score.
"""

import os
from pathlib import Path

from gyre.evaluators.port import Run, Verdict
from gyre.evaluators.template import Template
from gyre.tasks.folder import Task

_MOST_BYTES = 64  # of a reward file


class CommandEvaluator:
    """Implements `Evaluator`."""

    def __init__(self, run: Run, template: Template | None = None) -> None:
        """`run` says where the tests run; `template` is the command that runs instead of them."""
        self._run, self._template = run, template

    async def evaluate(self, task: Task, workspace: Path, box: Path, limit_seconds: float) -> Verdict:
        """See `Evaluator`."""
        reward = box / "reward.txt"
        reward.unlink(missing_ok=True)
        arguments = self._template.arguments(task) if self._template else _script(task)
        environment = {"TESTS_DIR": str(task.tests), "REWARD_FILE": str(reward)}
        seconds = min(limit_seconds, task.verifier_timeout)
        finished = await self._run(arguments, workspace, box, environment, seconds)
        if finished.exit_code is None:
            return Verdict(None, f"tests were ended after {seconds:g} s: {finished.said}")
        return verdict(finished.exit_code, _written(reward), finished.said)


def _script(task: Task) -> tuple[str, ...]:
    script = task.tests / "test.sh"
    return (str(script),) if os.access(script, os.X_OK) else ("/bin/sh", str(script))


def verdict(exit_code: int, written: str | None, said: str = "") -> Verdict:
    """The score, from the tests' exit code and what they wrote to REWARD_FILE (None: nothing)."""
    if written is not None:
        try:
            score = float(written)
        except ValueError:
            return Verdict(None, f"REWARD_FILE holds {written[:40]!r}: write one number in [0, 1]")
        if not 0.0 <= score <= 1.0:
            return Verdict(None, f"REWARD_FILE holds {score:g}: write one number in [0, 1]")
        return Verdict(score, said)
    if exit_code in (0, 1):
        return Verdict(1.0 - exit_code, said)
    return Verdict(None, f"tests ended with exit code {exit_code} and no REWARD_FILE: {said}")


def _written(reward: Path) -> str | None:
    try:
        with reward.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"unreadable: {error.strerror}"
