"""Bytes to commits: old versions are lifted, broken chains are named, junk has a reason of one line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import upcast
from schemas.envelope import COMMIT, Commit, Producer
from schemas.runs import TimerFired, TimerSet
from schemas.upcast import BrokenChain, Malformed, check_chain, load

COMMIT_SAID = Commit(
    run="r",
    producer=Producer(service="scheduler", instance="s1"),
    commit="c1",
    causation=0,
    as_of=0,
    correlation="r",
    time=1,
    events=(TimerSet(timer="a", seconds=1.0), TimerFired(timer="a")),
)
BODY = COMMIT.dump_json(COMMIT_SAID)


def from_milliseconds(payload: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in payload.items() if key != "milliseconds"}
    return {**rest, "seconds": payload["milliseconds"] / 1000}


def from_name(payload: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in payload.items() if key != "name"}
    return {**rest, "timer": payload["name"]}


OLD = b'{"type":"TimerSet","v":-1,"name":"a","milliseconds":1000}'
NEW = b'{"type":"TimerSet","v":1,"timer":"a","seconds":1.0}'


@pytest.fixture
def two_old_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upcast, "UPCASTERS", {("TimerSet", -1): from_name, ("TimerSet", 0): from_milliseconds})


def test_a_commit_of_today_loads_as_it_was_said() -> None:
    assert load(BODY) == COMMIT_SAID


@pytest.mark.usefixtures("two_old_versions")
def test_an_old_event_is_lifted_through_every_version_between() -> None:
    assert BODY.count(NEW) == 1
    assert load(BODY.replace(NEW, OLD)) == COMMIT_SAID


@pytest.mark.usefixtures("two_old_versions")
def test_old_and_new_events_stand_in_one_commit() -> None:
    body = BODY.replace(NEW, OLD + b"," + NEW)
    assert load(body).events == (COMMIT_SAID.events[0], *COMMIT_SAID.events)


@pytest.mark.usefixtures("two_old_versions")
@pytest.mark.parametrize("broken", [b'"name":7', b'"nom":"a"'])
def test_an_old_event_that_its_upcaster_cannot_lift_is_malformed(broken: bytes) -> None:
    with pytest.raises(Malformed):
        load(BODY.replace(NEW, OLD.replace(b'"name":"a"', broken)))


def test_a_version_from_the_future_is_malformed() -> None:
    with pytest.raises(Malformed, match=r"events\.0\.TimerSet\.v"):
        load(BODY.replace(b'"TimerSet","v":1', b'"TimerSet","v":2'))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (BODY[:-3], "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b"[]", "object"),
        (BODY.replace(b'"time":1', b'"time":-1'), "^time: "),
        (BODY.replace(b"TimerFired", b"TimerMelted"), "TimerMelted"),
        (BODY.partition(b'"events":')[0] + b'"events":[]}', "^events: .* at least 1 item"),
        (BODY.replace(b'"events":[', b'"events":[null,'), r"events\.0"),
        (BODY.replace(b'"events":[', b'"events":[{"type":["TimerSet"],"v":1},'), r"events\.0"),
    ],
)
def test_what_is_no_commit_has_a_reason_of_one_line(body: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason) as caught:
        load(body)
    assert "\n" not in caught.value.reason
    assert len(caught.value.reason) <= 500


@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        load(body)


def nothing(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


def test_a_chain_with_every_step_stands() -> None:
    check_chain({("A", 1): nothing, ("A", 2): nothing}, {"A": 3, "B": 1})


@pytest.mark.parametrize(
    ("upcasters", "complaint"),
    [
        ({("A", 1): nothing}, "no upcaster from v2 to v3, current is v3"),
        ({("A", 2): nothing}, "no upcaster from v1 to v2, current is v3"),
        ({("A", 1): nothing, ("A", 2): nothing, ("A", 3): nothing}, "past the current version v3"),
        ({("A", 1): nothing, ("A", 2): nothing, ("Z", 1): nothing}, "no event of this type"),
    ],
)
def test_a_broken_chain_is_named(upcasters: dict[tuple[str, int], upcast.Upcaster], complaint: str) -> None:
    with pytest.raises(BrokenChain, match=complaint):
        check_chain(upcasters, {"A": 3, "B": 1})
