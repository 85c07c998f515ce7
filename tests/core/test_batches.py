"""What the packer says, told in events (design §7 Packing, §8)."""

import math
from dataclasses import replace
from functools import partial

import pytest
from pydantic import TypeAdapter

from gyre.core import batches
from gyre.core.batch_state import Params, State, initial
from gyre.core.decider import Decider, Story
from gyre.rl.packing import Shape, pack
from schemas.envelope import Event
from schemas.runs import OfficeTaken
from schemas.speakers import ENTITIES
from schemas.training import (
    BatchOpened,
    BurstEnded,
    ContributionDiscarded,
    ExecutionMasked,
    GroupAssigned,
    JoinWindowClosed,
    MaskDecided,
    MicroStepEnqueued,
    RatioMeasured,
    StepAborted,
    StreamClosed,
    TrajectoriesAdmitted,
)
from tests.core.facts import admitted, claimed, completed, group_ready, joined, lost, moved, registered, stepped

PARAMS = Params(groups=2, steps=3, burst=2, redeliveries=1)
SHAPE = Shape(groups=2, group_size=2, row_tokens=8, micro_step_tokens=16)
SHORT, LONG = (4,), (9, 9, 3)


class Packer:
    """The packer over one log, whose admissions are looked up by their sequence as a shell does."""

    def __init__(self, params: Params = PARAMS) -> None:
        self.decider: Decider[State] = batches.decider(params, self.load, partial(pack, shape=SHAPE))
        self.story: Story[State] = self.decider.given()
        self.asked: list[int] = []

    def load(self, sequence: int) -> TrajectoriesAdmitted:
        assert sequence in batches.needs(self.story.state)
        self.asked.append(sequence)
        event = self.story.log[sequence - 1][1]
        assert isinstance(event, TrajectoriesAdmitted)
        return event

    def when(self, *events: Event) -> "Packer":
        self.story = self.story.when(*events)
        return self

    def said(self) -> list[Event]:
        """What is said until nothing is due; told one by one, so that look-ups see the state they are made from."""
        start = len(self.story.log)
        while due := self.story.due():
            self.story = self.story.when(*due)
        return [event for _, event in self.story.log[start:]]

    def train(self, micro_step: int, cell: int = 0, instance: str = "a") -> "Packer":
        step = self.story.state.ledger.step
        self.when(claimed(step, micro_step, cell, instance))
        return self.when(completed(step, micro_step, cell, instance, self.story.sequence))


def group(index: int, *lengths: tuple[int, ...], version: int = 0, advantage: float = 1.0) -> list[Event]:
    each = [admitted(index, place, those, advantage) for place, those in enumerate(lengths)]
    return [group_ready(index, len(lengths), version), *each]


def training() -> list[Event]:
    return [registered(0, "a"), moved(0, "a"), joined(1, 0, "a")]


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def queued(events: list[Event]) -> list[MicroStepEnqueued]:
    return [event for event in events if isinstance(event, MicroStepEnqueued)]


def measured(micro_step: int, log_ratio_sum: float, count: int) -> RatioMeasured:
    return RatioMeasured(step=1, micro_step=micro_step, execution="x0-0", log_ratio_sum=log_ratio_sum, count=count)


def split() -> Packer:
    """One execution over two micro-steps, with 8 targets in one and 8 + 2 in the other."""
    packer = Packer(Params(groups=1, steps=1, burst=1)).when(*training(), *group(0, LONG, ()))
    assert [event.kind for event in queued(packer.said())] == ["measure", "measure"]
    return packer


def test_a_group_that_packs_into_less_than_was_queued_is_told_and_not_waited_for() -> None:
    wide = replace(SHAPE, row_tokens=64, micro_step_tokens=64)
    packer = Packer(Params(groups=1, steps=1, burst=1)).when(*training(), *group(0, *[(7,)] * 6))
    while kinds(list(packer.story.due())) != ["MicroStepEnqueued"]:
        packer.when(*packer.story.due())
    packer.when(*packer.story.due())
    one_more = packer.story.due()
    assert kinds(list(one_more)) == ["MicroStepEnqueued"]
    again = batches.decider(Params(groups=1, steps=1, burst=1), packer.load, partial(pack, shape=wide))
    with pytest.raises(batches.PackedOtherwise, match="group g0: 1 micro-steps are in the log"):
        again.decide(packer.story.state)


