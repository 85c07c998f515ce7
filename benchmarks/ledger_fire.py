"""The ledger under fire: a real training whose cells, the core included, are killed at random (SIGKILL) to its end.

First each failpoint (`services.failpoints`; `--failpoints ''` for none) has a process kill itself once. Then cells are
killed to the end, in an order by chance, the core half of the time. A kill waits until the one before is made good (the
cell is back, and a step was committed since), and until the mean time between two kills is above three times what a
restart and a step take, as measured so far; `--interval` gives seconds instead.

Then the log is held against itself: every update summed exactly its batch's micro-steps, and one trainer in this
process, which nobody kills, does every recorded step again, from policy version 0 on: each step's gradient before
clipping must agree to 1e-5 (at the weights that the run had), and what all updates did to the weights to 1e-2.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import uvloop

from bus.jetstream import Bus
from gyre.config import Config
from schemas.envelope import Event
from schemas.roles import CellRegistered
from schemas.training import BatchOpened, OptimizerStepped, ReductionOpened
from services.failpoints import VARIABLE, Failpoint, marks
from services.place import new_instance
from services.reexecute import Rerun, reexecute
from services.replay import verify
from services.setup import Opened, open_run
from services.source import open_source

RATIO = 3.0
"""Mean time between kills in units of a restart and a step, at least."""
AIMED = 3.3
GRADIENTS, WEIGHTS = 1e-5, 1e-2
CORE_KILLS = 3
LOOK_SECONDS = 0.05


@dataclass
class Fire:
    """What was killed, and what the log says about it."""

    chance: random.Random
    cells: int
    deck: list[int] = field(default_factory=list)
    """Who is to be killed, the next one last."""
    kills: list[tuple[float, int]] = field(default_factory=list)
    """(monotonic seconds, cell)"""
    restarts: list[float] = field(default_factory=list)
    """From a kill to the registration of the next instance, seconds."""
    steps: list[float] = field(default_factory=list)
    """From BatchOpened to OptimizerStepped, undisturbed or not, seconds."""
    members: Counter[int] = field(default_factory=Counter)
    """Cells in a sum -> reductions opened with so many."""
    opened: float = 0.0
    """When the latest batch was."""
    dead: dict[int, float] = field(default_factory=dict)
    """Cell that is not back -> when it was killed."""
    struck_at: int = 0
    """Steps committed when the last kill fell."""
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def victim(self) -> int:
        """Any cell, the core as often as all others together."""
        if not self.deck:
            self.deck = [*range(1, self.cells), *([0] * (self.cells - 1))]
            self.chance.shuffle(self.deck)
        return self.deck.pop()

    def hear(self, event: Event, now: float) -> None:
        """Keep the books."""
        if isinstance(event, CellRegistered) and event.cell in self.dead:
            self.restarts.append(now - self.dead.pop(event.cell))
        elif isinstance(event, BatchOpened):
            self.opened = now
        elif isinstance(event, ReductionOpened):
            self.members[len(event.members)] += 1
        elif isinstance(event, OptimizerStepped):
            self.steps.append(now - self.opened)

    @property
    def healed(self) -> bool:
        """Whether the last kill is made good."""
        return not self.dead and len(self.steps) > self.struck_at

    @property
    def unit(self) -> float:
        """A restart and a step, seconds: means of what was measured so far."""
        return fmean(self.restarts or [0.0]) + fmean(self.steps)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for the log to make it so."""
        async with self.news:
            await self.news.wait_for(holds)


async def watch(fire: Fire, bus: Bus) -> None:
    """Follow the log for ever."""
    async with aclosing(bus.ev.read(0)) as log:
        async for stored in log:
            for event in stored.commit.events if stored.commit else ():
                fire.hear(event, time.monotonic())
            async with fire.news:
                fire.news.notify_all()


async def burn(fire: Fire, folder: Path, options: argparse.Namespace) -> None:
    """Kill for ever, after all failpoints."""
    await fire.until(lambda: {each.name for each in marks(folder).glob("*")} >= points(options) and bool(fire.steps))
    fire.struck_at = len(fire.steps)
    began = time.monotonic()
    while True:
        wish = time.monotonic() + fire.chance.uniform(0.5, 1.0) * (options.interval or RATIO * fire.unit)
        await fire.until(lambda: fire.healed)
        while time.monotonic() < max(wish, 0.0 if options.interval else earliest(fire, began)):  # noqa: ASYNC110 (clock)
            await asyncio.sleep(LOOK_SECONDS)
        strike(fire, folder)


def earliest(fire: Fire, began: float) -> float:
    """When the next kill may fall so that the mean interval is what it must be, monotonic seconds."""
    first = fire.kills[0][0] if fire.kills else began
    return first + len(fire.kills) * AIMED * fire.unit


def strike(fire: Fire, folder: Path) -> None:
    """Kill the next one."""
    cell = fire.victim()
    pid = cells(folder).get(cell)
    if pid is None:  # the run is over
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        fire.kills.append((time.monotonic(), cell))
        fire.dead[cell], fire.struck_at = time.monotonic(), len(fire.steps)


def points(options: argparse.Namespace) -> set[str]:
    """The failpoints that are asked for."""
    return {each.strip() for each in options.failpoints.split(",") if each.strip()}


def cells(folder: Path) -> dict[int, int]:
    """Cell -> pid of its process, of those that are there."""
    return dict(_cells(folder))


