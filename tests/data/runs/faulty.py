"""Makes the faulty runs that lie here: real ones, small, each with one thing wrong in it.

python -m tests.data.runs.faulty broken-tests tests/data/runs/broken-tests.jsonl.zst
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from bus.jetstream import Bus
from gyre.config import Config
from schemas.envelope import Event
from schemas.roles import CellRegistered
from schemas.training import OptimizerStepped
from services.place import new_instance
from services.setup import open_run
from services.train import follow
from tests.e2e.living import processes

SMALL = (
    "tasks.train=words:64:train",
    "tasks.heldout=words:16:heldout",
    "schedule.groups=4",
    "schedule.executions=4",
    "schedule.phi=0.5",
    "schedule.rho_min=0.25",
    "schedule.tau_seconds=0.05",
    "cells.concurrency=8",
    "rollout.max_tokens=48",
    "rollout.context_tokens=512",
    'harness.command=["{python}", "-I", "-S", "{reference}", "--max-turns", "4", "--max-tokens", "48"]',
    "optimizer.lr=1e-4",
    "packing.row_tokens=512",
    "packing.micro_step_tokens=1024",
    "evaluation.episodes=0",
    "cells.lost_after_seconds=3.0",
)
Happens = Callable[[Path, Event], Awaitable[None]]
"""What goes wrong at an event: told of the run's folder."""
SLEEPS = '["{python}", "-c", "import time; time.sleep(60)"]'
BROKEN = "#!/bin/sh\n# A module that is not there: whoever wrote it anew had it.\nexec {python} -I -S -c {code}\n"


async def nothing(_: Path, __: Event) -> None:
    """All goes well."""


async def tests_break(folder: Path, event: Event) -> None:
    """After the third step every task's tests die of an import: exit 1, which is a score of 0."""
    if isinstance(event, OptimizerStepped) and event.step == 3:
        await asyncio.to_thread(_replace_tests, folder, "'from grader import grade; grade()'")


async def tests_crash(folder: Path, event: Event) -> None:
    """After the first step every task's tests end with a code that is no score."""
    if isinstance(event, OptimizerStepped) and event.step == 1:
        await asyncio.to_thread(_replace_tests, folder, "'raise SystemExit(7)'")


def _replace_tests(folder: Path, code: str) -> None:
    for script in (folder / "tasks" / "train").glob("*/tests/test.sh"):
        fresh = script.with_name("test.new")
        fresh.write_text(BROKEN.format(python=sys.executable, code=code))
        fresh.chmod(0o755)
        fresh.replace(script)


async def satellite_dies(folder: Path, event: Event) -> None:
    """Cell 1 is killed whenever it has come back, four times."""
    if isinstance(event, CellRegistered) and event.cell == 1:
        deaths = folder / "deaths"
        count = len(deaths.read_text()) if deaths.exists() else 0
        if count < 4:
            deaths.write_text("x" * (count + 1))
            os.kill(processes(folder)["cell-1"], signal.SIGKILL)


FAULTS: dict[str, tuple[Happens, tuple[str, ...]]] = {
    "broken-tests": (tests_break, ("run.steps=6", "run.seed=3")),
    "crashing-tests": (tests_crash, ("run.steps=3", "reward.attempts=2", "reward.backoff_seconds=0.1")),
    "unread-calls": (nothing, ("run.steps=2", "rollout.tool_parser=none")),
    "babble": (nothing, ("run.steps=2", "rollout.temperature=4", "rollout.max_tokens=24")),
    "failing-harness": (nothing, ("run.steps=2", 'harness.command=["{python}", "-c", "import agent"]')),
    "hanging-harness": (nothing, ("run.steps=2", "harness.timeout_seconds=2", f"harness.command={SLEEPS}")),
    "dying-cell": (satellite_dies, ("run.steps=3",)),
}
"""Name of the run -> what goes wrong, and its settings."""


async def make(name: str, out: Path) -> None:
    """See the run through and keep its archive."""
    happens, overrides = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        where = (f"run.name={name}", f"run.folder={folder}")
        opened = await open_run(Config.load(None, [*SMALL, *overrides, *where]))
        watching = asyncio.create_task(_watch(opened.url, name, opened.folder, happens))
        try:
            result = await follow(opened)
        finally:
            watching.cancel()
        shutil.copyfile(result["archive"], out)
        sys.stdout.write(f"{out}: {out.stat().st_size} bytes, rewards {result['rewards']}\n")


async def _watch(url: str, run: str, folder: Path, happens: Happens) -> None:
    bus = await Bus.connect(url, run, "reader", new_instance("reader"), folder)
    async with aclosing(bus.ev.read(0)) as log:
        async for stored in log:
            for event in stored.commit.events if stored.commit else ():
                await happens(folder, event)


if __name__ == "__main__":
    asyncio.run(make(sys.argv[1], Path(sys.argv[2])))