def test_a_batch_is_opened_when_the_core_trains() -> None:
    packer = Packer().when(registered(0, "a"))
    assert packer.said() == []
    assert packer.when(moved(0, "a")).said() == [BatchOpened(step=1, version=0, groups=2)]


def test_a_core_that_says_it_joined_trains_too() -> None:
    packer = Packer().when(registered(0, "a"), joined(1, 0, "a"))
    assert kinds(packer.said()) == ["BatchOpened"]


def test_a_satellite_opens_nothing() -> None:
    assert Packer().when(registered(1, "b"), moved(1, "b"), joined(1, 1, "b")).said() == []


def test_a_batch_takes_ready_groups_queues_their_micro_steps_and_closes() -> None:
    packer = Packer().when(*training(), *group(0, SHORT, SHORT), *group(1, SHORT, SHORT))
    said = packer.said()
    assert kinds(said) == [
        "BatchOpened",
        "GroupAssigned",
        "MicroStepEnqueued",
        "GroupAssigned",
        "MicroStepEnqueued",
        "StreamClosed",
    ]
    assert [event.micro_step for event in queued(said)] == [0, 1]
    assert [event.tokens for event in queued(said)] == [8, 8]
    assert said[-1] == StreamClosed(step=1, micro_steps=2)


def test_the_oldest_version_goes_first_and_then_the_lowest_index() -> None:
    ready = [*group(2, (), version=1), *group(3, (), version=0), *group(1, (), version=1)]
    said = Packer(Params(groups=3, steps=1, burst=1)).when(*ready, *training()).said()
    assigned = [event for event in said if isinstance(event, GroupAssigned)]
    assert [event.group for event in assigned] == ["g3", "g1", "g2"]
    assert [event.staleness for event in assigned] == [0, -1, -1]


def test_a_group_waits_until_all_of_its_executions_are_admitted() -> None:
    ready, first, second = group(0, SHORT, SHORT)
    packer = Packer().when(*training(), ready, first)
    assert kinds(packer.said()) == ["BatchOpened"]
    assert kinds(packer.when(second).said()) == ["GroupAssigned", "MicroStepEnqueued"]


def test_no_more_groups_than_the_batch_has_places() -> None:
    ready = [event for index in range(3) for event in group(index, SHORT, SHORT)]
    said = Packer().when(*training(), *ready).said()
    assert kinds(said).count("GroupAssigned") == 2


def test_a_batch_without_targets_is_closed_with_no_micro_step() -> None:
    said = Packer().when(*training(), *group(0, (), ()), *group(1, (), ())).said()
    assert kinds(said) == ["BatchOpened", "GroupAssigned", "GroupAssigned", "StreamClosed"]
    assert said[-1] == StreamClosed(step=1, micro_steps=0)


def test_executions_that_move_no_weight_are_queued_only_on_demand() -> None:
    ready = [*group(0, SHORT, SHORT, advantage=0.0), *group(1, (), ())]
    assert queued(Packer().when(*training(), *ready).said()) == []
    told = Params(groups=2, steps=1, burst=1, train_zero_advantage=True)
    assert len(queued(Packer(told).when(*training(), *ready).said())) == 1


def test_the_next_batch_waits_for_the_update_and_carries_its_version() -> None:
    packer = Packer().when(*training(), *group(0, (), ()), *group(1, (), ()))
    packer.said()
    assert packer.when(stepped(1)).said() == [BatchOpened(step=2, version=1, groups=2)]


def between_bursts() -> Packer:
    packer = Packer().when(*training(), *(event for index in range(4) for event in group(index, (), ())))
    packer.said()
    packer.when(stepped(1)).said()
    assert packer.when(stepped(2)).said() == []
    return packer


def test_after_a_burst_the_core_has_to_be_retained() -> None:
    ended = BurstEnded(burst=1, version=2, retained=True)
    assert between_bursts().when(ended).said() == [BatchOpened(step=3, version=2, groups=2)]


def test_a_core_that_is_not_retained_has_to_come_back() -> None:
    packer = between_bursts().when(BurstEnded(burst=1, version=2, retained=False))
    assert packer.said() == []
    assert packer.when(moved(0, "a", "rollout")).said() == []
    assert kinds(packer.when(moved(0, "a", version=2)).said()) == ["BatchOpened"]


