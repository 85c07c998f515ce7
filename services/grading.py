"""Scoring preserved work: tests run in a sandbox, states restored for them, and when to stop trying."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bus.blobs import BlobError, Blobs
from gyre.config import RewardSection
from gyre.evaluators.port import Errand, Evaluator, EvaluatorError, Finished, Verdict
from gyre.sandboxes.port import Command, Sandbox, SandboxError
from gyre.tasks.folder import Task
from schemas.refs import BlobRef, StateRef
from schemas.rewards import AssessmentRecorded
from services import workspace

_GRACE_SECONDS = 0.5
_LEAST_SECONDS = 0.1


class Sandboxed:
    """Implements `Run` over a sandbox, which has its own time to get ready."""

    def __init__(self, place: Sandbox, kind: str = "process", image: str = "", setup_seconds: float = 60.0) -> None:
        """`image` counts more than a task's own; `setup_seconds` are on top of what a command may take."""
        self._place, self._image, self._setup_seconds = place, image, setup_seconds
        self.sandbox = kind

    def image(self, task: Task) -> str:
        """See `Run`."""
        return self._image or task.image

    async def clear(self, box: Path) -> None:
        """See `Run`."""
        await asyncio.to_thread(workspace.clear, box)

    async def __call__(self, errand: Errand) -> Finished:
        """See `Run`."""
        command = Command(
            errand.arguments,
            errand.folder,
            errand.box,
            errand.environment,
            errand.seconds,
            _GRACE_SECONDS,
            errand.visible,
            image=errand.image,
            places=errand.places,
        )
        try:
            async with asyncio.timeout(self._setup_seconds + errand.seconds + _GRACE_SECONDS):
                ended = await self._place.run(command)
        except SandboxError as error:
            raise EvaluatorError(str(error)) from error
        except TimeoutError:
            return Finished(None, "", f"as its sandbox took more than {self._setup_seconds:g} s to get ready or to end")
        reason = "" if ended.ending == "timeout" else ended.reason or f"by its sandbox ({ended.ending})"
        code = ended.exit_code if ended.ending == "exited" else None
        return Finished(code, ended.last_line, reason, ended.output)


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores states that were preserved: nothing else about an execution is seen by whoever judges it."""

    blobs: Blobs
    tasks: Mapping[str, Task]
    evaluator: Evaluator
    setup_seconds: float = 60.0
    """Most time to restore a state."""

    async def verdict(self, task: str, state: StateRef, box: Path, limit_seconds: float) -> Verdict:
        """Restore a state into a box of its own and score it; the box is gone afterwards."""
        known = self.tasks.get(task)
        if known is None:
            return Verdict(None, f"task {task}: not among the tasks of this run")
        try:
            async with asyncio.timeout(self.setup_seconds):
                place = await asyncio.to_thread(self._restored, state, box)
            return await self._kept(await self.evaluator.evaluate(known, place, box, limit_seconds))
        except TimeoutError:
            return Verdict(None, f"the state was not restored in {self.setup_seconds:g} s")
        except (BlobError, EvaluatorError, workspace.WorkspaceError, OSError) as error:
            return Verdict(None, str(error))
        finally:
            await asyncio.to_thread(workspace.clear, box)

    async def _kept(self, verdict: Verdict) -> Verdict:
        """With its transcript in the blob store."""
        if not verdict.transcript or verdict.provenance is None:
            return verdict
        blob = await asyncio.to_thread(self.blobs.put, verdict.transcript)
        kept = BlobRef(digest=blob.digest, size=blob.size, address=blob.address)
        return replace(verdict, provenance=verdict.provenance.model_copy(update={"transcript": kept}))

    def _restored(self, state: StateRef, box: Path) -> Path:
        workspace.vacate(box)
        workspace.restore(self.blobs.get(state), box / "ws")
        return box / "ws"


@contextlib.contextmanager
def scoring_folder(run: Path, instance: str) -> Iterator[Path]:
    """A folder for a command that scores beside a run's own services; it is gone afterwards."""
    folder = run / "scoring" / instance
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another command is at work there, or none ever was
            folder.parent.rmdir()


def seconds_left(earlier: tuple[AssessmentRecorded, ...], reward: RewardSection) -> float:
    """What the next attempt at a state may take of the budget for all of them."""
    return max(_LEAST_SECONDS, reward.budget_seconds - sum(each.seconds for each in earlier))


def used_up(attempts: tuple[AssessmentRecorded, ...], reward: RewardSection) -> bool:
    """Whether a state without a valid score is not tried again: by number, or by time."""
    spent = sum(each.seconds for each in attempts)
    return len(attempts) >= reward.attempts or spent >= reward.budget_seconds
