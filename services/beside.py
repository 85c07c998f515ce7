"""Scores beside the reward: what other evaluators say of a state, once its reward is settled. No reward changes.

Each has one try at each state; what it finds, valid or not, is said once.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bus.errors import Conflict
from bus.log import BusPort, Expect
from gyre.evaluators.port import Evaluator
from gyre.tasks.folder import Task
from schemas.dispatch import ExecutionTerminated
from schemas.refs import StateRef
from schemas.rewards import AssessmentRecorded
from services.grading import Scorer
from services.place import Place
from services.voice import Voice


class Beside:
    """The other evaluators of one run at work."""

    def __init__(
        self, place: Place, bus: BusPort, tasks: Mapping[str, Task], evaluators: Sequence[Evaluator], voice: Voice
    ) -> None:
        """`voice` is that of the service that asks them."""
        self._place, self._bus, self._voice = place, bus, voice
        setup = place.config.evaluator.setup_seconds
        self._scorers = {each.kind: Scorer(bus.blobs, tasks, each, setup) for each in evaluators}

    async def score(self, terminated: ExecutionTerminated, causation: int) -> None:
        """Let each that was not heard yet say what it finds."""
        if terminated.state is None or terminated.reason == "cancelled":
            return
        for kind, scorer in self._scorers.items():
            entity = ("beside", terminated.execution, kind)
            subject = self._place.subject(*entity)
            if await self._bus.ev.last(subject) is not None:
                continue
            found = await self._assess(terminated, terminated.state, kind, scorer)
            try:
                await self._voice.say(entity, (found,), terminated.execution, causation, Expect(subject, 0))
            except Conflict:  # another evaluator was faster: its word stands
                continue

    async def _assess(
        self, terminated: ExecutionTerminated, state: StateRef, kind: str, scorer: Scorer
    ) -> AssessmentRecorded:
        box: Path = self._place.folder / "work" / f"{terminated.execution}.{kind}"  # no execution's name has a dot
        began = time.monotonic()
        verdict = await scorer.verdict(terminated.task, state, box, self._place.config.reward.budget_seconds)
        return AssessmentRecorded(
            assessment=f"{terminated.execution}-{kind}",
            execution=terminated.execution,
            designated=False,
            attempt=1,
            state=state,
            branch=None,
            score=verdict.score,
            valid=verdict.valid,
            seconds=time.monotonic() - began,
            detail=verdict.detail,
            provenance=verdict.provenance,
        )
