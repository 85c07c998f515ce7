"""One episode: a harness works in a workspace with a token and a base URL; what came of it.

Shared by the runner (training) and the examiner (held-out tasks), so that both measure the same thing.
"""

import asyncio
import errno
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bus.blobs import Blobs
from gyre.config import Config
from gyre.errors import GyreError
from gyre.proxy.tokens import execution_token
from gyre.sandboxes.port import Command, CommandLost, Ended, Ending, Sandbox, SandboxError
from gyre.tasks.folder import Task
from gyre.tasks.places import working_places
from schemas.dispatch import Reason, Stage
from schemas.refs import StateRef
from services import workspace

LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 0.1
_PASSING = (errno.ENOENT, errno.EMFILE, errno.ENFILE)  # not there yet, or no descriptor is left just now
MODEL = "policy"
_HARNESSES = Path(__file__).parent.parent / "gyre/harnesses"


class NotReady(GyreError):
    """Something that an episode needs is not there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended; `workspace` is what it left, None when there is nothing to assess."""

    reason: Reason
    stage: Stage
    exit_code: int | None
    seconds: float
    """Of the stage that it ended in."""
    detail: str
    workspace: Path | None
    setup_seconds: float | None = None
    """From the launch to the start of the harness; None: it never started."""


class Episodes:
    """Runs the configured harness on tasks of one run."""

    def __init__(self, folder: Path, config: Config, tasks: Mapping[str, Task], sandbox: Sandbox) -> None:
        """`folder` is the run's own; `tasks` are those that may be asked for, by name."""
        self._folder, self._harness, self._tasks, self._sandbox = folder, config.harness, tasks, sandbox
        ours = {f"{{{name}}}": str(_HARNESSES / name / "agent.py") for name in ("reference", "stub")}
        places = {"{python}": sys.executable, **ours}
        self._command = tuple(_filled(word, places) for word in self._harness.command)
        named = (Path(word) for word in self._command if word.startswith("/") and os.path.isfile(word))  # noqa: PTH113
        self._visible = (*named, *_needed(self._harness.command))  # (a word need not be a path at all)

    def box(self, execution: str) -> Path:
        """The private folder of an execution."""
        return self._folder / "work" / execution

    def task(self, name: str) -> Task | None:
        """None: it is not among those of the run."""
        return self._tasks.get(name)

    async def end_leftovers(self, execution: str) -> int:
        """End what an execution left running whose runner is gone; how many processes or containers that were."""
        try:
            return await self._sandbox.end_leftovers(self.box(execution))
        except SandboxError as error:
            LOG.warning("%s: what it left cannot be ended: %s", execution, error)
            return 0

    async def token(self, execution: str) -> str:
        """The bearer token of an execution; waits until the proxy has written its key."""
        return execution_token(await _content(self._folder / "proxy.key"), execution)

    def deadline(self, task: str) -> float:
        """Seconds that the agent has: the task's, or less if the configuration says so."""
        limits = [self._harness.timeout_seconds or float("inf")]
        limits += [self._tasks[task].agent_timeout] if task in self._tasks else []
        return min(*limits, 7 * 86400.0)

    async def run(self, execution: str, task: str, token: str, stop: asyncio.Event | None = None) -> Outcome:
        """One episode from an empty folder to the harness's end; its workspace is still there afterwards."""
        began = time.monotonic()
        try:
            place = await self._prepared(execution, task)
            command = await self._command_for(execution, task, token, place)
            ready = time.monotonic() - began
            outcome = await self._worked(execution, command, place, stop)
        except (workspace.WorkspaceError, SandboxError, NotReady, OSError) as error:  # a TimeoutError is one, too
            detail = str(error) or "setup took too long"
            return Outcome("failed", "setup", None, time.monotonic() - began, detail[:500], None)
        detail = outcome.detail.replace(token, "<token>")  # the log must not know it
        return replace(outcome, detail=detail, setup_seconds=ready)

    async def _worked(self, execution: str, command: Command, place: Path, stop: asyncio.Event | None) -> Outcome:
        """How the harness ended; one that its sandbox lost has worked until then. Raises SandboxError: it never did."""
        began = time.monotonic()
        try:
            return _outcome(await self._sandbox.run(command, stop), place)
        except CommandLost as error:
            await self.end_leftovers(execution)  # what is still there would work in what is preserved
            return Outcome("failed", "agent", None, time.monotonic() - began, str(error)[:500], place)

    async def _prepared(self, execution: str, task: str) -> Path:
        if task not in self._tasks:
            raise NotReady(f"task {task}: not among the tasks of this run")
        known, box = self._tasks[task], self.box(execution)
        async with asyncio.timeout(known.setup_timeout):
            place = await asyncio.to_thread(workspace.make, known, box)
            await workspace.fill(known, place, box, self._sandbox)
        return place

    async def _command_for(self, execution: str, task: str, token: str, place: Path) -> Command:
        reach = (await _content(self._folder / "proxy.url")).decode().strip().rstrip("/")
        url = self._sandbox.address(reach)
        environment = {
            "OPENAI_BASE_URL": f"{url}/x/{token}/v1",
            "OPENAI_API_KEY": token,
            "ANTHROPIC_BASE_URL": f"{url}/x/{token}",
            "ANTHROPIC_API_KEY": token,
            "GYRE_INSTRUCTION_FILE": str(self.box(execution) / "instruction.md"),
            "GYRE_MODEL": MODEL,
        }
        box, grace = self.box(execution), self._harness.kill_grace
        seen, image = self._visible, self._tasks[task].image
        seconds, places = self.deadline(task), working_places(self._tasks[task], place, box)
        return Command(self._command, place, box, environment, seconds, grace, seen, reach, image, places)


