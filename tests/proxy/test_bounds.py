"""What one execution may ask of the proxy: the rules, without a clock or a socket."""

import tracemalloc

import orjson
import pytest

from gyre.proxy.bounds import BOUNDS, Bounds, Bucket, room, weight
from gyre.proxy.errors import NoRoom, TooLarge, TooMany
from services.proxy.gate import Gate

SLOW = Bounds(burst=3, per_second=0.5)


def test_a_bucket_gives_its_burst_and_then_one_each_interval() -> None:
    bucket = Bucket(3, at=100.0)
    for _ in range(3):
        assert bucket.wait(SLOW) == 0.0
        bucket = bucket.taken()
    assert bucket.wait(SLOW) == 2.0
    assert bucket.filled(SLOW, 101.0).wait(SLOW) == 1.0
    assert bucket.filled(SLOW, 102.0).wait(SLOW) == 0.0
    assert bucket.filled(SLOW, 102.0).taken().wait(SLOW) == 2.0


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    assert Bucket(0, at=0.0).filled(SLOW, 1e9) == Bucket(3, at=1e9)


def test_whoever_takes_all_that_it_can_leaves_four_times_as_much() -> None:
    bounds = Bounds(held_bytes=2500)
    assert room(bounds, 0, own=0) == 500
    assert room(bounds, 300, own=300) == 200
    assert room(bounds, 500, own=500) == 0
    assert room(bounds, 500, own=0) == 400
    assert room(bounds, 900, own=400) == 0
    assert room(bounds, 2500, own=0) == 0


@pytest.mark.parametrize("hogs", [1, 2, 7, 30])
def test_executions_that_take_all_they_can_again_and_again_come_to_equal_parts(hogs: int) -> None:
    own = [0] * hogs
    for _ in range(50):
        for hog in range(hogs):  # what it had is over at the latest when its bodies should have come
            own[hog] = 0
            own[hog] = room(BOUNDS, sum(own), 0)
    fair = BOUNDS.held_bytes / (hogs + 4)
    assert min(own) > 0.99 * fair
    assert max(own) < 1.01 * fair
    assert BOUNDS.held_bytes - sum(own) > 3.9 * fair


TEXTS = [
    b"{}",
    b"[]",
    b"[[]]",
    b"[[[[]]]]",
    b'{"":0}',
    b'{"a":{}}',
    b'{"a":0,"b":0}',
    b'"ab"',
    b"1.5",
    b"1000",
    b"-1e5",
    b'"\xc3\xa9"',
    b'"\xe2\x82\xac"',
]


@pytest.mark.parametrize(
    "body",
    [
        *(b"[" + b",".join([text] * 20_000) + b"]" for text in TEXTS),
        b"{" + b",".join(b'"%x":%d' % (number, number + 1000) for number in range(20_000)) + b"}",
        b'["' + b"a" * 500_000 + b'\\ud83d\\ude00"]',
        b'["' + b"a" * 500_000 + b'\xf0\x9f\x98\x80"]',
        b'["' + b"a, b[0]\\n" * 50_000 + b'"]',
    ],
    ids=[*(text.decode() for text in TEXTS), "keys", "escaped", "wide", "text"],
)
def test_what_a_body_is_read_into_is_never_heavier_than_its_weight(body: bytes) -> None:
    tracemalloc.start()
    try:
        read = orjson.loads(body)
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read
    assert len(body) + now <= weight(body)


def test_a_largest_body_of_text_may_be_read_and_one_of_tiny_values_may_not() -> None:
    assert weight(b"x" * BOUNDS.body_bytes) < room(BOUNDS, 0, 0)
    assert weight(b"{}," * (BOUNDS.body_bytes // 3)) > BOUNDS.held_bytes


def test_what_a_request_held_is_free_behind_it_also_where_it_was_refused() -> None:
    gate = Gate(Bounds(held_bytes=1000))
    with gate.enter("x") as share:
        share.hold(150)
        share.hold(50)
        with gate.enter("x") as other:
            other.hold(150)
            with pytest.raises(NoRoom):
                share.hold(51)
            with pytest.raises(TooLarge):
                other.hold(201)
            assert gate.held == 200
        with pytest.raises(NoRoom), gate.enter("x") as other:
            other.hold(151)
        assert gate.held == 50
    assert gate.held == 0


def test_executions_do_not_count_for_each_other_and_are_forgotten_once_they_are_as_good_as_new() -> None:
    gate = Gate(Bounds(burst=1, per_second=1e-6))
    for name in ("a", "b"):
        with gate.enter(name):
            pass
        with pytest.raises(TooMany), gate.enter(name):
            pass
    assert set(gate._guests) == {"a", "b"}
    quick = Gate(Bounds(burst=1, per_second=1e9))
    with quick.enter("a"):
        for name in ("b", "c"):
            with quick.enter(name):
                pass
    assert set(quick._guests) == {"a", "c"}
