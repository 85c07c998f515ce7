"""How long a singleton takes to come back: its snapshot and a tail of 20,000 events, read from a real server, typed and
folded by the very shell that serves a run (`services.office`), until its office is taken.

The log is a demo's in kinds, sizes and order, without the micro-steps (one event in a hundred). Clients and server
share the machine. Beside it, of the same log and minute: how fast it is read and typed, against nats-py's raw push
callback.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import uvloop
from bus_rates import NUMBERS, Bench, _push, _read, compare, rate

from bus import subjects
from bus.jetstream import Bus
from gyre.config import Config
from gyre.process import collect_rarely
from schemas.base import pack_floats, pack_ints
from schemas.calls import RecordsSealed, RouteAssigned
from schemas.dispatch import (
    ExecutionDispatched,
    ExecutionLaunched,
    ExecutionTerminated,
    GroupDispatched,
    LaunchGranted,
)
from schemas.envelope import Commit, Event, Producer
from schemas.refs import BlobRef, StateRef, WeightsRef
from schemas.rewards import AssessmentRecorded, GroupReady, LeafSummary, Outcome, RewardAssigned, TreeBuilt
from schemas.runs import OfficeTaken, RunStarted
from schemas.training import (
    BatchOpened,
    GroupAssigned,
    OptimizerStepped,
    TrajectoriesAdmitted,
    Trajectory,
    WeightsPublished,
)
from services.minds import Mind, minds
from services.office import office_of, snapshot_file
from services.place import Place
from services.quarantine import Quarantine

RUN = "bench"
DIGEST = "0123456789abcdef" * 4
EXECUTIONS, GROUPS, BURST = 8, 4, 2
WEIGHTS = WeightsRef(digest=DIGEST, size=1, address=f"weights/{DIGEST}.safetensors")
WANTED_SECONDS, WANTED_RATIO = 0.3, 0.4

Said = tuple[str, tuple[str | int, ...], tuple[Event, ...]]
"""(service, entity, events) of a commit."""


def life() -> Iterator[Said]:
    """A run's commits after RunStarted, for ever."""
    index, version = 0, 0
    while True:
        yield from group(index, version)
        yield "packer", ("batch", version + 1), (assigned(index, version + 1),)
        index += 1
        if index % GROUPS == 0:
            version += 1
            yield from stepped(version)


def group(index: int, version: int) -> Iterator[Said]:
    """All of one group, from its dispatch to its trajectories."""
    name, task = f"g{index}", f"train-{index % 512:04}"
    places = range(EXECUTIONS)
    dispatched = GroupDispatched(group=name, index=index, task=task, version=version, executions=EXECUTIONS)
    yield "scheduler", ("group", name), (dispatched,)
    for place in places:
        one = ExecutionDispatched(
            execution=f"x{index}-{place}",
            group=name,
            task=task,
            index=place,
            version=version,
            seed=index * 1000 + place,
        )
        yield "scheduler", ("execution", one.execution, "dispatched"), (one,)
    for place in places:
        yield from execution(f"x{index}-{place}", name, task)
    outcomes = tuple(Outcome(execution=f"x{index}-{place}", standing="valid", reward=0.5) for place in places)
    yield "admission", ("group", name), (GroupReady(group=name, index=index, version=version, outcomes=outcomes),)
    for place in places:
        one_admitted = admitted(f"x{index}-{place}", name, version)
        yield "admission", ("execution", one_admitted.execution), (one_admitted,)


def execution(name: str, of: str, task: str) -> Iterator[Said]:
    """One execution from its grant to its reward."""
    blob = f"blob:{DIGEST}"
    state = StateRef(digest=DIGEST, size=10240, address=blob)
    yield "scheduler", ("execution", name, "granted"), (LaunchGranted(execution=name),)
    launched = ExecutionLaunched(
        execution=name, group=of, runner="runner-8a470f63", token_digest=DIGEST, deadline_seconds=120.0
    )
    yield "runner", ("execution", name, "launched"), (launched,)
    yield "proxy", ("execution", name), (RouteAssigned(execution=name, cell=1),)
    ended = ExecutionTerminated(
        execution=name, group=of, task=task, reason="completed", stage="agent", exit_code=0, seconds=2.43, state=state
    )
    yield "runner", ("execution", name, "terminated"), (ended,)
    yield "proxy", ("execution", name), (RecordsSealed(execution=name, last_sequence=638, count=2, digest=DIGEST),)
    leaf = LeafSummary(leaf=f"{name}-c1", role="main", tokens=61, targets=22, final_main=True)
    body = BlobRef(digest=DIGEST, size=1089, address=blob)
    yield (
        "builder",
        ("execution", name),
        (TreeBuilt(execution=name, digest=DIGEST, nodes=2, leaves=(leaf,), body=body),),
    )
    found = AssessmentRecorded(
        assessment=f"{name}-a1",
        execution=name,
        designated=True,
        attempt=1,
        state=state,
        branch=None,
        score=0.5,
        valid=True,
        seconds=0.036,
        detail="",
    )
    reward = RewardAssigned(execution=name, group=of, reward=0.5, placeholder=False)
    yield "evaluator", ("execution", name), (found, reward)


def admitted(name: str, of: str, version: int) -> TrajectoriesAdmitted:
    """What a trainer gets of one execution."""
    trajectory = Trajectory(
        leaf=f"{name}-c1",
        role="main",
        ids=pack_ints(range(61)),
        target=bytes(39) + bytes([1]) * 22,
        logprobs=pack_floats([0.0] * 39 + [-0.5] * 22),
        targets=22,
    )
    return TrajectoriesAdmitted(
        execution=name, group=of, version=version, advantage=0.5, targets=22, seed=1, trajectories=(trajectory,)
    )


