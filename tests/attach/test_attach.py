"""What an attached consumer is promised: order, a position that lives with its state, one line for what is wrong."""

import asyncio
import json
import re
import shutil
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

from bus import users
from bus.archive_log import open_archive
from bus.log import Stored
from schemas.calls import ModelCallRecorded
from services import attached
from services.attach_host import AttachError, place_for
from services.attached import Worker
from services.cli.app import app
from services.consumer import ConsumerError, Position, filter_of, load, streams_of
from services.ending import Ending
from tests.e2e.living import Command

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/data/runs"
EXAMPLES = ROOT / "examples/consumers"
OTHERS = Path(__file__).with_name("others.py")


async def fed(consumer: Any, position: Position, archive: str = "small", *, until: int = 10**9) -> None:
    """Hand a consumer a recorded run from its position on, as its process does."""

    async def chunk(log: Any, after: int) -> AsyncGenerator[list[Stored], None]:
        yield [stored async for stored in log.read(after) if stored.sequence <= until]

    with open_archive(RECORDED / f"{archive}.jsonl.zst") as opened:
        logs = {"EV": opened.ev, "CALL": opened.calls}
        worker = Worker(consumer, position, Ending())
        await worker.run(
            {stream: chunk(logs[stream], position.sequences.setdefault(stream, 0)) for stream in streams_of(consumer)}
        )


def example(name: str, **options: str) -> Any:
    return load(f"{EXAMPLES}/{name}", options)


async def test_the_counter_counts_each_call_once_over_two_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_archive(RECORDED / "small.jsonl.zst") as archive:
        calls = [event async for stored in archive.calls.read() if stored.commit for event in stored.commit.events]
    file = tmp_path / "tokens.json"
    for until in (100, 10**9, 10**9):
        position = Position.load(file, "tokens")
        await fed(example("token_counter.py:TokenCounter", each="1000"), position, until=until)
        position.close()
    assert capsys.readouterr().out.splitlines() == [told(calls[:100]), told(calls), told(calls)]
    assert json.loads(file.read_text())["position"] == {"CALL": len(calls)}


