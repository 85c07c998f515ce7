"""The examiner: measures the published policy on held-out tasks, outside d, p and f.

Episode k of an evaluation works on held-out task k (round and round) under the id <evaluation>-<k>. What is said about
an evaluation is said once and whole; an examiner that comes back redoes the one it was at, under ids of their own
(<evaluation>-<k>r2, ...), so that no tree holds two episodes. One policy is measured: the core publishes no update that
became durable while an evaluation is open, and an evaluation that was begun late waits for the publication under way.
"""

import asyncio
import contextlib
import logging
import math
import time
from pathlib import Path

from bus import subjects
from bus.errors import Conflict
from bus.log import BusPort, Expect
from gyre.core import cell
from gyre.errors import GyreError
from gyre.evaluators.port import Evaluator, EvaluatorError
from gyre.proxy.tokens import MOST_ATTEMPTS, episode
from gyre.sandboxes.make import make_sandbox
from gyre.tasks.folder import Task, load_tasks
from schemas.base import pack_floats
from schemas.runs import EvaluationScored, EvaluationStarted
from services import workspace
from services.episode import Episodes, Outcome
from services.judges import judges_of
from services.place import Place
from services.voice import Voice

_LOG = logging.getLogger("gyre")
_BY_THE_AGENT = (FileNotFoundError, NotADirectoryError, PermissionError)
"""What work can make of its own folder; any other error of the system is ours, and says nothing about the policy."""


async def serve(place: Place, bus: BusPort) -> None:
    """Run until cancelled."""
    sandbox = make_sandbox(place.config.sandbox, place.folder)
    tasks = load_tasks(place.folder / "tasks/heldout")
    episodes = Episodes(place.folder, place.config, {task.name: task for task in tasks}, sandbox)
    judges = judges_of(place.config, place.folder)
    try:
        await Examiner(place, bus, tasks, episodes, judges.designated).run()
    finally:
        await judges.close()
        await sandbox.close()


class _NothingLeft(GyreError):
    """An episode left nothing to assess."""


class Examiner:
    """One examiner at work."""

    def __init__(
        self, place: Place, bus: BusPort, tasks: tuple[Task, ...], episodes: Episodes, evaluator: Evaluator
    ) -> None:
        """`tasks`: the held-out ones, in order."""
        self._place, self._bus, self._tasks, self._episodes = place, bus, tasks, episodes
        self._evaluator = evaluator
        self._voice = Voice(place, bus)
        self._room = asyncio.Semaphore(place.config.evaluation.concurrency)

    async def run(self) -> None:
        """Serve until cancelled: one evaluation after the other, as they were started."""
        run, config = self._place.run, self._place.config
        begun, core = f"{subjects.ev(run, 'scheduler', 'evaluation')}.*", subjects.ev(run, "cell", "core")
        view, due = cell.View(steps=config.run.steps, burst=config.schedule.mu), list[tuple[EvaluationStarted, int]]()
        said = self._bus.ev.read(0, begun, core)
        async with contextlib.aclosing(said):
            async for stored in said:
                self._voice.heard(stored.sequence)
                for event in stored.commit.events if stored.commit else ():
                    view = cell.evolve(view, stored.sequence, event)
                    if isinstance(event, EvaluationStarted):
                        due.append((event, stored.sequence))
                while due and not view.burst_done:
                    started, sequence = due.pop(0)
                    await self._examine(started, max(started.version, view.published), sequence)

    async def _examine(self, started: EvaluationStarted, version: int, causation: int) -> None:
        """Say the scores of what is published by now, `version`."""
        subject = self._place.subject("evaluation", started.evaluation)
        said = await self._bus.ev.last(subject)
        if said is not None:
            self._voice.heard(said.sequence)
            return
        began = time.monotonic()
        if attempt := await self._attempt(started):
            episodes = (self._score(started.evaluation, k, attempt) for k in range(started.episodes))
            scores = await asyncio.gather(*episodes)
        else:
            _LOG.warning("%s: interrupted %d times, so it has no score", started.evaluation, MOST_ATTEMPTS)
            scores = [math.nan] * started.episodes
        valid = [score for score in scores if not math.isnan(score)]
        scored = EvaluationScored(
            evaluation=started.evaluation,
            version=version,
            scores=pack_floats(scores),
            mean=sum(valid) / len(valid) if valid else 0.0,
            valid=len(valid),
            seconds=time.monotonic() - began,
        )
        entity = ("evaluation", started.evaluation)
        with contextlib.suppress(Conflict):  # another examiner was faster: its word stands
            await self._voice.say(entity, (scored,), started.evaluation, causation, Expect(subject, 0))

    async def _attempt(self, started: EvaluationStarted) -> int:
        """The first attempt that nobody began, or 0; what earlier ones left is cleared away."""
        for attempt in range(1, MOST_ATTEMPTS + 1):
            names = [episode(started.evaluation, k, attempt) for k in range(started.episodes)]
            calls = (self._bus.calls.last(subjects.call(self._place.run, name)) for name in names)
            boxes = [box for name in names if (box := self._episodes.box(name)).exists()]
            if not any(await asyncio.gather(*calls)) and not boxes:
                return attempt
            for box in boxes:
                await asyncio.to_thread(workspace.vacate, box)
        return 0

    async def _score(self, evaluation: str, index: int, attempt: int) -> float:
        """The score of one episode; NaN where none could be had."""
        name, task = episode(evaluation, index, attempt), self._tasks[index % len(self._tasks)]
        async with self._room:
            outcome = await self._episodes.run(name, task.name, await self._episodes.token(name))
            box = self._episodes.box(name)
            tests_box = box.with_name(f"{name}.eval")  # a HOME that the agent never saw
            try:
                return await self._judged(name, task, outcome, tests_box)
            finally:
                await asyncio.to_thread(_clear_both, box, tests_box)

    async def _judged(self, name: str, task: Task, outcome: Outcome, box: Path) -> float:
        """Scored as training is: what can be preserved of it, restored where nothing else of the agent's is."""
        reward = self._place.config.reward
        try:
            fresh = await asyncio.to_thread(_restored, outcome, task, box)
            verdict = await self._evaluator.evaluate(task, fresh, box, reward.budget_seconds)
        except _NothingLeft as error:
            _LOG.warning("%s: nothing to assess: %s", name, error)
            return 0.0 if reward.nothing_assessable == "placeholder" else math.nan
        except (EvaluatorError, workspace.WorkspaceError, OSError) as error:
            _LOG.warning("%s: no score: %s", name, error)
            return math.nan
        return math.nan if verdict.score is None else verdict.score


def _restored(outcome: Outcome, task: Task, box: Path) -> Path:
    workspace.vacate(box)
    workspace.restore(_preserved(outcome, task), box / "ws")
    return box / "ws"


def _preserved(outcome: Outcome, task: Task) -> bytes:
    if outcome.workspace is None:
        raise _NothingLeft(outcome.detail)
    try:
        return workspace.preserve(outcome.workspace, task=task)
    except (workspace.WorkspaceError, *_BY_THE_AGENT) as error:
        raise _NothingLeft(str(error)) from error


def _clear_both(box: Path, tests_box: Path) -> None:
    workspace.clear(box)
    workspace.clear(tests_box)
