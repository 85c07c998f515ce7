"""What attacks cost the neighbours, and what a sandbox costs to start: `python -m benchmarks.sandbox_attacks`.

A neighbour does a fixed piece of work in the same sandbox, alone and while each attack goes on beside it. On a machine
with as many processors as there are attackers and neighbours the ratio should be near 1; with fewer, an attacker that
computes takes its fair share, and the first column says how much a harmless command that computes takes in its place.
Times are medians of several rounds; run it on a quiet machine.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from gyre.sandboxes.port import Command, SandboxError
from services import workspace
from tests.sandboxes.attacks import GREEDY
from tests.sandboxes.stand import KINDS, Stand, lacking, make

WORK = "print(sum(n * n for n in range(1_500_000)))"
HARMLESS = "while True: sum(n * n for n in range(100_000))"
STARTS = 30
_NUMBERS = itertools.count()


async def neighbour(stand: Stand, folder: Path) -> float:
    """Seconds of the fixed work, from its start to its end."""
    ended = await stand.sandbox.run(stand.command(folder / "neighbour", WORK))
    assert ended.exit_code == 0, ended
    return ended.seconds


async def beside(stand: Stand, folder: Path, script: str) -> float:
    """The same while a script is run over and over."""

    async def attack() -> None:
        while True:
            box = folder / f"attack-{next(_NUMBERS)}"
            try:
                await stand.sandbox.run(stand.command(box, script, seconds=5.0))
            finally:
                await asyncio.to_thread(workspace.clear, box)

    attacking = asyncio.create_task(attack())
    try:
        await asyncio.sleep(0.2)  # it is under way
        return await neighbour(stand, folder)
    finally:
        attacking.cancel()
        with contextlib.suppress(asyncio.CancelledError, SandboxError):
            await attacking


async def median(rounds: int, measured: Callable[[], Awaitable[float]]) -> float:
    """Of several measurements."""
    return statistics.median([await measured() for _ in range(rounds)])


async def starts(stand: Stand, folder: Path, reach: str) -> float:
    """Seconds to start and end a command that does nothing."""
    box = folder / "start"
    (box / "ws").mkdir(parents=True)
    program = ("true",) if stand.kind == "docker" else ("/bin/true",)
    began = time.perf_counter()
    for _ in range(STARTS):
        ended = await stand.sandbox.run(Command(program, box / "ws", box, {}, 30.0, reach=reach))
        assert ended.exit_code == 0, ended
    return (time.perf_counter() - began) / STARTS


async def measure(kind: str, rounds: int) -> dict[str, float]:
    """Ratios of a neighbour's time by attack, and milliseconds of a start, with and without something to reach."""
    stand = make(kind)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            "start, ms": 1000 * await starts(stand, folder / "one", ""),
            "start with reach, ms": 1000 * await starts(stand, folder / "two", "http://127.0.0.1:9"),
        }
        quiet = await median(rounds, functools.partial(neighbour, stand, folder))
        found["quiet neighbour, s"] = quiet
        scripts = {"harmless": HARMLESS, **{attack.name: attack.script for attack in GREEDY}}
        for label, script in scripts.items():
            taken = await median(rounds, functools.partial(beside, stand, folder, script))
            found[f"beside: {label}"] = taken / quiet
    await stand.sandbox.close()
    return found


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each figure; their median counts")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("kinds", nargs="*", default=[kind for kind in KINDS if not lacking(kind)])
    given = parser.parse_args()
    found = {kind: asyncio.run(measure(kind, given.rounds)) for kind in given.kinds}
    if given.json:
        print(json.dumps(found))
        return
    print("| | " + " | ".join(found) + " |")
    print("|---|" + "---|" * len(found))
    for label in next(iter(found.values())):
        print(f"| {label} | " + " | ".join(f"{figures[label]:.2f}" for figures in found.values()) + " |")


if __name__ == "__main__":
    main()
