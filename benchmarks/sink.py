"""The warehouse's sink: a log of a million events into chDB, killed twenty times on the way, then once without.

The log has a demo's kinds, sizes and order (benchmarks/tail.py) and two request records an execution. Afterwards row
counts by type and sums of fields must be those of the events that were written. Rates are of the pass that nobody
killed, reading and decoding the log included; the peak is the sink process's, of which chDB alone takes about 340 MB.
"""

import argparse
import asyncio
import json
import mmap
import random
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tail import DIGEST, RUN, Said, begin, life

from bus import codec
from bus.blobs import Blobs
from bus.log import Stored
from gyre.warehouse.clickhouse import Warehouse
from schemas.base import pack_floats, pack_ints
from schemas.calls import ModelCallRecorded, SamplingRecord, VersionSpan
from schemas.dispatch import ExecutionTerminated
from schemas.envelope import COMMIT, Commit, Event, Producer
from services.analytics import catch_up
from services.source import Source

WANTED_RATE = 30_000
STREAMS = ("EV", "CALL")
BEGIN = 1_900_000_000_000_000_000
TEXT = json.dumps([{"role": "user", "content": "Write the word that was asked for into answer.txt. " * 4}])


class FileLog:
    """One stream in a file, as `bus.log.ReadLog`; it ends."""

    def __init__(self, path: Path) -> None:
        self._ends = array("Q")
        with path.with_suffix(".ends").open("rb") as ends:
            self._ends.frombytes(ends.read())
        self._blobs = Blobs(path.parent / "blobs", durable=False)
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    async def read(self, after: int = 0, *_: str) -> AsyncGenerator[Stored, None]:
        for sequence in range(after + 1, len(self._ends)):
            if sequence % 256 == 0:
                await asyncio.sleep(0)
            yield self._stored(sequence)

    async def last(self, _: str) -> Stored | None:
        return await self.get(len(self._ends) - 1)

    async def get(self, sequence: int) -> Stored | None:
        return self._stored(sequence) if 0 < sequence < len(self._ends) else None

    async def head(self) -> int:
        return len(self._ends) - 1

    def _stored(self, sequence: int) -> Stored:
        data = self._data[self._ends[sequence - 1] : self._ends[sequence]]
        return codec.decode(sequence, f"ev.{RUN}.x", data, self._blobs)


