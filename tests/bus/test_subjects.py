"""Subjects are built, parsed and matched in one place."""

import pytest

from bus import subjects
from bus.subjects import Place


def test_what_is_built_can_be_taken_apart() -> None:
    assert subjects.parse(subjects.ev("r", "cell", "step", 3, "0")) == Place("ev", "r", "cell", ("step", "3", "0"))
    assert subjects.parse(subjects.call("r", "x1")) == Place("call", "r", "", ("x1",))
    assert subjects.parse("q.r.step.3.0") == Place("q", "r", "step", ("3", "0"))
    assert subjects.parse(subjects.hint("r", "beat", "cell-1")) == Place("hint", "r", "", ("beat", "cell-1"))


@pytest.mark.parametrize(
    "subject", ["", "ev", "ev.r", "ev.r.s", "call.r", "other.a.b.c", "ev.r.s.*", "ev.r..x", "ev.r.s.a b"]
)
def test_what_could_not_have_been_built_is_refused(subject: str) -> None:
    with pytest.raises(ValueError, match="must be ev"):
        subjects.parse(subject)


@pytest.mark.parametrize("token", ["", "a.b", "*", ">", "a b", "a\n", "é", "x" * 129])
def test_no_token_can_smuggle_in_a_wildcard_or_a_separator(token: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 128"):
        subjects.ev("r", "cell", token)
    with pytest.raises(ValueError, match="must be 1 to 128"):
        subjects.everything(token)


@pytest.mark.parametrize(
    ("filter_", "subject", "expected"),
    [
        ("ev.r.>", "ev.r.a", True),
        ("ev.r.>", "ev.r", False),
        ("ev.r.*", "ev.r.a.b", False),
        ("ev.*.a", "ev.r.a", True),
        ("ev.r.a", "ev.r.a", True),
        ("ev.r.a", "ev.rxa", False),
        (subjects.micro_step("r", 3, "0"), subjects.ev("r", "packer", "step", 3, "0"), True),
        (subjects.micro_step("r", 3, "0"), subjects.ev("r", "cell", "step", 3, "1"), False),
        (subjects.execution("r", "runner", "x"), subjects.ev("r", "runner", "execution", "x", "launched"), True),
        (subjects.producer("r", "packer"), subjects.ev("r", "packer", "office"), True),
    ],
)
def test_filters_match_as_the_server_matches(filter_: str, subject: str, expected: bool) -> None:
    assert subjects.matches(filter_, subject) is expected
