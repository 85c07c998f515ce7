"""The given/when/then machinery itself, which every other test of a decider leans on."""

import pytest

from gyre.core.decider import Decider, Decision, StoryError
from schemas.envelope import Event
from schemas.runs import TimerFired, TimerSet


def _evolve(state: int, _: int, event: Event) -> int:
    return state + 1 if isinstance(event, TimerFired) else state - 1


def _decide(state: int) -> tuple[Decision, ...]:
    return (Decision(("timer",), (SET,), "run", 0),) if state > 0 else ()


SET, FIRED = TimerSet(timer="t", seconds=0), TimerFired(timer="t")
COUNTER = Decider(0, _decide, _evolve)
RESTLESS = Decider(0, lambda state: (Decision(("timer",), (FIRED,), "run", state),), _evolve)


def test_a_story_goes_on_after_what_was_said() -> None:
    story = COUNTER.given(FIRED, FIRED).then(SET, SET)
    assert (story.state, story.sequence) == (0, 4)
    assert story.log == ((1, FIRED), (2, FIRED), (3, SET), (4, SET))
    story.then()


def test_a_story_that_goes_another_way_shows_both() -> None:
    with pytest.raises(StoryError, match="expected"):
        COUNTER.given(FIRED).then()


def test_a_decider_that_never_comes_to_rest_is_caught() -> None:
    with pytest.raises(StoryError, match="still something due after 10 commits"):
        RESTLESS.given().settle(limit=10)


def test_folding_goes_on_from_a_state() -> None:
    assert COUNTER.fold([(1, FIRED), (2, FIRED)]) == 2
    assert COUNTER.fold([(3, SET)], state=2) == 1
