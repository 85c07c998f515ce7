"""Are tasks sound? Each one's reference solution must earn 1 and doing nothing 0, every time, within the limits.

Every attempt goes the way of an execution: a fresh workspace, a command in the sandbox, what it left preserved,
restored into another folder, and graded there.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gyre.config import Config
from gyre.evaluators.port import Evaluator
from gyre.sandboxes.make import make_sandbox
from gyre.sandboxes.port import Command, Sandbox, SandboxError
from gyre.tasks.fitting import SHARED, refuse_unfit
from gyre.tasks.folder import Task, TaskError
from gyre.tasks.places import solving_places
from services import workspace
from services.judges import judges_of
from services.tasks.exposed import exposed
from services.tasks.images import refuse_missing

Work = Literal["empty", "solution"]
Shown = Callable[[int, int], None]
"""(attempts made, attempts in all)."""
WANTED: dict[Work, float] = {"empty": 0.0, "solution": 1.0}
_TIGHT = 0.5
"""Share of a limit beyond which a machine that is half as fast would not do."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One piece of work, graded."""

    work: Work
    score: float | None
    work_seconds: float
    test_seconds: float
    detail: str
    problem: str = ""
    """What went wrong before there was anything to grade."""


@dataclass(slots=True)
class Report:
    """What was found out about one task."""

    name: str
    kind: str
    attempts: list[Attempt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Why it must not be trained on."""
    remarks: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems

    def scores(self, work: Work) -> list[float | None]:
        """Of each attempt."""
        return [each.score for each in self.attempts if each.work == work]


class Validation:
    """Validates tasks in a folder of its own."""

    def __init__(self, folder: Path, config: Config, repeats: int, jobs: int) -> None:
        """`repeats` of each work for each task, `jobs` of them at a time. Raises SandboxError, EvaluatorError."""
        self._folder, self._config, self._repeats = folder, config, repeats
        self._room = asyncio.Semaphore(jobs)
        self._sandbox: Sandbox = make_sandbox(config.sandbox, folder)
        self._judges = judges_of(config, folder)
        self._made = 0

    async def run(self, tasks: tuple[Task, ...], shown: Shown) -> list[Report]:
        """A report for each task, in order."""
        total = len(tasks) * self._repeats * len(WANTED)

        def made() -> None:
            self._made += 1
            shown(self._made, total)

        shown(0, total)
        try:
            return list(await asyncio.gather(*(self._validated(task, made) for task in tasks)))
        finally:
            await self._judges.close()
            await self._sandbox.close()

    async def _validated(self, task: Task, made: Callable[[], None]) -> Report:
        report = Report(task.name, task.kind)
        chosen = self._config.sandbox.kind
        try:
            refuse_unfit((task,), chosen)
            refuse_unfit((task,), self._config.evaluator.sandbox or chosen)
            await asyncio.to_thread(refuse_missing, self._config, (task,), "DIR")
        except TaskError as error:
            report.problems.append(str(error))
        if not task.solution.is_file():
            report.problems.append("solution/solve.sh is missing: nothing shows that the task can be solved")
        if report.problems:
            return report
        works: list[tuple[Work, int]] = [(work, number) for number in range(self._repeats) for work in WANTED]
        report.attempts = list(await asyncio.gather(*(self._attempt(task, *each, made) for each in works)))
        report.problems = [*_problems(report), *await self._seen(task)]
        report.remarks = _remarks(report, task)
        return report

    async def _attempt(self, task: Task, work: Work, number: int, made: Callable[[], None]) -> Attempt:
        box = self._folder / "work" / f"{task.path.parent.name}-{task.path.name}.{work}{number}"
        async with self._room:
            try:
                return await self._graded(task, work, box)
            except (SandboxError, workspace.WorkspaceError, OSError) as error:
                return Attempt(work, None, 0.0, 0.0, "", str(error))
            finally:
                made()
                for each in (box, box.with_name(f"{box.name}.eval")):
                    await asyncio.to_thread(workspace.clear, each)

    async def _graded(self, task: Task, work: Work, box: Path) -> Attempt:
        place = await asyncio.to_thread(workspace.make, task, box)
        await workspace.fill(task, place, box, self._sandbox)
        began = time.monotonic()
        problem = await self._solved(task, place, box) if work == "solution" else ""
        worked = time.monotonic() - began
        left = await asyncio.to_thread(workspace.preserve, place, task=task)
        again = box.with_name(f"{box.name}.eval")
        await asyncio.to_thread(workspace.restore, left, again / "ws")
        began = time.monotonic()
        verdict = await self._evaluator.evaluate(task, again / "ws", again, math.inf)
        return Attempt(work, verdict.score, worked, time.monotonic() - began, verdict.detail, problem)

    @property
    def _evaluator(self) -> Evaluator:
        return self._judges.designated

    async def _solved(self, task: Task, place: Path, box: Path) -> str:
        """Run the reference solution; what was wrong with that."""
        script = task.solution
        words = (str(script),) if script.stat().st_mode & 0o100 else ("/bin/sh", str(script))
        seen, places = (script.parent,), solving_places(task, place, box)
        ended = await self._sandbox.run(
            Command(words, place, box, {}, task.agent_timeout, visible=seen, image=task.image, places=places)
        )
        if ended.ending == "exited" and ended.exit_code == 0:
            return ""
        how = ended.reason or f"ended with exit code {ended.exit_code}"
        return f"solution/solve.sh {how}: {ended.last_line}".rstrip(": ")

    async def _seen(self, task: Task) -> list[str]:
        """Where the agent could see what it must not."""
        box = self._folder / "work" / f"{task.path.parent.name}-{task.path.name}.seen"
        try:
            place = await asyncio.to_thread(workspace.make, task, box)
            found = [f"the agent is given {name}" for name in await asyncio.to_thread(exposed, task, place)]
            if self._config.sandbox.kind in SHARED:
                return found
            peek = ("/bin/sh", "-c", 'for file; do [ ! -e "$file" ] || exit 9; done', "sh")
            words = (*peek, str(task.tests / "test.sh"), str(task.solution))
            ended = await self._sandbox.run(Command(words, place, box, {}, 60.0, image=task.image))
            return [*found, *(["tests or solution can be read in the sandbox"] if ended.exit_code == 9 else [])]  # noqa: PLR2004
        finally:
            await asyncio.to_thread(workspace.clear, box)


def _problems(report: Report) -> list[str]:
    found = sorted({each.problem for each in report.attempts if each.problem})
    for work, wanted in WANTED.items():
        scores = report.scores(work)
        told = ", ".join("none" if score is None else f"{score:g}" for score in scores)
        if len(set(scores)) > 1:
            found.append(f"{work}: not the same score every time: {told}")
        elif scores[0] != wanted:
            detail = next(each.detail for each in report.attempts if each.work == work)
            found.append(f"{work}: scores {told.partition(',')[0]} and not {wanted:g}: {detail}".rstrip(": "))
    return found


def _remarks(report: Report, task: Task) -> list[str]:
    """What will not do on a slower machine."""
    stages = (
        ("solution", "agent.timeout_sec", task.agent_timeout, max(each.work_seconds for each in report.attempts)),
        ("tests", "verifier.timeout_sec", task.verifier_timeout, max(each.test_seconds for each in report.attempts)),
    )
    return [
        f"{what}: took {seconds:.1f} s of {field} = {limit:g} s; raise it"
        for what, field, limit, seconds in stages
        if seconds > limit * _TIGHT
    ]
