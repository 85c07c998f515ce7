"""One regrade at work: which states it dealt with, scoring the others, and saying so in the log."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bus.errors import Conflict
from bus.log import BusPort, Expect
from gyre.core.regrading import Facts, Known, changes
from gyre.errors import GyreError
from schemas.envelope import Event
from schemas.rewards import AssessmentRecorded, RegradeCompleted, RegradeStarted
from services.grading import Scorer, scoring_folder, seconds_left, used_up
from services.leases import one_error
from services.place import Place

Shown = Callable[[int, int], None]
"""(states dealt with, states in all)."""


class RegradeError(GyreError):
    """A regrade cannot be begun or go on; one line with the way out."""


@dataclass(slots=True)
class Said:
    """What the log says under one name."""

    last: int = 0
    """Sequence of the last word about the regrade as a whole."""
    completed: bool = False
    attempts: dict[str, tuple[AssessmentRecorded, ...]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    """Of the last attempt at each execution's state."""

    def note(self, sequence: int, event: Event) -> None:
        """Fold one event."""
        if isinstance(event, AssessmentRecorded):
            self.attempts[event.execution] = (*self.attempts.get(event.execution, ()), event)
            self.sequences[event.execution] = sequence
        elif isinstance(event, RegradeStarted | RegradeCompleted):
            self.last, self.completed = sequence, isinstance(event, RegradeCompleted)


class Regrading:
    """One regrade at work."""

    def __init__(
        self, place: Place, bus: BusPort, scorer: Scorer, started: RegradeStarted, said: Said, head: int
    ) -> None:
        """`said` under the name of `started`; `head` is the last sequence read."""
        self._place, self._bus, self._scorer = place, bus, scorer
        self._as_of = head
        self.started, self.said, self.new = started, said, 0

    async def run(self, states: tuple[Known, ...], jobs: int, shown: Shown) -> None:
        """Score these states, so many at a time; those that are dealt with are left alone."""
        open_ = [known for known in states if not self._settled(known.execution)]
        if not open_:
            return
        if not self.said.last:
            await self._say((), self.started, self.started.regrade, 0, 0)
        room, done = asyncio.Semaphore(jobs), len(states) - len(open_)

        async def score(known: Known, folder: Path) -> None:
            nonlocal done
            async with room:
                await self._score(known, folder)
            done += 1
            shown(done, len(states))

        shown(done, len(states))
        with scoring_folder(self._place.folder, self._place.instance) as folder, one_error():
            async with asyncio.TaskGroup() as group:
                for known in open_:
                    group.create_task(score(known, folder))

    async def complete(self, facts: Facts) -> None:
        """Say what all of it comes to, unless that is said."""
        if not self.said.last or (self.said.completed and not self.new):
            return
        found = self.found()
        completed = RegradeCompleted(
            **self.started.model_dump(exclude={"type", "v"}),
            states=len(found),
            valid=sum(score is not None for score in found.values()),
            changed=changes(facts, found),
        )
        await self._say((), completed, self.started.regrade, self.said.last, self.said.last)

    def found(self) -> dict[str, float | None]:
        """Execution -> score, of all that is dealt with under this name."""
        return {name: attempts[-1].score for name, attempts in self.said.attempts.items() if self._settled(name)}

    def _settled(self, execution: str) -> bool:
        attempts = self.said.attempts.get(execution, ())
        return bool(attempts) and (attempts[-1].valid or used_up(attempts, self._place.config.reward))

    async def _score(self, known: Known, folder: Path) -> None:
        while not self._settled(known.execution):
            earlier = self.said.attempts.get(known.execution, ())
            if earlier:
                await asyncio.sleep(self._place.config.reward.backoff_seconds * 2 ** (len(earlier) - 1))
            found = await self._assess(known, earlier, folder / known.execution)
            after = self.said.sequences.get(known.execution, 0)
            await self._say((known.execution,), found, known.execution, known.ended, after)
            self.new += 1

    async def _assess(self, known: Known, earlier: tuple[AssessmentRecorded, ...], box: Path) -> AssessmentRecorded:
        assert known.state is not None
        began = time.monotonic()
        limit = seconds_left(earlier, self._place.config.reward)
        verdict = await self._scorer.verdict(known.task, known.state, box, limit)
        return AssessmentRecorded(
            assessment=f"{known.execution}-{self.started.regrade}-a{len(earlier) + 1}",
            execution=known.execution,
            designated=False,
            attempt=len(earlier) + 1,
            state=known.state,
            branch=None,
            score=verdict.score,
            valid=verdict.valid,
            seconds=time.monotonic() - began,
            detail=verdict.detail,
            provenance=verdict.provenance,
        )

    async def _say(self, about: tuple[str, ...], event: Event, correlation: str, causation: int, after: int) -> None:
        subject = self._place.subject("regrade", self.started.regrade, *about)
        commit = self._place.commit((event,), as_of=self._as_of, correlation=correlation, causation=causation)
        try:
            sequence = await self._bus.ev.append(subject, commit, Expect(subject, after))
        except Conflict as error:
            raise RegradeError(
                f"regrade {self.started.regrade}: another gyre is at it; wait for that one, its results count"
            ) from error
        self._as_of = max(self._as_of, sequence)
        self.said.note(sequence, event)
