"""The numbers of /metrics: of one process, from what it says; of a run, from its log."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bus.archive_log import open_archive
from bus.errors import Conflict
from bus.log import Expect
from bus.memory import MemoryBroker, MemoryBus
from gyre.config import Config
from gyre.config_schedule import CellsSection
from schemas.calls import ModelCallRecorded
from schemas.envelope import COMMIT, Event
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import RunStarted
from schemas.training import MicroStepCompleted, MicroStepReissued
from services.lag import FollowedBus, Position
from services.meters import Meters
from services.place import Place
from services.run_meters import ROLES, RunFold, RunMeters

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
            halfway = (whole.fold.dispatched - whole.fold.terminated, whole.fold.cells.capacity)
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


def test_cells_and_capacity_are_those_that_the_scheduler_folds(tmp_path: Path) -> None:
    """One trainer for good, two cells that serve: a failed move is over, and the dead say nothing more."""
    meters = Meters(place(tmp_path, "scheduler"))
    section = CellsSection(count=3, trainers=1, concurrency=4)
    whole = RunMeters(meters, section)

    def shown(*events: Event) -> tuple[float, ...]:
        for event in events:
            whole.fold.take(event, 1)
        whole.show()
        found = numbers(meters)
        roles = (found[f"gyre_run_cells{{{role}}}"] for role in ROLES)
        return (found["gyre_run_capacity"], *roles)

    def registered(cell: int, instance: str) -> CellRegistered:
        return CellRegistered(cell=cell, instance=instance, url="u", capacity=4, version=0)

    of_two: Any = {"transition": "t1", "cell": 1, "instance": "b"}
    asked = RoleTransitionRequested(**of_two, to="train")
    failed = RoleTransitionFailed(**of_two, phase="stop", reason="busy")
    assert shown(*(registered(cell, name) for cell, name in enumerate("abcd"))) == (8, 3, 0, 0, 0)
    assert shown(asked) == (4, 2, 0, 1, 0)
    assert shown(failed) == (8, 3, 0, 0, 0)
    assert shown(CellLost(cell=1, instance="b", reason="silent"), registered(1, "e")) == (8, 3, 0, 0, 0)
    assert shown(RoleTransitionCompleted(**of_two, to="train", version=0)) == (8, 3, 0, 0, 0)
    assert shown(CellLost(cell=1, instance="b", reason="silent")) == (8, 3, 0, 0, 0)


def test_a_micro_step_that_is_reissued_waits_again() -> None:
    fold = RunFold(CellsSection())
    done = MicroStepCompleted.model_construct(step=1, micro_step=0)
    again = MicroStepReissued(step=1, micro_step=0, enqueued=1, reissue=1, reason="its cell was lost")
    for event, waiting in ((done, 0), (again, 1), (again, 1), (done, 0)):
        fold.take(event, 1)
        assert fold.queues["step"] == waiting


def test_every_number_is_listed_in_the_documentation(tmp_path: Path) -> None:
    meters = Meters(place(tmp_path))
    RunMeters(meters, Config().cells)
    page = (ROOT / "docs/metrics.md").read_text()
    names = {family.name for family in meters.registry.collect() if family.name.startswith("gyre_")}
    assert {name for name in names if f"`{name}`" not in page and f"`{name}_total`" not in page} == set()
