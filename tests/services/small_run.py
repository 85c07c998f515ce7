"""A small run with every sort of leaf in it, written to a real server once, and read from its archive."""

import json
from itertools import count
from pathlib import Path
from typing import Any

from bus import subjects
from bus.archive import export_run
from bus.jetstream import Bus
from bus.log import BusPort, Log
from bus.server import NatsServer
from gyre.config import Config
from gyre.core import tree as trees
from gyre.core.admission import draw, seed_of
from gyre.core.leaves import summaries
from gyre.models.load import NANO
from gyre.proxy.chat_model import ChatModel
from schemas.base import pack_floats, pack_ints
from schemas.calls import (
    HistoryRejected,
    KvHandoffCompleted,
    ModelCallRecorded,
    ModelCallRetried,
    RecordsSealed,
    RequestCancelled,
    RouteMoved,
    SamplingRecord,
    VersionSpan,
)
from schemas.dispatch import ExecutionDispatched
from schemas.envelope import Commit, Event, Producer
from schemas.refs import WeightsRef
from schemas.rewards import GroupReady, Outcome, RewardAssigned, RewardUnresolved, TreeBuilt
from schemas.runs import EvaluationStarted, RunStarted
from schemas.training import (
    ExecutionStats,
    GroupAssigned,
    MicroStepCompleted,
    TrajectoriesAdmitted,
)

WORDS = ChatModel.load(NANO)
CONFIG = Config.of({"admission": {"j_max": 2}, "schedule": {"groups": 2, "executions": 4}})
BEGIN = 1_900_000_000_000_000_000
"""UTC nanoseconds at which the run begins; each commit is a second later than the one before."""


def call(index: int, parent: int | None, prefix: int, told: str, said: str, **more: Any) -> ModelCallRecorded:
    """A record of execution x0-0, unless `more` says otherwise; half of what was said is of version 1."""
    execution = more.get("execution", "x0-0")
    output = WORDS.encode(said)
    first = len(output) // 2
    fields: dict[str, Any] = {
        "execution": execution,
        "call": f"{execution}-c{index}",
        "index": index,
        "thread": "main",
        "kind": "turn",
        "parent": None if parent is None else f"{execution}-c{parent}",
        "prefix_tokens": prefix,
        "prefix_messages": 0,
        "input_ids": pack_ints(WORDS.encode(told)),
        "output_ids": pack_ints(output),
        "logprobs": pack_floats(-0.125 * (place + 1) for place in range(len(output))),
        "versions": (VersionSpan(version=0, tokens=first), VersionSpan(version=1, tokens=len(output) - first)),
        "finish": "stop",
        "sampling": SamplingRecord(temperature=1.0, top_p=1.0, top_k=0, max_tokens=9, seed=1),
        "messages": json.dumps([{"role": "user", "content": told}] if told else []),
        "reply": json.dumps([{"role": "assistant", "content": said}]),
        "system_digest": "0" * 64,
        "cells": (0,),
        "cached_tokens": 0,
        "queue_seconds": 0.0,
        "engine_seconds": 0.0,
        "total_seconds": 0.0,
        "delivered": True,
    }
    return ModelCallRecorded(**(fields | more))


def length(record: ModelCallRecorded) -> int:
    """Tokens of a record's whole path."""
    return record.prefix_tokens + (len(record.input_ids) + len(record.output_ids)) // 4


