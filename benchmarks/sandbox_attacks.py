"""What attacks cost the neighbours, and what a sandbox costs to start: `python -m benchmarks.sandbox_attacks`.

A neighbour does a fixed piece of work in the same sandbox: alone, and while each attack goes on beside it. The two
alternate, and each round's ratio is to the quiet measurements right before and after it, so that a machine that grows
warm, or busy, tells on both. "noise" is how far quiet measurements lie apart: a ratio within it says nothing. On a
machine with as many processors as there are attackers and neighbours ratios should be near 1; with fewer, an attacker
that computes takes its fair share, as the harmless command that computes does. Times are medians of several rounds;
run it on a quiet machine. The table can be pasted into docs/sandboxes.md.
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
from collections.abc import Awaitable, Callable, Mapping, Sequence
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


async def interleaved(
    rounds: int, quiet: Callable[[], Awaitable[float]], loud: Mapping[str, Callable[[], Awaitable[float]]]
) -> tuple[list[float], dict[str, float]]:
    """Quiet measurements, and for each loud one the median of its ratios to the quiet ones around it."""
    quiets, ratios = [await quiet()], dict[str, list[float]]()
    for label in [label for _ in range(rounds) for label in loud]:
        taken = await loud[label]()
        quiets.append(await quiet())
        ratios.setdefault(label, []).append(taken / statistics.mean(quiets[-2:]))
    return quiets, {label: statistics.median(found) for label, found in ratios.items()}


def spread(times: Sequence[float]) -> str:
    """Where the middle eight tenths of the ratios of times to their median lie."""
    middle = statistics.median(times)
    low, *_, high = statistics.quantiles([each / middle for each in times], n=10)
    return f"{low:.2f}-{high:.2f}"


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


async def measure(kind: str, rounds: int) -> dict[str, str]:
    """Ratios of a neighbour's time by attack, and milliseconds of a start, with and without something to reach."""
    stand = make(kind)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one = 1000 * await starts(stand, folder / "one", "")
        two = 1000 * await starts(stand, folder / "two", "http://127.0.0.1:9")
        scripts = {"a harmless command that computes": HARMLESS}
        scripts |= {attack.name: attack.script for attack in GREEDY}
        loud = {label: functools.partial(beside, stand, folder, script) for label, script in scripts.items()}
        quiets, ratios = await interleaved(rounds, functools.partial(neighbour, stand, folder), loud)
    await stand.sandbox.close()
    return {
        "start and end of nothing, ms": f"{one:.1f}",
        "the same with something to reach, ms": f"{two:.1f}",
        "quiet neighbour, s": f"{statistics.median(quiets):.3f}",
        "noise: quiet neighbours, ratio to their median": spread(quiets),
        **{f"neighbour beside: {label}": f"{ratio:.2f}" for label, ratio in ratios.items()},
    }


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
        print(f"| {label} | " + " | ".join(figures[label] for figures in found.values()) + " |")


if __name__ == "__main__":
    main()
