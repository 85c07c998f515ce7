"""gyre tree and the states of gyre replay, from a log in memory and from an archive that was carried elsewhere."""

import asyncio
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bus import subjects
from bus.archive import export_run
from bus.jetstream import Bus
from bus.log import BusPort
from bus.memory import MemoryBroker, MemoryBus
from bus.server import NatsServer
from gyre.config import Config
from gyre.core import tree as trees
from gyre.core.leaves import summaries
from gyre.models.load import NANO
from gyre.proxy.chat_model import ChatModel
from schemas.base import pack_floats, pack_ints
from schemas.calls import ModelCallRecorded, SamplingRecord, VersionSpan
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.rewards import RewardAssigned, TreeBuilt
from schemas.runs import RunStarted
from schemas.training import TrajectoriesAdmitted, Trajectory
from services.cli import app
from services.place import Place
from services.replay import state_at
from services.source import Source
from services.tree_view import ExecutionNotFound, draw, tree_of

WORDS = ChatModel.load(NANO)


def call(index: int, parent: int | None, prefix: int, told: str, said: str, **more: Any) -> ModelCallRecorded:
    output = WORDS.encode(said)
    fields: dict[str, Any] = {
        "execution": "x0-0",
        "call": f"c{index}",
        "index": index,
        "thread": "main",
        "kind": "turn",
        "parent": None if parent is None else f"c{parent}",
        "prefix_tokens": prefix,
        "prefix_messages": 0,
        "input_ids": pack_ints(WORDS.encode(told)),
        "output_ids": pack_ints(output),
        "logprobs": pack_floats([-0.5] * len(output)),
        "versions": (VersionSpan(version=0, tokens=len(output)),),
        "finish": "stop",
        "sampling": SamplingRecord(temperature=1.0, top_p=1.0, top_k=0, max_tokens=9, seed=1),
        "messages": "[]",
        "reply": "[]",
        "system_digest": "0" * 64,
        "cells": (0,),
        "cached_tokens": 0,
        "queue_seconds": 0.0,
        "engine_seconds": 0.0,
        "total_seconds": 0.0,
        "delivered": True,
    }
    return ModelCallRecorded(**(fields | more))


ROOT = call(0, None, 0, "Write the word.", "I will.")
NEXT = call(1, 0, len(WORDS.encode("Write the word.") + WORDS.encode("I will.")), " Go on.", "[done]")
FORK = call(2, 0, len(WORDS.encode("Write the word.")), " Again.", "I did.")
RECORDS = (ROOT, NEXT, FORK)
TREE = trees.fold("x0-0", RECORDS)


async def write_run(bus: BusPort, folder: Path) -> None:
    """A run with one execution: three calls, a tree, a reward, and one leaf admitted."""
    config = Config()

    async def say(service: str, entity: Iterable[str], event: Event) -> None:
        place = Place(service, f"{service}-1", "r", folder, "", config)
        await bus.ev.append(place.subject(*entity), place.commit([event], as_of=0, correlation="r"))

    weights = WeightsRef(digest="0" * 64, size=1, address="weights/0.safetensors")
    begin = RunStarted(
        config=config.table(),
        config_digest=config.digest(),
        seed=0,
        code_version="0",
        weights=weights,
        tasks=("a",),
        heldout=("b",),
    )
    await say("control", ("run",), begin)
    proxy = Place("proxy", "proxy-1", "r", folder, "", config)
    for record in RECORDS:
        commit = proxy.commit([record], as_of=0, correlation="r")
        await bus.calls.append(subjects.call("r", record.execution), commit)
    about = ("execution", "x0-0")
    leaves = summaries(TREE)
    built = TreeBuilt(execution="x0-0", digest=trees.digest(TREE), nodes=3, leaves=leaves, body=None)
    await say("builder", about, built)
    await say("evaluator", about, RewardAssigned(execution="x0-0", group="g0", reward=0.25))
    marks = trees.sampled(TREE, "c1")
    kept = Trajectory(
        leaf="c1",
        role="main",
        ids=trees.path_ids(TREE, "c1"),
        target=marks,
        logprobs=pack_floats([0.0] * len(marks)),
        targets=marks.count(1),
    )
    admitted = TrajectoriesAdmitted(
        execution="x0-0", group="g0", version=0, advantage=1.5, targets=kept.targets, seed=1, trajectories=(kept,)
    )
    await say("admission", about, admitted)


