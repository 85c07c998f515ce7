"""What a change of roles costs the requests that it cuts, with and without a handoff of their keys and values.

    python -m benchmarks.moved_requests [--executions 200] [--switches 20] [--cells 3] [--width 16] [--way handoff]

Real nats-server, proxy, runner and reference harnesses; cells are processes with the nano model. While executions run,
cells go to training one by one, core first, all but the last, and come back, again and again. Every piece is held
against the rules first (no call fails or is restarted, each cut request goes on once and elsewhere, no execution moves
more than once): one broken rule, and the exit code is 1. The wait of a cut request is the time from its end at one cell
to its next token at another, as the proxy measures it: all that its client waits longer.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.services.judge import Verdict, judge
from tests.services.stage import as_processes, config_of, play

REST_SECONDS = 0.3
WAYS = {"handoff": 2.0, "recompute": 0.0}
"""Seconds that a leaving cell waits for its caches to be fetched."""


def quantile(values: list[float], share: float) -> float:
    """Of sorted values, the smallest that so many of them do not exceed; 0 of none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


async def piece(arguments: argparse.Namespace, handoff_seconds: float) -> Verdict:
    """One run from its first word to its last seal."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(Path(folder), arguments.cells, arguments.width, handoff_seconds)
        played = await play(
            config, as_processes, arguments.executions, arguments.width, arguments.switches, REST_SECONDS
        )
        return judge(played, config.cells.heartbeat_seconds)


def figures(verdict: Verdict) -> dict[str, Any]:
    """As plain data, waits in milliseconds."""
    waits = verdict.waits
    return asdict(verdict) | {
        "waits": len(waits),
        "handoffs": len(verdict.handoffs),
        "handoff_p50_ms": 1e3 * quantile(verdict.handoffs, 0.5),
        "wait_p50_ms": 1e3 * quantile(waits, 0.5),
        "wait_p99_ms": 1e3 * quantile(waits, 0.99),
        "wait_max_ms": 1e3 * quantile(waits, 1.0),
    }


def show(name: str, found: dict[str, Any]) -> None:
    """A few lines for people."""
    print(
        f"{name}: {found['executions']} executions, {found['calls']} calls, {found['switches']} switches, "
        f"{found['moves']} routes moved, {found['cut']} requests cut, {found['handoffs']} caches handed over "
        f"({found['handoff_p50_ms']:.1f} ms, p50)"
    )
    print(
        f"  a cut request waited {found['wait_p50_ms']:.1f} ms (p50), {found['wait_p99_ms']:.1f} ms (p99), "
        f"{found['wait_max_ms']:.1f} ms (most); {found['reused']:.0%} of its context was reused"
    )
    print("  " + ", ".join(f"{phase} {seconds * 1e3:.1f} ms" for phase, seconds in found["phases"].items()))
    for problem in found["problems"]:
        print(f"  BROKEN: {problem}")


def main() -> int:
    """Measure both ways; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=200)
    parser.add_argument("--switches", type=int, default=20, help="at least so many")
    parser.add_argument("--cells", type=int, default=3)
    parser.add_argument("--width", type=int, default=16, help="executions at a time, and places of one cell")
    parser.add_argument("--way", choices=WAYS, help="one of the two alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {}
    for name in [arguments.way] if arguments.way else WAYS:
        found[name] = figures(asyncio.run(piece(arguments, WAYS[name])))
        if not arguments.json:
            show(name, found[name])
    if arguments.json:
        print(json.dumps({"load": os.getloadavg(), **found}))
    return 1 if any(each["problems"] for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