def test_after_the_last_step_no_batch_is_opened() -> None:
    packer = Packer(Params(groups=1, steps=1, burst=2)).when(*training(), *group(0, ()))
    packer.said()
    assert packer.when(stepped(1)).said() == []


def test_a_split_execution_is_measured_masked_and_only_then_trained() -> None:
    packer = split().train(0).when(measured(0, 0.08, 10)).train(1)
    assert packer.said() == []
    said = packer.when(measured(1, 0.1, 8)).said()
    ratio = math.exp(0.18 / 18)
    assert said[0] == ExecutionMasked(step=1, execution="x0-0", ratio=ratio, mask=0)
    assert [event.masks for event in queued(said)] == [(MaskDecided(execution="x0-0", ratio=ratio, mask=0),)] * 2
    assert kinds(said) == ["ExecutionMasked", "MicroStepEnqueued", "MicroStepEnqueued", "StreamClosed"]
    assert [event.micro_step for event in queued(said)] == [2, 3]
    assert said[-1] == StreamClosed(step=1, micro_steps=4)


def test_each_word_of_a_split_execution_is_said_where_readers_look_for_it() -> None:
    packer = split().train(0).when(measured(0, 0.08, 10)).train(1).when(measured(1, 0.1, 8))
    found: set[tuple[str, str]] = set()
    while decisions := packer.decider.decide(packer.story.state):
        found |= {(event.type, decision.subject[0]) for decision in decisions for event in decision.events}
        packer.when(*decisions[0].events)
    assert {kind for kind, _ in found} == {"ExecutionMasked", "MicroStepEnqueued", "StreamClosed"}
    assert [(kind, place) for kind, place in found if place not in ENTITIES[kind]] == []


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "mask"),
    [
        (1.0, math.log(1.0051), 0),
        (1.0, math.log(1.0049), 1),
        (1.0, math.log(0.5), 1),
        (-1.0, math.log(0.9949), 0),
        (-1.0, math.log(0.9951), 1),
        (-1.0, math.log(2.0), 1),
        (1.0, 900.0, 0),
        (1.0, -900.0, 1),
    ],
)
def test_the_mask_follows_the_ratio_over_all_targets(advantage: float, log_ratio: float, mask: int) -> None:
    packer = Packer(Params(groups=1, steps=1, burst=1)).when(*training(), *group(0, LONG, (), advantage=advantage))
    packer.said()
    packer.when(measured(0, 10 * log_ratio, 10), measured(1, 8 * log_ratio, 8))
    masked = packer.story.due()[0]
    assert isinstance(masked, ExecutionMasked)
    assert masked.mask == mask
    assert 0 < masked.ratio < math.inf


def test_one_part_beyond_the_bound_does_not_mask_what_is_within_it_as_a_whole() -> None:
    """A ratio a shard would mask the first part: s = exp(0.08 / 10) > 1.005 alone, exp(0) together."""
    masked = split().when(measured(0, 0.08, 10), measured(1, -0.08, 8)).said()[0]
    assert masked == ExecutionMasked(step=1, execution="x0-0", ratio=1.0, mask=1)


def test_a_measurement_said_twice_counts_once() -> None:
    packer = split().when(measured(0, 0.08, 10), measured(0, 0.08, 10))
    assert packer.said() == []


def test_other_groups_are_queued_while_one_is_measured() -> None:
    packer = Packer().when(*training(), *group(0, LONG, ()), *group(1, SHORT, SHORT))
    measuring = packer.said()
    assert [(event.kind, event.rows[0].segments[0].execution) for event in queued(measuring)] == [
        ("measure", "x0-0"),
        ("measure", "x0-0"),
    ]
    said = packer.when(claimed(1, 0, 0, "a")).said()
    assert [(event.kind, event.rows[0].segments[0].execution) for event in queued(said)] == [("train", "x1-0")]
    assert "StreamClosed" not in kinds(said)


def test_ready_groups_stay_unassigned_while_enough_is_queued() -> None:
    """What is assigned early is no supply that a satellite could come for."""
    packer = Packer().when(*training(), *group(0, LONG, ()), *group(1, SHORT, SHORT))
    assert kinds(packer.said()).count("GroupAssigned") == 1
    assert kinds(packer.when(claimed(1, 0, 0, "a")).said()).count("GroupAssigned") == 1


