"""Running a task's tests in a sandbox: shared by the evaluator and the examiner."""

from collections.abc import Mapping
from pathlib import Path

from gyre.evaluators.command import CommandEvaluator
from gyre.evaluators.port import Evaluator, Finished
from gyre.sandboxes.port import Command, Sandbox, SandboxError

_GRACE_SECONDS = 0.5
_CANNOT_START = 126  # a shell's word for it: an evaluator's failure, never a score


def evaluator_in(sandbox: Sandbox) -> Evaluator:
    """The evaluator that runs tests in this sandbox."""

    async def run(
        arguments: tuple[str, ...], folder: Path, box: Path, environment: Mapping[str, str], seconds: float
    ) -> Finished:
        try:
            ended = await sandbox.run(Command(arguments, folder, box, environment, seconds, _GRACE_SECONDS))
        except SandboxError as error:
            return Finished(_CANNOT_START, str(error))
        return Finished(ended.exit_code if ended.ending == "exited" else None, ended.last_line)

    return CommandEvaluator(run)
