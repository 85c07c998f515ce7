"""Which contributions count, told event by event (design §8, Ledger)."""

from functools import reduce

import pytest
from pydantic import TypeAdapter

from gyre.core import ledger
from gyre.core.ledger import Ledger
from schemas.envelope import Event
from schemas.training import (
    Contribution,
    ContributionDiscarded,
    GradientReduced,
    JoinWindowClosed,
    MicroStepReissued,
    ReductionOpened,
    StreamClosed,
)
from tests.core.facts import claimed, completed, enqueued, joined, lost, moved, registered, stepped


class Log:
    """A log in the making; `say` gives the sequence, as a broker would."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def say(self, *events: Event) -> int:
        self.events.extend(events)
        return len(self.events)

    @property
    def state(self) -> Ledger:
        return reduce(lambda state, item: ledger.evolve(state, *item), enumerate(self.events, 1), Ledger())

    def work(self, micro_step: int, cell: int, instance: str) -> int:
        claim = self.say(claimed(1, micro_step, cell, instance))
        self.say(completed(1, micro_step, cell, instance, claim))
        return claim

    def reissue(self, micro_step: int) -> None:
        slot = self.state.slots[micro_step]
        self.say(
            MicroStepReissued(
                step=1, micro_step=micro_step, enqueued=slot.enqueued, reissue=slot.reissues + 1, reason="lost"
            )
        )

    def open(self) -> ReductionOpened:
        due = ledger.reduction_due(self.state)
        assert due is not None
        opened = ReductionOpened(
            step=1,
            epoch=due.epoch,
            members=due.members,
            instances=due.instances,
            contributions=due.contributions,
        )
        self.say(JoinWindowClosed(step=1, members=due.members), opened)
        return opened

    def reduced(self, epoch: int) -> None:
        self.say(GradientReduced(step=1, epoch=epoch, members=(0, 1), micro_steps=2, gradient_norm=1.0, seconds=0.1))


@pytest.fixture
def log() -> Log:
    """The core and one satellite in step 1, with two micro-steps queued."""
    made = Log()
    for cell, instance in enumerate("ab"):
        made.say(registered(cell, instance), moved(cell, instance), joined(1, cell, instance))
    made.say(enqueued(1, 0), enqueued(1, 1), StreamClosed(step=1, micro_steps=2))
    return made


def places(contributions: tuple[Contribution, ...]) -> list[tuple[int, int]]:
    return [(each.micro_step, each.cell) for each in contributions]


def test_a_reduction_is_due_once_the_stream_is_closed_and_drained(log: Log) -> None:
    first = log.work(0, 0, "a")
    assert ledger.reduction_due(log.state) is None
    second = log.work(1, 1, "b")
    due = ledger.reduction_due(log.state)
    assert due is not None
    assert (due.epoch, due.members, due.instances) == (1, (0, 1), ("a", "b"))
    assert [each.claim for each in due.contributions] == [first, second]


def test_an_open_stream_is_never_drained() -> None:
    log = Log()
    log.say(registered(0, "a"), moved(0, "a"), joined(1, 0, "a"), enqueued(1, 0))
    log.work(0, 0, "a")
    assert ledger.reduction_due(log.state) is None


def test_a_batch_without_micro_steps_is_reduced_by_those_who_joined() -> None:
    log = Log()
    log.say(registered(0, "a"), moved(0, "a"), joined(1, 0, "a"), StreamClosed(step=1, micro_steps=0))
    due = ledger.reduction_due(log.state)
    assert due is not None
    assert (due.members, due.contributions) == ((0,), ())


def test_a_lost_satellite_takes_what_it_completed_and_what_it_works_on(log: Log) -> None:
    log.work(0, 1, "b")
    log.say(claimed(1, 1, 1, "b"), lost(1, "b"))
    assert ledger.lost(log.state) == (0, 1)
    assert [log.state.slots[place].failures for place in (0, 1)] == [0, 1]


def test_the_satellite_that_comes_back_under_a_new_name_has_lost_it_too(log: Log) -> None:
    log.work(0, 1, "b")
    log.say(registered(1, "b2"))
    assert ledger.lost(log.state) == (0,)


def test_a_cell_that_registers_twice_under_one_name_loses_nothing(log: Log) -> None:
    log.work(0, 1, "b")
    log.say(registered(1, "b"))
    assert ledger.lost(log.state) == ()


def test_a_completion_after_the_loss_counts_nowhere(log: Log) -> None:
    claim = log.say(claimed(1, 0, 1, "b"))
    log.say(lost(1, "b"), completed(1, 0, 1, "b", claim))
    assert ledger.lost(log.state) == (0,)
    assert ledger.live(log.state) == ()


def test_a_late_loss_of_a_former_instance_changes_nothing(log: Log) -> None:
    log.say(registered(1, "b2"), moved(1, "b2"), joined(1, 1, "b2"))
    log.work(0, 1, "b2")
    log.say(lost(1, "b"))
    assert ledger.lost(log.state) == ()


def test_a_claim_by_one_who_has_not_joined_is_queued_again(log: Log) -> None:
    log.say(registered(2, "c"), claimed(1, 0, 2, "c"))
    assert ledger.lost(log.state) == (0,)
    assert log.state.slots[0].failures == 0


def test_a_reissued_micro_step_is_claimed_and_counts_once(log: Log) -> None:
    log.work(0, 1, "b")
    log.say(lost(1, "b"))
    log.reissue(0)
    assert ledger.lost(log.state) == ()
    log.work(0, 0, "a")
    log.work(1, 0, "a")
    assert places(ledger.live(log.state)) == [(0, 0), (1, 0)]


def test_a_discard_gives_back_all_that_was_completed_and_the_cell_goes_on(log: Log) -> None:
    log.work(0, 1, "b")
    log.say(ContributionDiscarded(step=1, cell=1, instance="b", reason="refused", broken=True))
    assert ledger.lost(log.state) == (0,)
    assert ledger.may_claim(log.state, 1, "b")


def test_a_cell_that_returns_to_rollout_takes_its_share_along(log: Log) -> None:
    log.work(0, 1, "b")
    log.say(moved(1, "b", to="rollout"))
    assert ledger.lost(log.state) == (0,)
    assert not ledger.may_claim(log.state, 1, "b")


def test_a_measurement_outlives_the_cell_that_took_it() -> None:
    log = Log()
    log.say(registered(0, "a"), joined(1, 0, "a"), registered(1, "b"), joined(1, 1, "b"))
    log.say(enqueued(1, 0, "measure"))
    log.work(0, 1, "b")
    log.say(lost(1, "b"), lost(0, "a"))
    assert ledger.lost(log.state) == ()
    assert ledger.training(log.state) == ()


def test_with_the_core_the_whole_step_is_lost_and_everyone_joins_again(log: Log) -> None:
    log.work(0, 1, "b")
    log.work(1, 0, "a")
    log.say(lost(0, "a"))
    assert ledger.lost(log.state) == (0, 1)
    assert not ledger.may_claim(log.state, 1, "b")
    log.reissue(0)
    log.say(claimed(1, 0, 1, "b"))  # has not noticed yet: its accumulator still holds the former share
    assert ledger.lost(log.state) == (0, 1)
    log.reissue(0)
    log.say(joined(1, 1, "b"))
    log.work(0, 1, "b")
    assert places(ledger.live(log.state)) == [(0, 1)]


def test_a_core_lost_after_the_sum_but_before_the_update_redoes_the_step(log: Log) -> None:
    log.work(0, 1, "b")
    log.work(1, 0, "a")
    log.open()
    log.reduced(1)
    log.say(registered(0, "a2"))
    assert ledger.lost(log.state) == (0, 1)


def test_an_open_reduction_keeps_everyone_from_claiming(log: Log) -> None:
    log.work(0, 1, "b")
    log.work(1, 0, "a")
    assert ledger.may_claim(log.state, 0, "a")
    log.open()
    assert not ledger.may_claim(log.state, 0, "a")
    assert ledger.reduction_due(log.state) is None


def test_a_reduction_that_names_what_is_no_longer_held_does_not_stand(log: Log) -> None:
    log.work(0, 1, "b")
    log.work(1, 0, "a")
    due = ledger.reduction_due(log.state)
    assert due is not None
    log.say(lost(1, "b"))
    log.say(
        ReductionOpened(step=1, epoch=1, members=due.members, instances=due.instances, contributions=due.contributions)
    )
    assert log.state.reduction is None
    assert ledger.lost(log.state) == (0,)


def test_a_member_lost_before_the_sum_makes_a_new_epoch_without_it(log: Log) -> None:
    log.work(0, 1, "b")
    log.work(1, 0, "a")
    log.open()
    log.say(lost(1, "b"))
    assert ledger.may_claim(log.state, 0, "a")
    log.reissue(0)
    log.work(0, 0, "a")
    due = ledger.reduction_due(log.state)
    assert due is not None
    assert (due.epoch, due.members, places(due.contributions)) == (2, (0,), [(0, 0), (1, 0)])


def test_a_satellite_lost_after_the_sum_has_given_its_share(log: Log) -> None:
    log.work(0, 1, "b")
    log.work(1, 0, "a")
    log.open()
    log.reduced(1)
    log.say(lost(1, "b"))
    assert ledger.lost(log.state) == ()


def test_nobody_joins_once_the_window_is_closed(log: Log) -> None:
    log.say(registered(2, "c"), moved(2, "c"), JoinWindowClosed(step=1, members=(0, 1)), joined(1, 2, "c"))
    assert not ledger.may_claim(log.state, 2, "c")


def test_a_lost_core_that_closes_the_window_does_not_shut_its_successor_out(log: Log) -> None:
    log.say(lost(0, "a"), JoinWindowClosed(step=1, members=(0, 1)))
    log.say(registered(0, "c"), moved(0, "c"), joined(1, 0, "c"))
    assert ledger.may_claim(log.state, 0, "c")


def test_one_who_joined_unseen_gives_back_what_it_claimed(log: Log) -> None:
    log.say(registered(2, "c"), moved(2, "c"), joined(1, 2, "c"))
    log.work(0, 2, "c")
    log.say(JoinWindowClosed(step=1, members=(0, 1)))
    assert ledger.lost(log.state) == (0,)


def test_the_update_begins_the_next_step_with_the_same_cells(log: Log) -> None:
    log.say(stepped(1))
    state = log.state
    assert (state.step, state.version, state.slots, state.joined) == (2, 1, {}, {})
    assert state.cells[0].trains


def test_what_is_about_another_step_changes_nothing(log: Log) -> None:
    before = log.state
    log.say(enqueued(2, 5), claimed(2, 0, 0, "a"), stepped(2), joined(2, 0, "a"))
    assert log.state == before


def test_a_sum_is_checked_by_name() -> None:
    one, two = (Contribution(micro_step=place, cell=0, claim=place + 1) for place in (1, 2))
    assert ledger.check((one, two), (1, 2)) == ()
    assert ledger.check((one, one, two), (1, 3)) == (
        "micro-step 3 is missing from the sum",
        "micro-step 1 is in the sum 2 times",
        "micro-step 2 is in the sum but was not queued",
    )


def test_the_state_survives_its_snapshot(log: Log) -> None:
    adapter = TypeAdapter(Ledger)
    log.work(0, 1, "b")
    log.work(1, 0, "a")
    log.open()
    assert adapter.validate_json(adapter.dump_json(log.state)) == log.state
