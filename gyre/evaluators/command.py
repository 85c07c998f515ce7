"""The evaluator that runs the task's own `tests/test.sh` in the workspace, or a command that is given instead.

It sees TESTS_DIR (a copy of their folder, outside the workspace) and REWARD_FILE, where they may write a number in
[0, 1]. Without it, exit 0 means 1 and exit 1 means 0; everything else is the evaluator's failure and no score, as is
exit 125, whatever was written by then. Of tests that were killed only a zero stands.
Where it runs is the caller's choice: in a sandbox that shows nothing but the box, it is a fresh container.
"""

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from gyre.evaluators.desk import Desk
from gyre.evaluators.port import Errand, EvaluatorError, Finished, Run, Verdict
from gyre.evaluators.template import Template, digest
from gyre.tasks.folder import Task
from gyre.tasks.graders import GRADED
from gyre.tasks.places import LOGS, grading_places
from schemas.rewards import EvaluatorKind, Provenance

NO_VERDICT = 125
"""What tests end with that cannot judge, as `git bisect`, `timeout` and `docker run` do where it is their own fault."""
_OTHERS_END = {
    128 + signal.SIGKILL,
    *(-each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)),
}
"""Exit codes of tests that somebody else ended: perhaps the work, which would have itself left out, so that a zero that
was written first is what it has earned; any other score is none."""


class CommandEvaluator:
    """Implements `Evaluator`."""

    def __init__(self, run: Run, template: Template | None = None) -> None:
        """`run` says where the tests run; `template` is the command that runs instead of them."""
        self._run, self._template = run, template
        self.kind: EvaluatorKind = "command" if template else "tests"
        self.title = template.line if template else "tests"

    def digest(self, tasks: Iterable[Task]) -> str:
        """See `Evaluator`."""
        return digest(self._template, tasks)

    async def evaluate(self, task: Task, workspace: Path, box: Path, limit_seconds: float) -> Verdict:
        """See `Evaluator`."""
        rules = await asyncio.to_thread(self.digest, (task,))
        seconds, image = min(limit_seconds, task.verifier_timeout), self._run.image(task)
        await self._clear(box)
        try:
            desk = await asyncio.to_thread(Desk.lay, task, box)
            finished = await self._run(self._errand(task, desk, workspace, box, seconds, image))
            graded = self._template is None and task.kind in GRADED
            score, detail = await asyncio.to_thread(_found, desk, finished, seconds, graded)
        except EvaluatorError as error:
            score, detail = None, str(error)
        finally:
            await self._clear(box)
        by = Provenance(evaluator=self.kind, digest=rules, sandbox=self._run.sandbox, image=image)
        return Verdict(score, detail, by)

    async def _clear(self, box: Path) -> None:
        for aside in Desk.asides(box):
            await self._run.clear(aside)

    def _errand(self, task: Task, desk: Desk, workspace: Path, box: Path, seconds: float, image: str) -> Errand:
        template = self._template
        arguments = template.arguments(task, desk.tests, desk.instruction) if template else _script(desk.tests)
        visible = (desk.tests, desk.instruction, *(template.files() if template else ()))
        environment = {"TESTS_DIR": str(desk.tests), "REWARD_FILE": str(desk.reward)}
        places = grading_places(task, workspace, desk.tests, desk.logs)
        if task.fixed:
            environment["LOGS_DIR"] = LOGS
        return Errand(arguments, workspace, box, seconds, environment, visible, image, places)


def _script(tests: Path) -> tuple[str, ...]:
    script = tests / "test.sh"
    return (str(script),) if os.access(script, os.X_OK) else ("/bin/sh", str(script))


def _found(desk: Desk, finished: Finished, seconds: float, graded: bool) -> tuple[float | None, str]:
    if finished.exit_code is None:
        return None, f"tests were ended {finished.reason or f'after {seconds:g} s'}: {finished.said}"
    if name := desk.disturbed():
        return None, f"tests/{name} was changed while the tests ran, so their score does not count: {finished.said}"
    written = desk.written()
    # Our grader writes a reward and ends with 0, or has none: what lies there otherwise is the work's.
    if graded and (finished.exit_code or written is None):
        return None, f"the grader ended with exit code {finished.exit_code} and gave no reward: {finished.said}"
    return verdict(finished.exit_code, written, finished.said)


def verdict(exit_code: int, written: str | None, said: str = "") -> tuple[float | None, str]:
    """Score and detail, from the tests' exit code and what they wrote to REWARD_FILE (None: nothing)."""
    score, detail = _number(written, said) if written is not None else (None, "")
    if exit_code == NO_VERDICT or (exit_code in _OTHERS_END and score != 0.0):
        return None, f"tests ended with exit code {exit_code}, which is no verdict: {said}"
    if written is not None:
        return score, detail
    if exit_code in (0, 1):
        return 1.0 - exit_code, said
    return None, f"tests ended with exit code {exit_code} and no REWARD_FILE: {said}"


def _number(written: str, said: str) -> tuple[float | None, str]:
    try:
        score = float(written)
    except ValueError:
        return None, f"REWARD_FILE holds {written[:40]!r}: write one number in [0, 1]"
    if not 0.0 <= score <= 1.0:
        return None, f"REWARD_FILE holds {score:g}: write one number in [0, 1]"
    return score, said