def told(calls: list[Any]) -> str:
    assert all(isinstance(call, ModelCallRecorded) for call in calls)
    cached = sum(call.cached_tokens for call in calls)
    contexts = sum(call.prefix_tokens + len(call.input_ids) // 4 for call in calls)
    sampled = sum(len(call.output_ids) // 4 for call in calls)
    return f"calls={len(calls)} prefill={contexts - cached} cached={cached} sampled={sampled}"


async def test_the_export_that_dies_between_file_and_position_has_each_event_once(tmp_path: Path) -> None:
    class Dies(Position):
        def save(self) -> None:
            raise OSError("killed here")

    folder, file = str(tmp_path / "events"), tmp_path / "parquet.json"
    kept = Position.load(file, "parquet")
    await fed(example("parquet_export.py:ParquetExport", folder=folder), kept, until=200)
    dying = Dies(None, "parquet", dict(kept.sequences))
    with pytest.raises(OSError, match="killed here"):
        await fed(example("parquet_export.py:ParquetExport", folder=folder), dying, until=300)
    await fed(example("parquet_export.py:ParquetExport", folder=folder), kept)
    kept.close()
    with open_archive(RECORDED / "small.jsonl.zst") as archive:
        wanted = [
            (stored.sequence, i)
            async for stored in archive.ev.read()
            for i in range(len(stored.commit.events if stored.commit else ()))
        ]
    table = ds.dataset(folder).to_table().sort_by([("sequence", "ascending"), ("index", "ascending")])
    assert list(zip(table["sequence"].to_pylist(), table["index"].to_pylist(), strict=True)) == wanted


class HalfWay:
    """Keeps what it was given; its patience ends within a commit."""

    def __init__(self, breaks_at: str) -> None:
        self.seen = list[str]()
        self._breaks_at = breaks_at

    def handle(self, _: Any, at: Any) -> None:
        self.seen.append(at.id)
        if at.id == self._breaks_at:
            raise RuntimeError(at.id)

    def save(self) -> list[str]:
        return self.seen


class HalfWayAsync(HalfWay):
    async def handle(self, event: Any, at: Any) -> None:  # type: ignore[override]
        super().handle(event, at)


@pytest.mark.parametrize("kind", [HalfWay, HalfWayAsync])
async def test_who_breaks_within_a_commit_keeps_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[HalfWay]
) -> None:
    with open_archive(RECORDED / "small.jsonl.zst") as archive:
        commits = {stored.sequence: stored.commit.events async for stored in archive.ev.read() if stored.commit}
    broken = next(sequence for sequence, events in commits.items() if sequence > 20 and len(events) > 1)
    position = Position.load(tmp_path / "half.json", "half")
    await fed(kind(""), position, until=10)
    kept = (tmp_path / "half.json").read_text()
    # no time passes while it is at work, and whoever saves in silence waits for its turn
    monkeypatch.setattr(attached, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(attached, "SAVE_SECONDS", 1e-9)
    with pytest.raises(RuntimeError):
        await fed(kind(f"{broken}.1"), position)
    await asyncio.get_running_loop().shutdown_default_executor()  # who was saving then has done so
    position.close()
    assert (tmp_path / "half.json").read_text() == kept


async def test_who_is_stubborn_is_ended_by_a_second_signal(tmp_path: Path) -> None:
    stubborn = await Command.start("attach", f"{OTHERS}:Stubborn", RECORDED / "small.jsonl.zst", "--runs", tmp_path)
    await stubborn.line(lambda line: line == "begun")
    stubborn.stop(signal.SIGTERM)
    stubborn.stop(signal.SIGINT)
    assert (await stubborn.end())[0] != 0


async def test_the_alert_speaks_when_reward_collapses(tmp_path: Path) -> None:
    """On a run whose tests break after step 3."""
    file = tmp_path / "alerts"
    alert = example("reward_alert.py:RewardAlert", file=str(file))
    await fed(alert, Position(None, "alert"), "broken-tests")
    said = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(said) == 1
    assert re.fullmatch(r"run broken-tests: reward 0\.\d\d at group g\d+, 0\.\d\d before", said[0]["text"])
    assert said[0]["event"].partition(".")[2] == "0"


def test_a_consumer_of_one_services_events_reads_that_services_subjects_only() -> None:
    counter, alert, everything = (
        example("token_counter.py:TokenCounter"),
        example("reward_alert.py:RewardAlert"),
        load(f"{OTHERS}:Crasher", {}),
    )
    assert (streams_of(counter), filter_of(counter, "r", "CALL")) == (("CALL",), "")
    assert (streams_of(alert), filter_of(alert, "r", "EV")) == (("EV",), "ev.r.admission.>")
    assert (streams_of(everything), filter_of(everything, "r", "EV")) == (("EV",), "")


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("nothing", {}, "consumer 'nothing': write module:Class or file.py:Class"),
        (f"{OTHERS}:Nobody", {}, "others.py has no Nobody"),
        ("no_such_module:X", {}, "consumer no_such_module: cannot be imported (No module named"),
        ("elsewhere.py:X", {}, "consumer elsewhere.py: cannot be imported ([Errno 2]"),
        (f"{OTHERS}:Crasher", {"x": "1"}, "cannot be made (Crasher.__init__() got an unexpected"),
        (f"{OTHERS}:FORGED", {}, "cannot be made ('bytes' object is not callable)"),
        (f"{OTHERS}:At", dict.fromkeys(("run", "stream", "sequence", "index", "subject", "commit"), ""), "no method"),
        (f"{OTHERS}:Strange", {}, "reads names <class 'pathlib.Path'>, which is no event"),
    ],
)
def test_what_is_no_consumer_is_refused_in_one_line(name: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(ConsumerError) as refused:
        load(name, options)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("m:C", "elsewhere"), 1, "elsewhere: neither an archive nor a run in runs; `gyre runs` lists them"),
        (("m:C",), 2, "attach: name a consumer and a run, or with --exec a run alone"),
        (("m:C", "small", "--from", "yesterday"), 2, "--from yesterday: start, now or a sequence from 1"),
        (("m:C", "small", "--durable", "../x"), 2, "--durable ../x: a name of A-Z a-z 0-9 _ -"),
        (("m:C", "small", "--option", "x"), 2, "--option x: write NAME=VALUE"),
        (("--exec", "no-such-program x", "small"), 1, "--exec no-such-program: no such program; install it"),
        (("--exec", "true", "a.jsonl.zst"), 1, "a.jsonl.zst: a command reads from a server; `gyre log import a.json"),
    ],
)
def test_what_cannot_be_attached_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(RECORDED / "small.jsonl.zst", tmp_path / "a.jsonl.zst")
    done = CliRunner().invoke(app, ["attach", *words])
    assert (done.exit_code, done.stderr.startswith(why), len(done.stderr.splitlines())) == (code, True, 1), done.stderr


def test_a_name_is_held_by_one_consumer_at_a_time_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    held = Position.load(file, "m:C")
    held.sequences["EV"] = 3
    held.save()
    with pytest.raises(ConsumerError, match=r"^durable mine: another consumer has this name now"):
        Position.load(file, "m:C")
    held.close()
    again = Position.load(file, "m:C")
    assert again.sequences == {"EV": 3}
    again.close()
    file.write_text("{")
    with pytest.raises(ConsumerError, match=r"^durable mine: .* is damaged .* delete it to begin anew"):
        Position.load(file, "m:C")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConsumerError, match=r"^durable mine: its position cannot be kept in .*taken \(File exists\); "):
        Position.load(tmp_path / "taken/mine.json", "m:C")


def test_there_are_so_many_places_and_a_freed_one_is_taken_again(tmp_path: Path) -> None:
    places = [place_for(tmp_path) for _ in users.ATTACHED]
    assert tuple(place.__enter__() for place in places) == users.ATTACHED
    with pytest.raises(AttachError, match="16 consumers are attached, which is all there may be"), place_for(tmp_path):
        pass
    places[4].__exit__(None, None, None)
    with place_for(tmp_path) as user:
        assert user == users.ATTACHED[4]
    for place in (*places[:4], *places[5:]):
        place.__exit__(None, None, None)
