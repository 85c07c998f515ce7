"""How long an archive of many events takes to open: for queries by its columns, for reading by its index.

    python -m benchmarks.archive_open [--events 1000000] [--json]

The archive repeats a recorded run (benchmarks/recorded.py). Opening is a process of its own, from its start to the
first answer, with each file's digest checked; then come the questions of a dashboard, over all of it. What is made once
(the archive, its columns) is told too.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.recorded import Copies
from bus.archive_log import open_archive
from bus.archive_writer import writing
from services.analytics.archive_columns import beside, make_columns
from services.analytics.service import STREAMS
from services.asking import asking

WANTED_SECONDS = 10.0
READS = 50
QUESTIONS = {
    "steps": "SELECT step, score, loss, gradient_norm, staleness, pearson FROM steps ORDER BY step",
    "executions by reason": "SELECT reason, count(), avg(seconds), avg(reward) FROM executions GROUP BY reason",
    "latency of calls": "SELECT kind, quantile(0.99)(total_seconds), sum(output_tokens) FROM calls GROUP BY kind",
    "groups by outcome": "SELECT outcome, count() FROM groups GROUP BY outcome",
    "roles": "SELECT cell, standing, sum(seconds) FROM roles GROUP BY cell, standing",
    "events by type": "SELECT type, count() FROM facts GROUP BY type",
    "waterlevel": (
        "SELECT intDiv(ns, 1000000000) AS second, sum(if(type = 'ExecutionDispatched', 1, -1)) FROM facts "
        "WHERE type IN ('ExecutionDispatched', 'ExecutionTerminated') GROUP BY second ORDER BY second"
    ),
    "one page of executions": "SELECT * FROM executions ORDER BY dispatched_at LIMIT 50",
}


def write(path: Path, events: int) -> int:
    """An archive with so many events; returns how many it has."""
    copies = Copies()
    with writing(path, copies.run) as archive:
        for stream in STREAMS:
            for sequence, (subject, data) in enumerate(copies.of(stream, events), start=1):
                archive.message(stream, sequence, subject, data)
        archive.footer(())
    return copies.truth.events


async def ask(path: Path) -> dict[str, float]:
    """The process that opens: seconds to the first answer (its imports included), and of each question."""
    took = {}
    async with asking(str(path), path.parent) as asked:
        await asked.rows("SELECT run, events FROM runs")
        took["opened"] = time.time() - float(sys.argv[-1])
        for name, sql in QUESTIONS.items():
            began = time.perf_counter()
            await asked.answer(sql)
            took[name] = time.perf_counter() - began
    return {name: round(seconds, 3) for name, seconds in took.items()}


async def read(path: Path) -> dict[str, float]:
    """Seconds to open by the index, and milliseconds to read one message anywhere."""
    began = time.perf_counter()
    with open_archive(path) as archive:
        head = await archive.ev.head()
        opened = time.perf_counter() - began
        chance = random.Random(5)
        began = time.perf_counter()
        for _ in range(READS):
            await archive.ev.get(chance.randint(1, head))
        each = (time.perf_counter() - began) / READS
    return {"opened by its index, s": round(opened, 3), "a message anywhere, ms": round(1000 * each, 1)}


def measure(folder: Path, events: int) -> dict[str, Any]:
    path = folder / "run.jsonl.zst"
    began = time.perf_counter()
    found: dict[str, Any] = {"events": write(path, events)}
    found["written, s"] = round(time.perf_counter() - began, 1)
    found["archive, MB"] = round(path.stat().st_size / 1e6)
    began = time.perf_counter()
    asyncio.run(make_columns(path))
    found["columns made, s"] = round(time.perf_counter() - began, 1)
    found["columns, MB"] = round(sum(each.stat().st_size for each in beside(path).iterdir()) / 1e6)
    found |= asyncio.run(read(path))
    command = [sys.executable, "-m", "benchmarks.archive_open", "--ask", str(path), str(time.time())]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return found | {f"{name}, s": seconds for name, seconds in json.loads(said).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("began", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        print(json.dumps(asyncio.run(ask(arguments.ask))))
        return
    with tempfile.TemporaryDirectory(prefix="gyre-archive-open-") as name:
        found = measure(Path(name), arguments.events)
    if arguments.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:28} {value}")
        print(f"wanted: opened within {WANTED_SECONDS:g} s at 10 M events")
    sys.exit(1 if found["opened, s"] > WANTED_SECONDS else 0)


if __name__ == "__main__":
    main()