def working() -> Packer:
    packer = Packer().when(*training(), registered(1, "b"), joined(1, 1, "b"))
    packer.when(*group(0, SHORT, SHORT), *group(1, SHORT, SHORT)).said()
    return packer


def test_what_a_lost_cell_held_is_reissued_with_its_rows_sequence() -> None:
    packer = working().train(0, 1, "b").when(lost(1, "b"))
    (reissued,) = packer.said()
    assert reissued.type == "MicroStepReissued"
    assert packer.story.log[reissued.enqueued - 1][1].type == "MicroStepEnqueued"
    assert (reissued.micro_step, reissued.reissue) == (0, 1)
    assert packer.said() == []


def test_what_a_cell_discards_is_reissued() -> None:
    packer = working().train(0, 1, "b").train(1)
    packer.when(ContributionDiscarded(step=1, cell=1, instance="b", reason="refused", broken=True))
    assert [event.micro_step for event in packer.said() if event.type == "MicroStepReissued"] == [0]


def test_with_the_core_every_micro_step_is_reissued() -> None:
    packer = working().train(0, 1, "b").train(1).when(registered(0, "a2"))
    assert [event.micro_step for event in packer.said() if event.type == "MicroStepReissued"] == [0, 1]


def test_a_micro_step_that_keeps_losing_its_claimants_aborts_the_step() -> None:
    packer = working().when(seated(0))

    def killed(instance: str) -> list[Event]:
        packer.when(registered(1, instance), joined(1, 1, instance), claimed(1, 0, 1, instance), lost(1, instance))
        return packer.said()

    assert kinds(killed("b1")) == ["MicroStepReissued"]
    (aborted,) = killed("b2")
    assert isinstance(aborted, StepAborted)
    assert aborted.reason == "lost 2 claimants, the last because cell 1 was lost: no heartbeat"
    assert packer.when(registered(0, "a2")).said() == []


def seated(number: int, rules: int = 2) -> OfficeTaken:
    return OfficeTaken(service="packer", instance=f"packer-{number}", rules=rules)


def test_a_cell_that_dies_of_its_work_and_registers_anew_fails_it_each_time() -> None:
    packer = Packer().when(seated(0), *training(), registered(1, "b0"), joined(1, 1, "b0"))
    packer.when(*group(0, SHORT, SHORT), *group(1, SHORT, SHORT)).said()
    said = []
    for number in range(2):
        packer.when(claimed(1, 0, 1, f"b{number}"), registered(1, f"b{number + 1}"))
        packer.when(joined(1, 1, f"b{number + 1}"))
        said += kinds(packer.said())
    assert said == ["MicroStepReissued", "StepAborted"]


@pytest.mark.parametrize("cell", [0, 1])
@pytest.mark.parametrize("early", [True, False])
def test_a_run_may_be_stopped_in_the_middle_of_a_micro_step_however_often(cell: int, early: bool) -> None:
    """Its cells come back before or after its packer, and neither says why they were gone."""
    packer, former = Packer().when(seated(0), *training(), registered(1, "b"), joined(1, 1, "b")), "ab"[cell]
    packer.when(*group(0, SHORT, SHORT), *group(1, SHORT, SHORT)).said()
    for number in range(1, 6):
        packer.when(claimed(1, 0, cell, former))
        former = f"c{number}"
        back: list[Event] = [registered(cell, former), moved(cell, former)]
        packer.when(*back, seated(number)) if early else packer.when(seated(number), *back)
        assert kinds(packer.said()) == ["MicroStepReissued"]
        packer.when(joined(1, cell, former))
    assert packer.story.state.ledger.slots[0].failures == 0


def test_a_cell_that_goes_home_or_is_late_fails_nothing_and_one_that_broke_does() -> None:
    packer = Packer().when(seated(0), *training(), registered(1, "b"), joined(1, 1, "b"))
    packer.when(*group(0, SHORT, SHORT), *group(1, SHORT, SHORT)).said()

    def discarded(broken: bool) -> Event:
        return ContributionDiscarded(step=1, cell=1, instance="b", reason="so it is", broken=broken)

    ways = (discarded(False), moved(1, "b", "rollout"), discarded(True), JoinWindowClosed(step=1, members=(0,)))
    failures = []
    for left in ways:
        packer.when(joined(1, 1, "b"), claimed(1, 0, 1, "b"), left)
        failures.append(packer.story.state.ledger.slots[0].failures)
        assert kinds(packer.said()) == ["MicroStepReissued"]
    assert failures == [0, 0, 1, 1]


