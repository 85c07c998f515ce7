"""Traces over OTLP: a collector in this process takes what a recorded run gives, each span once."""

import asyncio
import json
import re
import shutil
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bus.archive_log import open_archive
from bus.memory import MemoryBroker, MemoryBus
from gyre.config import Config
from schemas.calls import ModelCallRecorded
from schemas.dispatch import ExecutionTerminated
from schemas.training import MicroStepCompleted, OptimizerStepped
from services import traces
from services.consumer import At
from services.place import Place
from services.spans import KINDS, Spans
from services.supervisor import BESIDE, services_of
from services.traces import Traces
from tests.attach.conftest import Collector
from tests.e2e.living import Command

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests/data/runs/small.jsonl.zst"


@cache
def recorded() -> list[tuple[Any, At]]:
    """Every event of the recorded run that traces are made of, CALL first: the two logs come in any order."""
    return asyncio.run(_recorded())


async def _recorded() -> list[tuple[Any, At]]:
    found = []
    with open_archive(ARCHIVE) as archive:
        for stream, log in (("CALL", archive.calls), ("EV", archive.ev)):
            async for stored in log.read():
                if stored.commit:
                    for index, event in enumerate(stored.commit.events):
                        if type(event) in KINDS:
                            at = At(archive.run, stream, stored.sequence, index, stored.subject, stored.commit)  # type: ignore[arg-type]
                            found.append((event, at))
    return found


def test_an_execution_holds_its_calls_and_its_scoring_and_a_step_its_micro_steps(collector: Collector) -> None:
    events = recorded()
    consumer = Traces(collector.url)
    for event, at in events:
        consumer.handle(event, at)
    assert consumer.save() == {"launched": {}, "terminated": {}, "claims": {}, "batches": {}, "reductions": {}}
    consumer.close()

    counts = {kind: sum(type(event) is kind for event, _ in events) for kind in KINDS}
    roots = {span.span_id: span for span in (*collector.named("execution"), *collector.named("step"))}
    assert len(collector.named("execution")) == counts[ExecutionTerminated]
    assert len(collector.named("step")) == counts[OptimizerStepped]
    assert len(collector.named("call")) == counts[ModelCallRecorded]
    assert len(collector.named("micro-step")) == counts[MicroStepCompleted]
    assert len({(span.trace_id, span.span_id) for span in collector.spans}) == len(collector.spans)
    for span in collector.spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span.parent_span_id and (parent := roots.get(span.parent_span_id)):
            assert parent.trace_id == span.trace_id
            assert said(parent)[key(parent)] == said(span)[key(parent)]
            assert parent.start_time_unix_nano <= span.end_time_unix_nano
    alone = {said(span)["gyre.execution"] for span in collector.spans if span.parent_span_id not in (b"", *roots)}
    assert all(re.fullmatch(r"e\d+-\d+", each) for each in alone)  # held-out episodes are nobody's executions
    ends = {said(span)["gyre.execution"]: span.end_time_unix_nano for span in collector.named("execution")}
    assert {said(each)["gyre.execution"]: each.start_time_unix_nano for each in collector.named("scoring")} == ends


def key(root: Any) -> str:
    return "gyre.execution" if root.name == "execution" else "gyre.step"


def said(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_a_collector_that_is_away_is_waited_for_and_nothing_is_sent_twice(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traces, "AGAIN_SECONDS", (0.01, 0.01))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.refusals = 1
    consumer = Traces()
    for event, at in recorded()[:20]:
        consumer.handle(event, at)
    consumer.save()
    consumer.close()
    assert len(collector.named("call")) == len(collector.spans) == 20
    assert "trying again" in caplog.text


def test_a_call_that_says_to_have_taken_longer_than_time_is_a_span_as_well() -> None:
    call, at = next((event, at) for event, at in recorded() if isinstance(event, ModelCallRecorded))
    endless = call.model_copy(update={"total_seconds": 1e300})
    (span,) = Spans("small").take(endless, at.commit.time, at.sequence)
    assert (span.start, span.end) == (0, at.commit.time)


def test_what_had_begun_goes_on_after_a_restart_with_the_same_ids(collector: Collector) -> None:
    events = recorded()
    whole = Spans("small")
    wanted = [span for event, at in events for span in whole.take(event, at.commit.time, at.sequence)]
    first = Traces(collector.url)
    for event, at in events[: len(events) // 2]:
        first.handle(event, at)
    kept = first.save()
    assert kept["launched"]
    second = Traces(collector.url)
    second.load(kept)
    for event, at in events[len(events) // 2 :]:
        second.handle(event, at)
    second.save()
    found = {int.from_bytes(span.span_id): span.start_time_unix_nano for span in collector.spans}
    assert found == {span.id: min(span.start, span.end) for span in wanted}


async def test_who_is_ended_while_the_collector_is_away_ends_and_who_goes_on_sends_all_of_it(
    collector: Collector, tmp_path: Path
) -> None:
    archive = shutil.copy(ARCHIVE, tmp_path / "a.jsonl.zst")
    words = (
        "attach",
        "services.traces:Traces",
        archive,
        "--durable",
        "traces",
        "--option",
        f"endpoint={collector.url}",
    )
    collector.refusals = 10**9
    first = await Command.start(*words)
    await asyncio.to_thread(collector.refused.wait)
    first.stop(signal.SIGTERM)
    assert (await first.end())[0] == 0, first.lines
    assert any("spans or more were not sent; whoever goes on sends them" in line for line in first.lines)
    collector.refusals = 0
    second = await Command.start(*words)
    assert (await second.end())[0] == 0, second.lines
    whole = Spans("small")
    wanted = {span.id for event, at in recorded() for span in whole.take(event, at.commit.time, at.sequence)}
    assert {int.from_bytes(span.span_id) for span in collector.spans} == wanted


async def test_the_service_sends_what_a_run_says_and_goes_on_where_it_was(collector: Collector, tmp_path: Path) -> None:
    bus = await MemoryBus.connect(MemoryBroker(), "small", "traces", "traces-1", tmp_path, create=True)
    with open_archive(ARCHIVE) as archive:
        commits = [(stored.subject, stored.commit) async for stored in archive.ev.read() if stored.commit]
    config = Config.load(None, [f"telemetry.otlp_endpoint={collector.url}"])
    place = Place("traces", "traces-1", "small", tmp_path, "memory", config)
    wanted = sum(type(event) is ExecutionTerminated for _, commit in commits for event in commit.events)
    for part in (commits[:400], commits[400:]):
        serving = asyncio.ensure_future(traces.serve(place, bus))
        await asyncio.sleep(0)  # it has begun
        for subject, commit in part:
            await bus.ev.append(subject, commit)
        serving.cancel()  # as a run does at its end: what was said by then is sent
        await asyncio.gather(serving, return_exceptions=True)
        kept = json.loads((tmp_path / "snapshots/traces.json").read_text())
        assert kept["position"] == {"EV": await bus.ev.head(), "CALL": 0}
    assert len(collector.named("execution")) == wanted


def test_a_run_has_the_process_if_a_collector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert ("traces", None) not in services_of(Config())
    named = Config.load(None, ["telemetry.otlp_endpoint=http://localhost:4318"])
    assert ("traces", None) in services_of(named)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    assert ("traces", None) in services_of(Config())
    assert "traces" in BESIDE
