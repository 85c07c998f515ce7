"""What every stateful service is: an initial state, `decide` and `evolve`, both pure, total and deterministic.

A shell folds what it has read, asks `decide`, says the first decision, folds at least through its own commit and asks
again. Given the same events, the same decision comes out: `replay --verify` relies on it, and so do the tests, which
are written with `given`, `when` and `then`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from schemas.envelope import Event

State = TypeVar("State")


class Decision(NamedTuple):  # the quickest of frozen things: half of what a decider hears is its own
    """One commit that is due: all of its events are stored, or none."""

    subject: tuple[str, ...]
    """Entity path: what follows the service in the subject, such as ("execution", "x0-0", "granted")."""
    events: tuple[Event, ...]
    correlation: str
    """The execution, group, cell or run it is about."""
    causation: int
    """Stream sequence of what made it due."""


@dataclass(frozen=True, slots=True)
class Decider(Generic[State]):
    """A state machine over the log."""

    initial: State
    decide: Callable[[State], tuple[Decision, ...]]
    """The next commits that are due, in order; () means that nothing is due."""
    evolve: Callable[[State, int, Event], State]
    """Folds one event and the stream sequence of its commit; never refuses: a fact is beyond dispute."""

    def fold(self, events: Iterable[tuple[int, Event]], state: State | None = None) -> State:
        """Fold (sequence, event) pairs, from the initial state or from `state`."""
        folded = self.initial if state is None else state
        for sequence, event in events:
            folded = self.evolve(folded, sequence, event)
        return folded

    def given(self, *events: Event) -> "Story[State]":
        """Begin a story, each event its own commit, sequences from 1."""
        return Story(self, self.initial, 0, ()).when(*events)


class StoryError(AssertionError):
    """A story went another way than the test says."""


@dataclass(frozen=True, slots=True)
class Story(Generic[State]):
    """A log in the making: what a test says happened, and what the decider says to it."""

    decider: Decider[State]
    state: State
    sequence: int
    log: tuple[tuple[int, Event], ...]

    def when(self, *events: Event) -> "Story[State]":
        """These happened next."""
        state, sequence = self.state, self.sequence
        for event in events:
            sequence += 1
            state = self.decider.evolve(state, sequence, event)
        added = tuple(zip(range(self.sequence + 1, sequence + 1), events, strict=True))
        return replace(self, state=state, sequence=sequence, log=self.log + added)

    def due(self) -> tuple[Event, ...]:
        """The events of the next commit that is due."""
        decisions = self.decider.decide(self.state)
        return decisions[0].events if decisions else ()

    def settle(self, limit: int = 10_000) -> "Story[State]":
        """Say what is due, commit by commit, until nothing is; StoryError if it does not end within `limit`."""
        story = self
        for _ in range(limit):
            events = story.due()
            if not events:
                return story
            story = story.when(*events)
        raise StoryError(f"still something due after {limit} commits: {story.due()}")

    def said(self) -> tuple[Event, ...]:
        """All that is due until nothing is, without going on with the story."""
        return tuple(event for _, event in self.settle().log[len(self.log) :])

    def then(self, *events: Event) -> "Story[State]":
        """Exactly these are said until nothing is due; the story goes on after them."""
        settled = self.settle()
        said = tuple(event for _, event in settled.log[len(self.log) :])
        if said != events:
            raise StoryError(f"expected {events}\nfound    {said}")
        return settled
