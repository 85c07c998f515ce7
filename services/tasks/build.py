"""Images of tasks: built of their Dockerfiles by the Docker engine, where they are not there already.

An image is named after what it is built of, so what is there is as it should be. Images that tasks name are somebody
else's: they are fetched where `sandbox.docker.pull` says so, and otherwise only looked for.
"""

import asyncio
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from gyre.config import Config
from gyre.sandboxes.docker_engine import Engine
from gyre.sandboxes.port import SandboxError
from gyre.tasks.context import DOCKERFILE, PREFIX, Context
from gyre.tasks.sources import Found
from gyre.tasks.task_file import TaskError

State = Literal["present", "built", "fetched", "missing", "failed"]
Shown = Callable[[int, int, str], None]
"""(images that are dealt with, images, what is being done)."""
_STEP = re.compile(r"Step (\d+/\d+) : (.*)")
_MOST_CHARS = 240
TASK_LABEL, CONTEXT_LABEL = "gyre.task", "gyre.context"


@dataclass(frozen=True, slots=True)
class Made:
    """What became of one task's image."""

    task: str
    image: str
    state: State
    seconds: float = 0.0
    problem: str = ""
    """Why it is not there, in one line; empty: it is."""
    log: Path | None = None
    """All that its build said."""


class Building:
    """Sees to images at one engine."""

    def __init__(self, config: Config, logs: Path, jobs: int) -> None:
        """`jobs` at a time; what builds say is kept below `logs`."""
        self._chosen, self._logs = config.sandbox.docker, logs
        self._engine = Engine(Path(self._chosen.socket))
        self._room = asyncio.Semaphore(jobs)
        self._single: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one image may be several tasks'

    async def run(self, wanted: Iterable[Found], shown: Shown) -> list[Made]:
        """What became of each, in order."""
        wanted = tuple(wanted)
        done = 0

        async def one(found: Found) -> Made:
            nonlocal done
            async with self._single[found.image], self._room:
                made = await self._made(found, lambda said: shown(done, len(wanted), f"{found.name}: {said}"))
            done += 1
            shown(done, len(wanted), f"{found.name}: {made.state}")
            return made

        shown(0, len(wanted), "")
        try:
            return list(await asyncio.gather(*(one(found) for found in wanted)))
        finally:
            await self._engine.close()

    async def _made(self, found: Found, shown: Callable[[str], None]) -> Made:
        began = time.monotonic()
        log = self._logs / f"{found.image.removeprefix(PREFIX).replace('/', '-').replace(':', '-')}.log"
        try:
            if await self._engine.has_image(found.image):
                return Made(found.name, found.image, "present")
            if found.context is not None:
                await self._built(found, found.context, log, shown)
                return Made(found.name, found.image, "built", time.monotonic() - began, log=log)
            if self._chosen.pull == "never":
                way = f'`docker pull {found.image}`, or set sandbox.docker.pull = "missing"'
                return Made(found.name, found.image, "missing", problem=f"is not on this machine; {way}")
            await self._engine.pull(found.image)
            return Made(found.name, found.image, "fetched", time.monotonic() - began)
        except (SandboxError, TaskError, OSError) as error:
            kept = log if found.context is not None and log.is_file() else None
            return Made(found.name, found.image, "failed", time.monotonic() - began, _line(str(error)), kept)

    async def _built(self, found: Found, context: Context, log: Path, shown: Callable[[str], None]) -> None:
        """Build one. Raises SandboxError naming the step that failed."""
        query = {
            "t": found.image,
            "dockerfile": DOCKERFILE,
            "rm": "1",
            "forcerm": "1",
            "buildargs": json.dumps(dict(context.arguments)),
            "labels": json.dumps({TASK_LABEL: found.name, CONTEXT_LABEL: context.digest()}),
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as archive, log.open("w", encoding="utf-8") as kept:
            await asyncio.to_thread(context.write, archive)
            archive.seek(0)
            step = ""

            def stepped(said: str) -> None:
                nonlocal step
                step = said
                shown(f"step {said}")

            try:
                async with asyncio.timeout(found.build_seconds):
                    await self._heard(archive, query, kept, stepped)
            except TimeoutError as error:
                limit = f"environment.build_timeout_sec = {found.build_seconds:g}"
                raise SandboxError(f"step {step}: took longer than {limit} in all; raise it") from error
            except SandboxError as error:
                kept.write(f"{error}\n")
                raise SandboxError(f"step {step}: {error}" if step else str(error)) from error

    async def _heard(
        self, archive: IO[bytes], query: dict[str, str], kept: IO[str], stepped: Callable[[str], None]
    ) -> None:
        async with aclosing(self._engine.build(archive, query)) as lines:
            async for line in lines:
                said = line.get("stream") or line.get("status", "")
                kept.write(said if said.endswith("\n") or "stream" in line else f"{said}\n")
                if (found := _STEP.match(said)) is not None:
                    stepped(f"{found[1]} {_line(found[2])[:80]}")
                if why := line.get("error"):
                    raise SandboxError(why)


def _line(text: str) -> str:
    """One line that a terminal may be given."""
    words = " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in words)[:_MOST_CHARS]