def assigned(index: int, step: int) -> GroupAssigned:
    return GroupAssigned(step=step, group=f"g{index}", version=step - 1, staleness=0)


def stepped(version: int) -> Iterator[Said]:
    """An update, its publication at the end of a burst, and the next batch."""
    one = OptimizerStepped(
        step=version,
        version=version,
        weights=WEIGHTS,
        optimizer=WEIGHTS,
        loss=0.1,
        gradient_norm=1.0,
        clip_coefficient=1.0,
        learning_rate=1e-4,
        seconds=2.0,
    )
    yield "cell", ("core",), (one,)
    if version % BURST == 0:
        yield "cell", ("core",), (WeightsPublished(version=version, weights=WEIGHTS, seconds=0.1),)
    yield "packer", ("batch", version + 1), (BatchOpened(step=version + 1, version=version, groups=GROUPS),)


def begin() -> RunStarted:
    """A run that never ends while it is measured."""
    table = {"run": {"steps": 1_000_000}, "schedule": {"groups": GROUPS, "executions": EXECUTIONS, "mu": BURST}}
    config = Config.of(table)
    tasks = tuple(f"train-{number:04}" for number in range(512))
    return RunStarted(
        config=config.table(),
        config_digest=config.digest(),
        seed=0,
        code_version="1",
        weights=WEIGHTS,
        tasks=tasks,
        heldout=(),
    )


async def write(bus: Bus, started: RunStarted, events: int, tail: int) -> int:
    """Say so many events and then a tail of so many more; returns the sequence that the tail begins after."""
    await _say(bus, ("control", ("run",), (started,)))
    lives, said, start = life(), 1, 0
    while said < events + tail:
        one = next(lives)
        sequence = await _say(bus, one)
        said += len(one[2])
        if said <= events:
            start = sequence
    return start


async def _say(bus: Bus, said: Said) -> int:
    service, entity, events = said
    number = next(NUMBERS)
    commit = Commit(
        run=RUN,
        producer=Producer(service=service, instance=f"{service}-8a470f63"),
        commit=f"{number:016x}",
        causation=number,
        as_of=number,
        correlation="x100-3",
        time=time.time_ns(),
        events=events,
    )
    return await bus.ev.append(subjects.ev(RUN, service, *entity), commit)


async def restore(bench: Bench, started: RunStarted, mind: Mind[Any], snapshot: tuple[Any, int]) -> float:
    """Seconds from a snapshot on disk to the office's first word."""
    place = Place(
        mind.service, f"{mind.service}-{next(NUMBERS)}", RUN, bench.folder, bench.server.url, Config.of(started.config)
    )
    snapshot_file(bench.folder, RUN, mind).save(*snapshot)
    head = await bench.bus.ev.head()
    taken = asyncio.create_task(_taken(bench.bus, head))
    await asyncio.sleep(0.2)  # its reading session is open before the clock starts
    began = time.perf_counter()
    quarantine = Quarantine(place, bench.bus, 1.0) if mind.service == "scheduler" else None
    serving = asyncio.create_task(office_of(place, bench.bus, mind, quarantine).run())
    await asyncio.wait((taken, serving), return_when=asyncio.FIRST_COMPLETED)
    seconds = time.perf_counter() - began
    if not taken.done():
        await serving  # its error
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return seconds


async def _taken(bus: Bus, head: int) -> None:
    async with aclosing(bus.ev.read(head)) as messages:
        async for stored in messages:
            if stored.commit and any(isinstance(event, OfficeTaken) for event in stored.commit.events):
                return


async def folded(bus: Bus, mind: Mind[Any], until: int) -> Any:
    """A mind's state at a sequence."""
    state = mind.initial
    async with aclosing(bus.ev.read()) as messages:
        async for stored in messages:
            for event in stored.commit.events if stored.commit else ():
                state = mind.evolve(state, stored.sequence, event)
            if stored.sequence == until:
                return state
    raise RuntimeError(f"sequence {until} is not in the log")


async def measure(events: int, tail: int, rounds: int) -> dict[str, dict[str, float]]:
    """Every figure; seconds are medians."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="gyre-tail-") as name:
        async with Bench("laptop", Path(name)) as bench:
            started = begin()
            start = await write(bench.bus, started, events, tail)
            count = await bench.bus.ev.head()

            async def ours() -> tuple[float, float]:
                return await rate(count, _read(bench.bus, count))

            async def raw() -> tuple[float, float]:
                return await rate(count, _push(bench.js, count))

            found["replay"] = await compare(ours, raw, rounds)
            for mind in minds(started, bench.bus.ev, bench.bus.blobs).values():
                snapshot = (await folded(bench.bus, mind, start), start)
                times = [await restore(bench, started, mind, snapshot) for _ in range(rounds)]
                found[mind.service] = {
                    "seconds": round(statistics.median(times), 3),
                    "best": round(min(times), 3),
                    "commits": count - start,
                }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each side")
    parser.add_argument("--before", type=int, default=2000, help="events below the snapshot")
    parser.add_argument("--tail", type=int, default=20_000, help="events above it")
    arguments = parser.parse_args()
    collect_rarely()  # as every decider does
    found = uvloop.run(measure(arguments.before, arguments.tail, arguments.rounds))
    if arguments.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for name, figures in found.items():
        wanted = f"ratio >= {WANTED_RATIO}" if name == "replay" else f"seconds <= {WANTED_SECONDS}"
        print(f"{name:10}", "  ".join(f"{key} {value:g}" for key, value in figures.items()), f"   wanted {wanted}")


if __name__ == "__main__":
    main()