@dataclass
class Truth:
    """What must be in the warehouse, added up while the log is written."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    tokens: int = 0
    sequences: int = 0

    def add(self, sequence: int, events: tuple[Event, ...]) -> None:
        for event in events:
            self.counts[event.type] += 1
            self.sequences += sequence
            self.seconds += getattr(event, "seconds", 0.0) or 0.0
            self.tokens += len(getattr(event, "output_ids", b"")) // 4


def write(folder: Path, events: int) -> Truth:
    """The log as files; returns what is in it."""
    truth = Truth()
    files = {stream: (folder / stream).open("wb") for stream in STREAMS}
    ends = {stream: array("Q", [0]) for stream in STREAMS}
    for said in stories(events):
        stream = "CALL" if isinstance(said[2][0], ModelCallRecorded) else "EV"
        sequence = len(ends[stream])
        body = COMMIT.dump_json(committed(said, sum(map(len, ends.values()))))
        files[stream].write(body)
        ends[stream].append(ends[stream][-1] + len(body))
        truth.add(sequence, said[2])
    for stream in STREAMS:
        files[stream].close()
        (folder / f"{stream}.ends").write_bytes(ends[stream].tobytes())
    return truth


def stories(events: int) -> Iterator[Said]:
    """RunStarted, then life with the calls that each execution made before it ended."""
    yield "control", ("run",), (begin(),)
    count = 1
    for said in life():
        if isinstance(said[2][0], ExecutionTerminated):
            for index in range(2):
                yield "proxy", (), (call(said[2][0].execution, index),)
                count += 1
        yield said
        count += len(said[2])
        if count >= events:
            return


def call(execution: str, index: int) -> ModelCallRecorded:
    return ModelCallRecorded(
        execution=execution,
        call=f"{execution}-c{index}",
        index=index,
        thread="main",
        kind="turn",
        parent=f"{execution}-c0" if index else None,
        prefix_tokens=39 * index,
        prefix_messages=2 * index,
        input_ids=pack_ints(range(39 if index == 0 else 11)),
        output_ids=pack_ints(range(11)),
        logprobs=pack_floats([-0.5] * 11),
        versions=(VersionSpan(version=3, tokens=11),),
        finish="stop",
        sampling=SamplingRecord(temperature=1.0, top_p=1.0, top_k=0, max_tokens=64, seed=1),
        messages=TEXT,
        reply=json.dumps([{"role": "assistant", "content": "done"}]),
        system_digest=DIGEST,
        cells=(1,),
        cached_tokens=39 * index,
        queue_seconds=0.01,
        engine_seconds=0.4,
        total_seconds=0.5,
        delivered=True,
    )


def committed(said: Said, number: int) -> Commit:
    service, _, events = said
    return Commit(
        run=RUN,
        producer=Producer(service=service, instance=f"{service}-8a470f63"),
        commit=f"{number:016x}",
        causation=number,
        as_of=number,
        correlation="x100-3",
        time=BEGIN + number * 1_000_000,
        events=events,
    )


class Telling(Warehouse):
    """Says how many rows it has been given before it writes them."""

    told = 0

    def insert(self, lines: Any) -> None:
        self.told += len(lines)
        print(self.told, flush=True)
        super().insert(lines)


def sink(folder: Path, target: str) -> None:
    """The process that is killed: fills the warehouse, then says its seconds, peak memory and processor seconds."""
    log = Source(RUN, FileLog(folder / "EV"), FileLog(folder / "CALL"), Blobs(folder, durable=False), None)
    began, before = time.perf_counter(), time.process_time()
    asyncio.run(catch_up(Telling(target), log))
    seconds, used = time.perf_counter() - began, time.process_time() - before
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, peak_mb, used]), flush=True)


def run(folder: Path, target: Path, kill_at: int | None, chance: random.Random) -> tuple[int, list[float] | None]:
    """Start a sink; kill it once it has been given so many rows. Returns the rows it was given, and its figures."""
    command = [sys.executable, __file__, "--sink", str(folder), "--target", str(target)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    given = 0
    for line in process.stdout:
        if line.startswith("["):
            process.wait()
            return given, json.loads(line)
        given = int(line)
        if kill_at is not None and given >= kill_at:
            time.sleep(chance.random() * 0.3)
            process.kill()
            break
    process.wait()
    process.stdout.close()
    return given, None


def differences(target: Path, truth: Truth) -> list[str]:
    """Where the warehouse and the log do not agree."""
    warehouse = Warehouse(str(target))
    rows = warehouse.query("SELECT type, count() AS n FROM events GROUP BY type", {}, "JSONEachRow").splitlines()
    counts = {row["type"]: row["n"] for row in map(json.loads, rows)}
    sums = json.loads(
        warehouse.query(
            "SELECT sum(sequence) AS sequences, sum(body.seconds::Float64) AS seconds, "
            "sum(body.output_tokens::UInt64) AS tokens FROM events",
            {},
            "JSONEachRow",
        )
    )
    warehouse.close()
    found = [f"{kind}: {counts.get(kind)} rows of {n}" for kind, n in truth.counts.items() if counts.get(kind) != n]
    found += [
        f"sum of {name}: {sums[name]}, the log has {getattr(truth, name)}"
        for name in ("sequences", "tokens")
        if sums[name] != getattr(truth, name)
    ]
    if abs(sums["seconds"] - truth.seconds) > 1e-9 * truth.seconds:
        found.append(f"sum of seconds: {sums['seconds']}, the log has {truth.seconds}")
    return found


def questions(target: Path) -> dict[str, float]:
    """Seconds that some questions take over the whole."""
    asked = {
        "count of events": "SELECT count() FROM events",
        "latency of calls": "SELECT quantile(0.99)(total_seconds), sum(output_tokens) FROM calls",
        "all executions": "SELECT * FROM executions",
        "all steps": "SELECT * FROM steps",
    }
    warehouse = Warehouse(str(target))
    took = {}
    for name, sql in asked.items():
        began = time.perf_counter()
        warehouse.query(sql, {}, "Null")
        took[f"{name}, s"] = round(time.perf_counter() - began, 3)
    warehouse.close()
    return took


def measure(events: int, kills: int) -> dict[str, Any]:
    chance = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="gyre-sink-") as name:
        folder = Path(name)
        truth = write(folder, events)
        rows = sum(truth.counts.values())
        done, killed = 0, 0
        while killed < kills:
            share = (rows - done) // (kills - killed + 1)
            given, ended = run(folder, folder / "killed", max(1, share), chance)
            killed += ended is None
            done += given
            if ended is not None:
                break
        run(folder, folder / "killed", None, chance)
        wrong = differences(folder / "killed", truth)
        _, figures = run(folder, folder / "whole", None, chance)
        assert figures is not None
        wrong += differences(folder / "whole", truth)
        return {
            "events": rows,
            "kills": killed,
            "differences": wrong,
            "events_per_second": round(rows / figures[0]),
            "peak_mb": round(figures[1]),
            "processor_us_per_event": round(figures[2] / rows * 1e6, 1),
            "megabytes": round(
                sum(each.stat().st_size for each in (folder / "whole").rglob("*") if each.is_file()) / 1e6
            ),
            **questions(folder / "whole"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--sink", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sink:
        sink(arguments.sink, arguments.target)
        return
    found = measure(arguments.events, arguments.kills)
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value}")
        print(f"wanted: no differences, at least {WANTED_RATE} events a second")
    sys.exit(1 if found["differences"] else 0)


if __name__ == "__main__":
    main()
