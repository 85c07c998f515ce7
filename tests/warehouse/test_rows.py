"""Rows of a message: one an event, keyed, without packed arrays; whatever comes has a row."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from gyre.warehouse.rows import EMPTY, MALFORMED, lines
from schemas.base import Model, pack_floats
from schemas.envelope import Event
from schemas.runs import EvaluationScored, TimerFired
from schemas.upcast import event_models, load
from tests.warehouse.told import call, committed

GOLDEN = Path(__file__).parents[1] / "schemas" / "golden"


def rows(*events: Event) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in lines("r", "EV", 7, "ev.r.s", committed("r", 2, *events))]


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
    (line,) = lines("r", "EV", 9, 'ev.r."odd', None, "body: not JSON")
    row = orjson.loads(line)
    assert (row["type"], row["sequence"], row["of"]) == (MALFORMED, 9, 1)
    assert row["body"] == {"subject": 'ev.r."odd', "reason": "body: not JSON"}


def test_a_commit_that_says_nothing_has_a_row_so_that_no_sequence_is_missing() -> None:
    (row,) = rows()
    assert (row["type"], row["of"], row["body"]) == (EMPTY, 1, {})