async def keep(blobs: Blobs, outcome: Outcome, task: Task | None) -> tuple[StateRef | None, str]:
    """Preserve what an episode left: its reference, and the detail to record (why there is none, if so)."""
    if outcome.workspace is None:
        return None, outcome.detail
    return await keep_workspace(blobs, outcome.workspace, task, outcome.detail)


async def keep_workspace(blobs: Blobs, place: Path, task: Task | None, detail: str) -> tuple[StateRef | None, str]:
    """Preserve a task's workspace; `detail` is what else there is to say."""
    try:
        blob = await asyncio.to_thread(lambda: blobs.put(workspace.preserve(place, task=task)))
    except (workspace.WorkspaceError, OSError) as error:
        return None, f"{error}; {detail}" if detail else str(error)
    return StateRef(digest=blob.digest, size=blob.size, address=blob.address), detail


def _outcome(ended: Ended, place: Path) -> Outcome:
    """In what words an ending stands in the log."""
    reasons: dict[Ending, Reason] = {"timeout": "timeout", "stopped": "cancelled"}
    reason: Reason = "failed" if ended.exit_code or ended.ending != "exited" else "completed"
    detail = ": ".join(said for said in (ended.reason, ended.last_line) if said)
    return Outcome(reasons.get(ended.ending, reason), "agent", ended.exit_code, ended.seconds, detail, place)


def _needed(command: Sequence[str]) -> tuple[Path, ...]:
    """What the programs that a command names by {...} consist of."""
    python = (Path(sys.prefix), Path(sys.base_prefix)) if any("{python}" in word for word in command) else ()
    return (*python, *((_HARNESSES,) if any("{reference}" in word or "{stub}" in word for word in command) else ()))


def _filled(word: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(name, value)
    return word


async def _content(path: Path) -> bytes:
    """A small file that the proxy writes when it starts, perhaps after us."""
    told = False
    while True:
        try:
            if content := path.read_bytes():
                return content
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            if not told:
                LOG.info("waiting for %s", path)
            told = True
        await asyncio.sleep(_PATIENCE_SECONDS)
