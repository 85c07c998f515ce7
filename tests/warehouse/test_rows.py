"""Rows of a message: one an event, keyed, without packed arrays; whatever comes has a row."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from gyre.warehouse.rows import MALFORMED, lines
from gyre.warehouse.tables import COLUMNS
from schemas.base import Model, pack_floats
from schemas.envelope import COMMIT, Event
from schemas.runs import EvaluationScored, TimerFired
from schemas.upcast import event_models, load
from tests.warehouse.told import call, committed

GOLDEN = Path(__file__).parents[1] / "schemas" / "golden"


def rows(*events: Event) -> list[dict[str, Any]]:
    return parsed(lines("r", "EV", 7, "ev.r.control.s", COMMIT.dump_json(committed("r", 2, *events))))


def parsed(found: list[bytes]) -> list[dict[str, Any]]:
    """Rows as what they say: column -> value, and the event's fields as `body`."""
    told = []
    for line in found:
        values = [value.replace(b"\\\\", b"\\").decode() for value in line.split(b"\t")]
        row: dict[str, Any] = dict(zip(COLUMNS, values, strict=True))
        numbers = {name: int(row[name]) for name, kind in COLUMNS.items() if "Int" in kind}
        told.append({**row, **numbers, "body": orjson.loads(row["text"])})
    return told


def test_each_event_of_a_commit_is_a_row_with_its_place() -> None:
    found = rows(TimerFired(timer="t1"), TimerFired(timer="t2"))
    assert [(each["sequence"], each["index"], each["of"], each["type"], each["body"]) for each in found] == [
        (7, 0, 2, "TimerFired", {"timer": "t1"}),
        (7, 1, 2, "TimerFired", {"timer": "t2"}),
    ]
    assert found[0]["ns"] == 1_900_000_002_000_000_000
    assert found[0]["service"] == "control"


def test_a_call_counts_its_tokens_and_tools_and_leaves_its_arrays_in_the_log() -> None:
    body = rows(call("x", 1))[0]["body"]
    assert (body["input_tokens"], body["output_tokens"], body["tools"]) == (7, 4, ["write"])
    assert {"input_ids", "output_ids", "logprobs"} & set(body) == set()
    assert body["messages"] == "[]"


def test_scores_can_be_asked_about_and_no_score_is_null() -> None:
    scored = EvaluationScored(
        evaluation="e", version=1, scores=pack_floats([0.5, float("nan")]), mean=0.5, valid=1, seconds=1
    )
    assert rows(scored)[0]["body"]["scores"] == [0.5, None]


@pytest.mark.parametrize("kind", event_models())
def test_every_type_of_event_has_a_row_with_all_but_its_packed_arrays(kind: str) -> None:
    """Golden payloads hold every field, so that a packed array anywhere inside them would be seen."""
    (event,) = load(next(GOLDEN.glob(f"{kind}.v*.json")).read_bytes()).events
    row = rows(event)[0]
    told = unpacked(orjson.loads(event.model_dump_json(exclude={"type", "v"})), event)
    assert row["type"] == kind
    assert {key: row["body"][key] for key in told} == told
    assert set(row["body"]) - set(told) <= {"input_tokens", "output_tokens", "tools", "scores"}


def unpacked(told: Any, value: Any) -> Any:
    """The JSON of a value without what is bytes in it."""
    if isinstance(value, tuple):
        return [unpacked(part, each) for part, each in zip(told, value, strict=True)]
    if isinstance(value, Model):
        parts = {key: getattr(value, key) for key in told}
        return {key: unpacked(told[key], part) for key, part in parts.items() if not isinstance(part, bytes)}
    return told


def test_a_message_that_nobody_can_read_has_a_row_with_the_reason() -> None:
    (row,) = parsed(lines("r", "EV", 9, 'ev.r."odd\t\\', b"no JSON"))
    assert (row["type"], row["sequence"], row["of"]) == (MALFORMED, 9, 1)
    assert row["body"]["subject"] == 'ev.r."odd\t\\'
    assert "JSON" in row["body"]["reason"]


def test_what_has_the_shape_of_a_commit_and_is_none_has_a_row_with_the_reason() -> None:
    good = orjson.loads(COMMIT.dump_json(committed("r", 2, call("x", 1))))
    bad: list[dict[str, Any]] = [
        {**good, "producer": {"service": "a\tb", "instance": "c"}},
        {**good, "commit": 'c","x'},
        {**good, "time": "soon"},
        {**good, "causation": -1},
        {**good, "events": [{**good["events"][0], "more": 1}]},
        {**good, "events": [{**good["events"][0], "input_ids": None}]},
        {**good, "events": [{"type": "NeverHeardOf", "v": 1}]},
        {**good, "events": "none"},
        {key: value for key, value in good.items() if key != "as_of"},
    ]
    for each in bad:
        (row,) = parsed(lines("r", "EV", 9, "ev.r.control.x", orjson.dumps(each)))
        assert (row["type"], row["sequence"], row["of"]) == (MALFORMED, 9, 1), each


@pytest.mark.parametrize("stored", ["today's", "older"])
def test_a_commit_in_anothers_name_has_a_row_with_the_reason(stored: str) -> None:
    told = orjson.loads(COMMIT.dump_json(committed("r", 2, call("x", 1))))
    if stored == "older":
        del told["events"][0]["fallback"]
    body = orjson.dumps(told)
    for stream, subject in (("EV", "ev.r.packer.x"), ("EV", "ev.other.control.x"), ("CALL", "call.other.x")):
        (row,) = parsed(lines("r", stream, 9, subject, body))  # type: ignore[arg-type]
        assert (row["type"], row["body"]["subject"]) == (MALFORMED, subject)
    (row,) = parsed(lines("r", "EV", 9, "ev.r.control.x", body))
    assert row["type"] == "ModelCallRecorded"


def test_what_an_older_version_said_is_lifted() -> None:
    """A field with a default may be absent in what was stored before it came."""
    told = orjson.loads(COMMIT.dump_json(committed("r", 2, call("x", 1))))
    del told["events"][0]["fallback"]
    (row,) = parsed(lines("r", "CALL", 9, "call.r.x", orjson.dumps(told)))
    assert row["body"]["fallback"] == ""


def test_text_that_an_agent_wrote_stays_what_it_is() -> None:
    wrote = "a\tb\nc\\n \\\\ \" '\u2028 \x00"
    (row,) = rows(call("x", 1).model_copy(update={"messages": wrote}))
    assert row["body"]["messages"] == wrote


def test_a_commit_that_says_nothing_is_malformed() -> None:
    told = orjson.loads(COMMIT.dump_json(committed("r", 2, call("x", 1)))) | {"events": []}
    (row,) = parsed(lines("r", "EV", 9, "ev.r.control.x", orjson.dumps(told)))
    assert (row["type"], row["of"], row["body"]["reason"][:8]) == (MALFORMED, 1, "events: ")
