"""The warehouse's sink: a recorded mix of a million events in a real log into chDB, killed twenty times on the way.

    python -m benchmarks.sink [--events 1000000] [--kills 20] [--json]

A real nats-server holds the log, `gyre serve analytics` (a process of its own) reads it, SIGKILL ends that at moments
drawn by chance. Afterwards row counts by type and sums of fields must be those that the models found in the log; one
difference, and the exit code is 1. Then an empty warehouse is filled by one that nobody kills: its rate, beside what
chDB takes of the same rows when nothing else is done, and what nats-py's raw push callback receives.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import uvloop
from nats.js import api

from benchmarks.recorded import Copies, Truth
from bus import streams
from bus.group import Group, commit_group
from bus.jetstream import Bus
from bus.server import NatsServer
from gyre.warehouse.clickhouse import Warehouse
from gyre.warehouse.engine import WarehouseError
from gyre.warehouse.live import Live
from gyre.warehouse.opening import opened
from gyre.warehouse.rows import lines
from services.analytics.batches import ROWS
from services.analytics.service import STREAMS, TARGET
from services.place import Note

WANTED_RATE = 30_000
MEMBERS, BYTES = 500, 4 << 20
RAW_ROWS, RAW_MESSAGES = 256_000, 200_000
"""Of the baselines."""


class Log:
    """A run folder with a server that holds so many events of the recorded mix."""

    def __init__(self, folder: Path, events: int) -> None:
        self.folder, self.events = folder, events
        self.copies = Copies()
        self.run = self.copies.run
        self.server = NatsServer(folder / "nats", "laptop").start()

    async def fill(self) -> None:
        bus = await Bus.connect(
            self.server.url, self.run, "control", "control-1", self.folder, create=True,
            limits=streams.Limits(ev_bytes=32 << 30, call_bytes=32 << 30), sync="laptop",
        )  # fmt: skip
        Note(self.run, self.server.url, "laptop").write(self.folder)
        names = {"EV": streams.ev_stream(self.run), "CALL": streams.call_stream(self.run)}
        for stream in STREAMS:
            for members in grouped(self.copies.of(stream, self.events)):
                deadline = asyncio.get_running_loop().time() + 60
                said = [(subject, body, f"{names[stream]}-{next(NUMBERS)}") for subject, body in members]
                await commit_group(bus._link, Group(said, deadline))  # noqa: SLF001
        await bus.close()

    @property
    def truth(self) -> Truth:
        return self.copies.truth

    @property
    def heads(self) -> dict[str, int]:
        return {stream: self.copies.heads[stream] for stream in STREAMS}


NUMBERS = itertools.count(1)


def grouped(messages: Iterator[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    members: list[tuple[str, bytes]] = []
    size = 0
    for message in messages:
        if len(members) == MEMBERS or size + len(message[1]) > BYTES:
            yield members
            members, size = [], 0
        members.append(message)
        size += len(message[1])
    if members:
        yield members


@contextmanager
def sink(log: Log, warehouse: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`gyre serve analytics`; killed in the end, if it has not ended."""
    command = [sys.executable, "-m", "services.runtime", "analytics", str(log.folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, TARGET: str(warehouse)}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def attended(process: subprocess.Popen[bytes], warehouse: Path) -> Live:
    """Whoever answers for the warehouse of a sink that was just started."""
    while process.poll() is None:
        try:
            return Live(warehouse)
        except WarehouseError:
            time.sleep(0.01)
    raise SystemExit("the sink has ended by itself")


def reached(live: Live) -> int:
    return sum(live.reach({}).values())


def fill_until(log: Log, warehouse: Path, messages: int, chance: random.Random) -> int:
    """Start a sink and kill it soon after so many messages are there; how many there were when it was asked last."""
    with sink(log, warehouse) as process:
        live = attended(process, warehouse)
        there = reached(live)
        while there < messages:
            time.sleep(0.02)
            there = reached(live)
        time.sleep(chance.random() * 0.3)
    live.close()
    return there


def fill(log: Log, warehouse: Path) -> dict[str, float]:
    """Fill it whole with one sink; its figures."""
    with sink(log, warehouse) as process:
        live = attended(process, warehouse)
        began, before = time.perf_counter(), processor_seconds(process.pid)
        while sum(live.reach(log.heads).values()) < sum(log.heads.values()):
            pass
        took, used = time.perf_counter() - began, processor_seconds(process.pid) - before
        status = Path(f"/proc/{process.pid}/status").read_text()
        live.close()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {"seconds": took, "processor_us": used / log.truth.events * 1e6, "peak_mb": peak / 1024}


def processor_seconds(pid: int) -> float:
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def differences(warehouse: Path, truth: Truth) -> list[str]:
    """Where the warehouse and the log do not agree."""
    with opened(str(warehouse)) as found:
        counted = found.query("SELECT type, count() AS n FROM facts GROUP BY type", {}).splitlines()
        summed = found.query(
            "SELECT sum(sequence) AS sequences, sum(seconds) AS seconds, sum(output_tokens) AS tokens FROM facts", {}
        )
    counts = {row["type"]: row["n"] for row in map(json.loads, counted)}
    sums = json.loads(summed)
    wrong = [
        f"{kind}: {counts.get(kind)} rows of {truth.counts.get(kind)}"
        for kind in {*counts, *truth.counts}
        if counts.get(kind) != truth.counts.get(kind)
    ]
    if (sums["sequences"], sums["tokens"]) != (truth.sequences, truth.tokens):
        wrong.append(f"sums: {sums}, the log has {truth.sequences} and {truth.tokens}")
    if abs(sums["seconds"] - truth.seconds) > 1e-9 * truth.seconds:
        wrong.append(f"sum of seconds: {sums['seconds']}, the log has {truth.seconds}")
    return wrong


def raw_inserts(log: Log, folder: Path) -> float:
    """Rows a second that chDB takes of the same bytes, in batches of the same size."""
    copies = Copies()
    rows: list[bytes] = []
    for stream in STREAMS:
        for sequence, (subject, data) in enumerate(copies.of(stream, RAW_ROWS // 2), start=1):
            rows += lines(log.run, stream, sequence, subject, data)
    warehouse = Warehouse(str(folder))
    warehouse.position(log.run, "EV")
    began = time.perf_counter()
    for first in range(0, len(rows), ROWS):
        warehouse.insert(rows[first : first + ROWS])
    took = time.perf_counter() - began
    warehouse.close()
    return len(rows) / took


async def raw_reads(log: Log) -> float:
    """Messages a second that nats-py's push callback receives, and does nothing with."""
    client = await nats.connect(log.server.url)
    done, seen, wanted = asyncio.Event(), itertools.count(1), min(RAW_MESSAGES, log.heads["EV"])

    async def on_message(_: object) -> None:
        if next(seen) == wanted:
            done.set()

    config = api.ConsumerConfig(ack_policy=api.AckPolicy.NONE)
    began = time.perf_counter()
    stream = streams.ev_stream(log.run)
    await client.jetstream().subscribe(f"ev.{log.run}.>", stream=stream, cb=on_message, config=config, manual_ack=True)
    await done.wait()
    took = time.perf_counter() - began
    await client.close()
    return wanted / took


def questions(warehouse: Path) -> dict[str, float]:
    """Seconds that some questions take over the whole."""
    asked = {
        "count of events": "SELECT count() FROM events",
        "latency of calls": "SELECT quantile(0.99)(total_seconds), sum(output_tokens) FROM calls",
        "all executions": "SELECT * FROM executions",
        "all steps": "SELECT * FROM steps",
    }
    took = {}
    with opened(str(warehouse)) as found:
        for name, sql in asked.items():
            began = time.perf_counter()
            found.query(sql, {}, "Null")
            took[f"{name}, s"] = round(time.perf_counter() - began, 3)
    return took


def tell(text: str) -> None:
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)


def measure(folder: Path, events: int, kills: int) -> dict[str, Any]:
    """Everything; progress is told on stderr."""
    chance, log = random.Random(7), Log(folder, events)
    try:
        uvloop.run(log.fill())
        truth, messages = log.truth, sum(log.heads.values())
        tell(f"the log has {truth.events} events in {messages} messages")
        killed, whole = folder / "killed", folder / "whole"
        for number in range(1, kills + 1):
            there = fill_until(log, killed, messages * number // (kills + 1), chance)
            tell(f"killed {number} of {kills} times, {there} messages are there")
        fill(log, killed)
        wrong = differences(killed, truth)
        figures = fill(log, whole)
        wrong += differences(whole, truth)
        rate = truth.events / figures["seconds"]
        tell(f"an unharmed sink took {figures['seconds']:.1f} s")
        inserts, reads = raw_inserts(log, folder / "raw"), uvloop.run(raw_reads(log))
        return {
            "events": truth.events,
            "messages": messages,
            "kills": kills,
            "differences": wrong,
            "events_per_second": round(rate),
            "chdb_rows_per_second": round(inserts),
            "of_chdb": round(rate / inserts, 2),
            "nats_py_messages_per_second": round(reads),
            "of_nats_py": round(rate * messages / truth.events / reads, 2),
            "processor_us_per_event": round(figures["processor_us"], 1),
            "peak_mb": round(figures["peak_mb"]),
            "megabytes": round(sum(each.stat().st_size for each in whole.rglob("*") if each.is_file()) / 1e6),
            **questions(whole),
        }
    finally:
        log.server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gyre-sink-") as name:
        found = measure(Path(name), arguments.events, arguments.kills)
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:28} {value}")
        print(f"wanted: no differences, at least {WANTED_RATE} events a second")
    sys.exit(1 if found["differences"] else 0)


if __name__ == "__main__":
    main()
