"""`gyre doctor` over a long archive: events a second of processor time, and the most memory that it took.

    python -m benchmarks.doctor [--events 1000000] [--json]

The archive repeats a recorded run. A tenth of it is diagnosed first: memory that is bounded is about the same for both.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from benchmarks.recorded import RUN, Copies
from bus.archive import export
from bus.archive_file import read_lines
from bus.archive_lines import Message
from bus.blobs import Blobs
from schemas.speakers import Stream


class Repeated:
    """One stream of the repeated run, as an archive is made from it."""

    def __init__(self, copies: Copies, stream: Stream, events: int) -> None:
        self.copies, self.stream, self.events = copies, stream, events

    async def head(self) -> int:
        recorded = sum(isinstance(line, Message) and line.stream == self.stream for line in read_lines(RUN))
        return self.copies.needed(self.events) * recorded

    async def raw(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        for sequence, (subject, data) in enumerate(self.copies.of(self.stream, self.events), start=1):
            yield sequence, subject, data


def archived(folder: Path, events: int) -> Path:
    copies, path = Copies(), folder / f"{events}.jsonl.zst"
    logs = (Repeated(copies, stream, events) for stream in ("EV", "CALL"))
    asyncio.run(export(path, copies.run, *logs, Blobs(folder / "blobs", durable=False)))
    return path


def diagnosed(path: Path) -> dict[str, float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "services.cli", "doctor", str(path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = json.loads(process.stdout.read())
    _, _, used = os.wait4(process.pid, 0)
    processor = used.ru_utime + used.ru_stime
    return {
        "events": told["events"],
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(processor, 1),
        "events_per_processor_second": round(told["events"] / processor),
        "peak_mb": round(used.ru_maxrss / 1024),
        "findings": len(told["findings"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast and how large gyre doctor is over a long archive.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [diagnosed(archived(Path(folder), events)) for events in (options.events // 10, options.events)]
    if options.json:
        print(json.dumps(found))
        return
    for each in found:
        print(
            f"{each['events']:>9} events  {each['processor_seconds']:>7} s of processor time "
            f"({each['events_per_processor_second']} a second), {each['seconds']} s in all, peak {each['peak_mb']} MB"
        )


if __name__ == "__main__":
    main()
