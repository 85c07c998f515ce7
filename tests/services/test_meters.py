"""The numbers of /metrics: of one process, from what it says; of a run, from its log."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bus.archive_log import open_archive
from bus.errors import Conflict
from bus.log import Expect
from bus.memory import MemoryBroker, MemoryBus
from gyre.config import Config
from schemas.calls import ModelCallRecorded
from schemas.envelope import COMMIT
from schemas.runs import RunStarted
from services.lag import FollowedBus, Position
from services.meters import Meters
from services.place import Place
from services.run_meters import RunMeters

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/schemas/golden"
ARCHIVE = ROOT / "tests/data/runs/small.jsonl.zst"


def place(folder: Path, service: str = "proxy") -> Place:
    return Place(service, f"{service}-1", "r", folder, "memory", Config())


def numbers(meters: Meters) -> dict[str, float]:
    """`name{label,...}` without the labels that every number has -> value."""
    found = {}
    for family in text_string_to_metric_families(meters.exposition().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("run"), labels.pop("instance")) == ("r", f"{labels.pop('service')}-1")
            found[sample.name + (f"{{{','.join(labels.values())}}}" if labels else "")] = sample.value
    return found


async def test_what_a_process_says_is_counted_where_it_is_said(tmp_path: Path) -> None:
    meters = Meters(place(tmp_path))
    memory = await MemoryBus.connect(MemoryBroker(), "r", "proxy", "proxy-1", tmp_path, create=True)
    bus = FollowedBus(memory, meters)
    commit = COMMIT.validate_json((GOLDEN / "ModelCallRecorded.v1.json").read_bytes()).model_copy(update={"run": "r"})
    call = commit.events[0]
    assert isinstance(call, ModelCallRecorded)
    await bus.calls.append("call.r.x", commit)
    with pytest.raises(Conflict):
        await bus.calls.append("call.r.x", commit.model_copy(update={"commit": "other"}), Expect("call.r.x", 9))
    found = numbers(meters)
    assert found["gyre_events_total{ModelCallRecorded}"] == 1
    assert found[f"gyre_calls_total{{{call.finish},{call.kind}}}"] == 1
    assert found["gyre_tokens_total{sampled}"] == len(call.output_ids) // 4
    assert found["gyre_tokens_total{cached}"] == call.cached_tokens
    assert found["gyre_call_seconds_sum{total}"] == pytest.approx(call.total_seconds)
    assert found["gyre_appends_refused_total{Conflict}"] == 1
    assert found["gyre_append_seconds_count"] == 1


async def test_each_log_that_is_read_has_a_lag_of_its_own(tmp_path: Path) -> None:
    meters = Meters(place(tmp_path))
    memory = await MemoryBus.connect(MemoryBroker(), "r", "proxy", "proxy-1", tmp_path, create=True)
    commit = COMMIT.validate_json((GOLDEN / "ModelCallRecorded.v1.json").read_bytes()).model_copy(update={"run": "r"})
    await memory.calls.append("call.r.x", commit)
    await memory.calls.append("call.r.y", commit.model_copy(update={"commit": "other"}))
    bus = FollowedBus(memory, meters)
    assert set(await bus.positions()) == {"EV"}
    reading = bus.calls.read(0)
    await anext(reading)
    positions = await bus.positions()
    assert positions["CALL"] == Position(0, 2)
    meters.standing(False, positions)
    found = numbers(meters)
    assert (found["gyre_replay_lag{CALL}"], found["gyre_sequence{EV}"], found["gyre_ready"]) == (2, 0, 0)
    await reading.aclose()


async def test_the_numbers_of_a_run_are_those_of_its_log(tmp_path: Path) -> None:
    """A recorded run: at its end everything is settled, and the latest step is the fourth."""
    meters = Meters(place(tmp_path, "scheduler"))
    with open_archive(ARCHIVE) as archive:
        commits = [stored.commit async for stored in archive.ev.read() if stored.commit]
    begin = commits[0].events[0]
    assert isinstance(begin, RunStarted)
    config = Config.recorded(begin.config)
    whole = RunMeters(meters, config.cells)
    halfway = None
    for commit in commits:
        for event in commit.events:
            whole.fold.take(event, commit.time)
            assert 0 <= whole.fold.terminated <= whole.fold.launched <= whole.fold.dispatched
            assert all(length >= 0 for length in whole.fold.queues.values())
        if halfway is None and whole.fold.launched == 9:
            halfway = (whole.fold.dispatched - whole.fold.terminated, whole.fold.capacity)
    whole.show()
    found = numbers(meters)
    executions = config.run.steps * config.schedule.groups * config.schedule.executions
    assert found["gyre_run_dispatched"] == found["gyre_run_terminated"] == found["gyre_run_launched"] == executions
    assert (found["gyre_run_waterlevel"], found["gyre_run_finished"], found["gyre_run_step"]) == (0, 1, 4)
    assert {key: value for key, value in found.items() if "queue_length" in key} == {
        "gyre_queue_length{rollout}": 0, "gyre_queue_length{eval}": 0, "gyre_queue_length{step}": 0,
    }  # fmt: skip
    assert sum(found[f"gyre_run_cells{{{role}}}"] for role in ("rollout", "train", "moving", "lost")) == 3
    assert found["gyre_run_published_version"] == 4
    assert 0 < found["gyre_run_reward_mean"] <= 1
    assert 0 <= found["gyre_run_staleness_mean"] <= 2
    assert found["gyre_run_step_seconds"] > 0
    assert halfway is not None
    assert halfway[0] > 0
    assert halfway[1] % config.cells.concurrency == 0


def test_every_number_is_listed_in_the_documentation(tmp_path: Path) -> None:
    meters = Meters(place(tmp_path))
    RunMeters(meters, Config().cells)
    page = (ROOT / "docs/metrics.md").read_text()
    names = {family.name for family in meters.registry.collect() if family.name.startswith("gyre_")}
    assert {name for name in names if f"`{name}`" not in page and f"`{name}_total`" not in page} == set()