@pytest.fixture
async def source(tmp_path: Path) -> Source:
    bus = await MemoryBus.connect(MemoryBroker(), "r", "reader", "reader-1", tmp_path, create=True)
    await write_run(bus, tmp_path)
    return Source("r", bus.ev, bus.calls, bus.blobs, None)


async def test_a_tree_is_what_its_records_say_in_words(source: Source) -> None:
    found = await tree_of(source, "x0-0")
    assert found["digest"] == trees.digest(TREE)
    assert found["as_recorded"] is True
    assert [(node["call"], node["parent"], node["output"]) for node in found["nodes"]] == [
        ("c0", None, "I will."),
        ("c1", "c0", "[done]"),
        ("c2", "c0", "I did."),
    ]
    assert found["roots"] == ["c0"]
    assert [(leaf["leaf"], leaf["role"]) for leaf in found["leaves"]] == [("c1", "main"), ("c2", "main")]
    assert found["reward"] == 0.25
    assert [each["leaf"] for each in found["admitted"]["trajectories"]] == ["c1"]
    json.dumps(found)


async def test_a_drawing_shows_text_with_brackets_as_it_is_and_what_was_trained_on(source: Source) -> None:
    page = io.StringIO()
    draw(await tree_of(source, "x0-0"), Console(file=page, width=200))
    text = page.getvalue()
    assert "[done]" in text
    assert text.count("not trained on") == 1
    assert f"trained on, {trees.sampled(TREE, 'c1').count(1)} targets" in text


@pytest.mark.parametrize("execution", ["x9-9", "x.*", ""])
async def test_an_execution_that_never_was_is_said_to_be_unknown(source: Source, execution: str) -> None:
    with pytest.raises(ExecutionNotFound):
        await tree_of(source, execution)


async def test_trees_can_be_looked_at_as_of_a_sequence(source: Source) -> None:
    found = await state_at(source, "trees", None)
    assert found["x0-0"]["digest"] == trees.digest(TREE)
    assert [leaf["leaf"] for leaf in found["x0-0"]["leaves"]] == ["c1", "c2"]
    assert await state_at(source, "trees", 1) == {}


async def test_batch_and_cells_are_parts_of_what_deciders_know(source: Source) -> None:
    assert await state_at(source, "batch", None) == await state_at(source, "packer", None)
    assert await state_at(source, "cells", None) == (await state_at(source, "scheduler", None))["cells"]


def archived(folder: Path) -> Path:
    """The same run on a real server, as an archive; the server is gone afterwards."""
    folder.mkdir()
    server = NatsServer(folder / "nats").start()
    path = folder.parent / "r.jsonl.zst"

    async def write() -> None:
        bus = await Bus.connect(server.url, "r", "control", "control-1", folder, create=True)
        await write_run(bus, folder)
        await bus.close()
        await export_run(server.url, "r", folder, path)

    try:
        asyncio.run(write())
    finally:
        server.stop()
    return path


def test_an_archive_is_read_as_it_is_and_replayed_once_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archived(tmp_path / "r")
    monkeypatch.chdir(tmp_path)

    def say(*arguments: str) -> Any:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    before = say("tree", str(path), "x0-0", "--json")
    assert before["digest"] == trees.digest(TREE)
    assert not (tmp_path / "runs").exists()
    assert CliRunner().invoke(app, ["log", "import", str(path)]).exit_code == 0
    assert say("tree", "r", "x0-0", "--json") == before
    for state in ("progress", "trees", "batch", "cells"):
        assert say("replay", "r", "--state", state) == say("replay", str(path), "--state", state)
    again = CliRunner().invoke(app, ["log", "import", str(path)])
    assert again.exit_code == 1
    assert "exists already" in again.stderr