def test_a_log_of_the_first_rules_is_decided_as_it_was() -> None:
    packer = Packer().when(seated(0, rules=1), *training()).when(*group(0, SHORT, SHORT), *group(1, SHORT, SHORT))
    packer.said()
    packer.when(claimed(1, 0, 0, "a"), seated(1, rules=1), registered(0, "a1"), moved(0, "a1"), joined(1, 0, "a1"))
    assert kinds(packer.said()) == ["MicroStepReissued"]
    packer.when(claimed(1, 0, 0, "a1"), seated(2, rules=1), registered(0, "a2"), moved(0, "a2"))
    assert kinds(packer.said()) == ["StepAborted"]


def test_deciding_twice_says_nothing_twice() -> None:
    packer = working()
    log = [event for _, event in packer.story.log]
    assert packer.said() == []
    assert packer.when(*log[:3]).said() == []


def test_bodies_are_loaded_only_for_the_group_that_is_queued() -> None:
    packer = working()
    first = [sequence for sequence, event in packer.story.log if event.type == "TrajectoriesAdmitted"]
    assert sorted(set(packer.asked)) == first
    assert batches.needs(packer.story.state) == ()


def test_the_state_survives_its_snapshot_and_holds_no_tokens() -> None:
    adapter = TypeAdapter(State)
    packer = split().when(measured(0, 0.08, 10))
    stored = adapter.dump_json(packer.story.state)
    assert adapter.validate_json(stored) == packer.story.state
    assert b"logprobs" not in stored


def test_a_half_said_group_is_finished_after_a_restart() -> None:
    adapter = TypeAdapter(State)
    packer = Packer().when(*training(), *group(0, *[(9,)] * 5), *group(1, SHORT))
    whole = packer.said()
    again = Packer().when(*training(), *group(0, *[(9,)] * 5), *group(1, SHORT))
    told: list[Event] = []
    while due := again.story.due():
        told.extend(due)
        again.when(*due)
        restored = adapter.validate_json(adapter.dump_json(again.story.state))
        again.story = Story(again.decider, restored, again.story.sequence, again.story.log)
    assert told == whole
    assert len(queued(whole)) > 4


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Params(groups=0, steps=1, burst=1), "groups = 0: give at least 1"),
        (Params(groups=1, steps=1, burst=1, redeliveries=-1), "redeliveries = -1: give at least 0"),
        (Params(groups=1, steps=1, burst=1, ratio_low=1.1), "ratio_low = 1.1, ratio_high = 1.005"),
    ],
)
def test_parameters_that_cannot_be_honoured_are_refused(params: Params, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        initial(params)


def test_without_streaming_a_burst_is_opened_once_all_of_its_groups_are_admitted() -> None:
    packer = Packer(replace(PARAMS, stream=False)).when(registered(0, "a"), moved(0, "a"))
    packer.when(*(event for index in range(3) for event in group(index, SHORT, SHORT)))
    assert packer.said() == []  # 3 of the 4 groups of the burst
    assert isinstance(packer.when(*group(3, SHORT, SHORT)).said()[0], BatchOpened)


def test_without_streaming_the_second_step_of_a_burst_and_a_short_last_burst_wait_for_no_more_than_they_need() -> None:
    packer = Packer(replace(PARAMS, stream=False)).when(registered(0, "a"), moved(0, "a"))
    packer.when(*(event for index in range(4) for event in group(index, SHORT, SHORT)))
    packer.said()
    opened = packer.when(stepped(1)).said()
    assert BatchOpened(step=2, version=1, groups=2) in opened
    packer.when(stepped(2), BurstEnded(burst=1, version=2, retained=True))
    assert packer.when(*group(4, SHORT, SHORT)).said() == []
    assert BatchOpened(step=3, version=2, groups=2) in packer.when(*group(5, SHORT, SHORT)).said()