def _cells(folder: Path) -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "services.runtime" in words and words[words.index("services.runtime") + 1 :][:2] == [
                "cell",
                str(folder),
            ]:
                yield int(words[words.index("services.runtime") + 3]), int(entry.name)


def config(options: argparse.Namespace, folder: Path) -> Config:
    """Nano, three cells that join and leave training, every update's weights kept."""
    return Config.of(
        {
            "run": {"name": "fire", "steps": options.steps, "seed": options.seed, "folder": str(folder)}
            | {"keep_weights": "all"},
            "tasks": {"train": "words:64:train", "heldout": "words:16:heldout"},
            "schedule": {"groups": options.groups, "executions": 4, "phi": 0.5, "mu": 2, "rho_min": 0.25}
            | {"tau_seconds": 0.05},
            "cells": {"count": options.cells, "concurrency": 16, "lost_after_seconds": 5.0},
            "rollout": {"max_tokens": 32, "context_tokens": 384},
            "harness": {
                "command": ["{python}", "-I", "-S", "{reference}", "--max-turns", "3", "--max-tokens", "32"],
            },
            "optimizer": {"lr": 1e-4},
            "packing": {"row_tokens": 384, "micro_step_tokens": 384},
            "evaluation": {"episodes": 0},
        }
    )


async def trained(opened: Opened, fire: Fire, options: argparse.Namespace) -> dict[str, Any]:
    """The run under fire; its summary."""
    bus = await Bus.connect(opened.url, opened.run, "reader", new_instance("reader"), opened.folder)
    command = [
        sys.executable,
        "-m",
        "services.cli",
        "resume",
        opened.run,
        "--runs",
        str(opened.folder.parent),
        "--json",
    ]
    run = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env=os.environ | {VARIABLE: options.failpoints}
    )
    tasks = [asyncio.create_task(work) for work in (watch(fire, bus), burn(fire, opened.folder, options))]
    try:
        out, _ = await run.communicate()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await bus.close()
        if run.returncode is None:
            run.terminate()
            await run.wait()
    if run.returncode != 0:
        sys.exit(f"the run ended with exit code {run.returncode}; its folder is {opened.folder}")
    found: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
    return found


async def judged(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything that was found, and what of it is not as it must be."""
    fire = Fire(random.Random(options.seed), options.cells)
    opened = await open_run(config(options, folder))
    summary = await trained(opened, fire, options)
    async with open_source(opened.run, folder) as source:
        different = (await verify(source)).differences
        done = await reexecute(source)
    fired = sorted(each.name for each in marks(opened.folder).glob("*"))
    report = numbers(fire, done) | {"failpoints": fired, "steps": summary["steps"], "seconds": summary["seconds"]}
    wrong = [said for each in done.steps for said in each.differences(GRADIENTS)] + different
    return report | {"wrong": wrong + failures(report, summary, options)}


def numbers(fire: Fire, done: Rerun) -> dict[str, Any]:
    """What was measured."""
    killed = Counter(cell for _, cell in fire.kills)
    times = [at for at, _ in fire.kills]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    restart, step = fmean(fire.restarts or [0.0]), fmean(fire.steps)
    return {
        "kills": len(fire.kills),
        "kills_by_cell": dict(sorted(killed.items())),
        "restart_seconds": restart,
        "step_seconds": step,
        "interval_seconds": fmean(gaps) if gaps else None,
        "interval_ratio": fmean(gaps) / (restart + step) if gaps else None,
        "reductions_by_members": dict(sorted(fire.members.items())),
        "gradients_apart": max(each.apart or 0.0 for each in done.steps),
        "update_apart": done.update_apart,
    }


def failures(report: dict[str, Any], summary: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """What is asked of the run and does not hold."""
    core, ratio = report["kills_by_cell"].get(0, 0), report["interval_ratio"]
    asked = {
        "every step is committed": summary["steps"] == options.steps,
        "each micro-step is in its update": summary["micro_steps"] == summary["micro_steps_committed"],
        "d = p = f": summary["dispatched"] == summary["launched"] == summary["terminated"],
        f"weights within {WEIGHTS}": report["update_apart"] is not None and report["update_apart"] <= WEIGHTS,
        "every failpoint fired": points(options) == set(report["failpoints"]),
        f"{options.kills} kills": report["kills"] >= options.kills,
        f"{options.core_kills} kills of the core": core >= options.core_kills,
        f"interval of {RATIO} restarts and steps": bool(options.interval) or (ratio is not None and ratio >= RATIO),
    }
    return [f"not so: {name}" for name, holds in asked.items() if not holds]


def show(report: dict[str, Any]) -> None:
    """For people."""
    for name, value in report.items():
        if name != "wrong":
            print(f"{name.replace('_', ' '):24}{value if not isinstance(value, float) else f'{value:.3g}'}")
    print("\n".join(report["wrong"]) or "all as it must be")


def main() -> int:
    """Exit code 1 if anything is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cells", type=int, default=3)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=8, help="fewest kills")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between kills; 0: as measured")
    parser.add_argument("--core-kills", type=int, default=CORE_KILLS, help="fewest kills of the core")
    parser.add_argument("--failpoints", default=",".join(get_args(Failpoint)), help="names, separated by commas")
    parser.add_argument("--folder", type=Path, help="keep the run there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gyre-fire-")))
        report = uvloop.run(judged(options, folder.absolute()))
    print(json.dumps(report)) if options.json else show(report)
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