ROOT = call(0, None, 0, "Write the word.", "I will write it.")
ASKS_HELP = {"name": "agent", "arguments": '{"prompt": "Help me."}'}
DONE = {
    "role": "assistant",
    "content": "[done]",
    "tool_calls": [{"id": "call_1", "type": "function", "function": ASKS_HELP}],
}
NEXT = call(
    1,
    0,
    length(ROOT),
    " Go on.",
    "[done]",
    prefix_messages=2,
    total_seconds=2.2,
    cells=(0, 1),
    reply=json.dumps([DONE]),
)
FORK = call(2, 0, len(ROOT.input_ids) // 4, " Again.", "I did it again.", prefix_messages=1, fallback="it trims")
HELP = call(3, None, 0, "Help me.", "Here is help.", thread="sub-agent")
SUMMARY = call(4, 1, length(NEXT), " Sum up.", "It is written.", kind="compaction", prefix_messages=4)
TITLE = call(5, None, 0, "Name it.", "Title", kind="auxiliary")
CUT = call(6, 1, length(NEXT), " More.", "I was", finish="length", prefix_messages=4)
AGAIN = call(7, 1, length(NEXT), " More.", "I was\x1b[31m cut.", prefix_messages=4)
UNHEARD = call(8, 0, len(ROOT.input_ids) // 4, " Then?", "Nobody hears.", delivered=False, prefix_messages=1)
LOST = call(9, 99, 7, " Where?", "Nowhere.")
RECORDS = (ROOT, NEXT, FORK, HELP, SUMMARY, TITLE, CUT, AGAIN, UNHEARD, LOST)
TREE = trees.fold("x0-0", RECORDS)
DRAWN = draw(TREE.nodes, summaries(TREE), j_max=2, seed=seed_of(CONFIG.run.seed, "x0-0"))
TARGETS = sum(each.targets for each in DRAWN)
ADMITTED = TrajectoriesAdmitted(
    execution="x0-0",
    group="g0",
    version=0,
    advantage=1.5,
    targets=TARGETS,
    seed=seed_of(CONFIG.run.seed, "x0-0"),
    trajectories=DRAWN,
)


class Teller:
    """Says things on a bus, a second apart."""

    def __init__(self, bus: BusPort) -> None:
        self._bus = bus
        self._seconds = count()

    async def say(self, service: str, *entity: str | int, event: Event) -> None:
        await self._append(self._bus.ev, subjects.ev("r", service, *entity), service, event)

    async def record(self, record: ModelCallRecorded) -> None:
        await self._append(self._bus.calls, subjects.call("r", record.execution), "proxy", record)

    async def _append(self, log: Log, subject: str, service: Any, event: Event) -> None:
        number = next(self._seconds)
        commit = Commit(
            run="r",
            producer=Producer(service=service, instance=f"{service}-1"),
            commit=f"commit-{number}",
            causation=0,
            as_of=0,
            correlation="r",
            time=BEGIN + number * 10**9,
            events=(event,),
        )
        await log.append(subject, commit)


async def write_run(bus: BusPort) -> None:
    """x0-0: ten calls, scored, drawn from, trained; x0-1: excluded; x0-2: open; x1-2: a surplus; e0-0: held out."""
    teller = Teller(bus)
    begin = RunStarted(
        config=CONFIG.table(),
        config_digest=CONFIG.digest(),
        seed=CONFIG.run.seed,
        code_version="0",
        weights=WeightsRef(digest="0" * 64, size=1, address="weights/0.safetensors"),
        tasks=("a",),
        heldout=("b",),
    )
    await teller.say("control", "run", event=begin)
    await _calls(teller)
    sealed = RecordsSealed(execution="x0-0", last_sequence=len(RECORDS), count=len(RECORDS), digest="0" * 64)
    await teller.say("proxy", "execution", "x0-0", event=sealed)
    await _others(teller)
    built = TreeBuilt(
        execution="x0-0", digest=trees.digest(TREE), nodes=len(TREE.nodes), leaves=summaries(TREE), body=None
    )
    await teller.say("builder", "execution", "x0-0", event=built)
    reward = RewardAssigned(execution="x0-0", group="g0", reward=0.25)
    await teller.say("evaluator", "execution", "x0-0", event=reward)
    await teller.say("admission", "execution", "x0-0", event=ADMITTED)
    assigned = GroupAssigned(step=1, group="g0", version=0, staleness=0)
    await teller.say("packer", "batch", 1, event=assigned)
    stats = ExecutionStats(execution="x0-0", targets=TARGETS, ratio=1.25, mask=0, loss=0.0, max_delta_log_p=0.0, k3=0.0)
    completed = MicroStepCompleted(
        step=1, micro_step=0, cell=0, instance="cell-0", claim=1, stats=(stats,), seconds=0.5
    )
    await teller.say("cell", "step", 1, 0, event=completed)


async def _calls(teller: Teller) -> None:
    """The second call is moved from cell 0 to cell 1 while it is drawn."""
    about = ("execution", "x0-0")
    for record in RECORDS:
        if record is NEXT:
            retried = ModelCallRetried(execution="x0-0", call=NEXT.call, from_cell=0, reason="aborted", kept_tokens=1)
            moved = RouteMoved(execution="x0-0", from_cell=0, to_cell=1, reason="the cell left rollout")
            handed = KvHandoffCompleted(execution="x0-0", from_cell=0, to_cell=1, tokens=9, seconds=0.1)
            for event in (retried, moved, handed):
                await teller.say("proxy", *about, event=event)
        await teller.record(record)
    gone = RequestCancelled(execution="x0-0", call="x0-0-c10", cell=1, reason="client gone")
    refused = HistoryRejected(execution="x0-0", call="x0-0-rab", reason="messages: no image can be shown")
    for event in (gone, refused):
        await teller.say("proxy", *about, event=event)


async def _others(teller: Teller) -> None:
    for execution in ("x0-1", "x0-2", "x1-2", "e0-0"):
        await teller.record(call(0, None, 0, "Write.", "No.", execution=execution))
    unresolved = RewardUnresolved(execution="x0-1", group="g0", attempts=3, reason="its tests crash")
    await teller.say("evaluator", "execution", "x0-1", event=unresolved)
    await _surplus(teller)
    await teller.say("scheduler", "evaluation", "e0", event=EvaluationStarted(evaluation="e0", version=0, episodes=1))


async def _surplus(teller: Teller) -> None:
    """Of g1, x1-2 is scored after it closed with x1-0 and x1-1."""
    for place in range(3):
        entry = ExecutionDispatched(execution=f"x1-{place}", group="g1", task="a", index=place, version=0, seed=1)
        await teller.say("scheduler", "execution", entry.execution, "dispatched", event=entry)
    pair = tuple(Outcome(execution=f"x1-{place}", standing="valid", reward=float(place)) for place in range(2))
    ready = GroupReady(group="g1", index=1, version=0, outcomes=pair)
    await teller.say("admission", "group", "g1", event=ready)
    late = RewardAssigned(execution="x1-2", group="g1", reward=1.0)
    await teller.say("evaluator", "execution", "x1-2", event=late)


async def archive(folder: Path) -> Path:
    """The run on a server of its own, exported; the server is gone afterwards."""
    folder.mkdir()
    server = NatsServer(folder / "nats").start()
    path = folder.parent / "r.jsonl.zst"
    try:
        bus = await Bus.connect(server.url, "r", "control", "control-1", folder, create=True)
        await write_run(bus)
        await bus.close()
        await export_run(server.url, "r", folder, path)
    finally:
        server.stop()
    return path
