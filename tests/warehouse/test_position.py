"""Where a warehouse ends is read from its rows, and is never beyond one that is missing."""

from hypothesis import given
from hypothesis import strategies as st

from gyre.warehouse import tables
from gyre.warehouse.tables import DOUBTFUL_SEQUENCES, position_of


def test_nothing_is_at_zero() -> None:
    assert position_of([]) == 0


def test_whole_messages_are_counted_up_to_the_last() -> None:
    assert position_of([(1, True), (2, True), (3, True)]) == 3


def test_a_torn_message_is_written_again() -> None:
    assert position_of([(1, True), (2, False), (3, True)]) == 1


def test_a_log_that_begins_with_a_gap_is_written_from_the_start() -> None:
    assert position_of([(3, True)]) == 0


def test_beyond_one_batch_all_is_whole() -> None:
    last = DOUBTFUL_SEQUENCES + 5
    assert position_of([(sequence, True) for sequence in range(6, last + 1)]) == last


def test_a_gap_at_the_beginning_of_the_doubtful_part_is_found() -> None:
    last = DOUBTFUL_SEQUENCES + 5
    assert position_of([(sequence, True) for sequence in range(8, last + 1)]) == 5


@given(st.sets(st.integers(1, 40)), st.sets(st.integers(1, 40)))
def test_everything_up_to_the_position_is_whole_and_the_next_is_not(there: set[int], torn: set[int]) -> None:
    found = position_of([(sequence, sequence not in torn) for sequence in sorted(there)])
    assert all(sequence in there and sequence not in torn for sequence in range(1, found + 1))
    assert found + 1 not in there - torn


def test_no_batch_spans_more_than_what_is_looked_at() -> None:
    from services.analytics.batches import ROWS

    assert ROWS < tables.DOUBTFUL_SEQUENCES
