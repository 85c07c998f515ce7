"""The way back from an event to the dispatch, and the way forward to what came of it."""

import pytest

from gyre.core.causes import HEARD, SAID_SO, EventId, Fan, Walk
from schemas.calls import RecordsSealed, RouteAssigned, RouteMoved
from schemas.dispatch import ExecutionDispatched, GroupDispatched, LaunchGranted
from schemas.envelope import Event
from schemas.rewards import AssessmentRecorded, TreeBuilt
from schemas.roles import RoleTransitionRequested
from schemas.training import BatchOpened, Contribution, GradientReduced, ReductionOpened, StreamClosed
from tests.core.facts import admitted, claimed, completed, enqueued, group_ready, joined, lost, registered, stepped
from tests.core.told import a_run
from tests.core.world import assigned, launched, rewarded, run_started, terminated

Commit = tuple[int, tuple[Event, ...]]
"""(causation, events); the sequence is its place from 1, its time ten times that."""


def walked(commits: list[Commit], target: str, **how: int) -> Walk:
    walk = Walk(EventId.parse(target), **how)
    for sequence, (causation, events) in enumerate(commits, start=1):
        walk.add(sequence, 10 * sequence, causation, events)
    return walk


def dispatched(execution: str) -> ExecutionDispatched:
    return ExecutionDispatched(execution=execution, group="g0", task="t", index=0, version=0, seed=0)


def assessed(execution: str, *, designated: bool = True) -> AssessmentRecorded:
    return AssessmentRecorded(
        assessment=f"{execution}-a",
        execution=execution,
        designated=designated,
        attempt=1,
        state=None,
        branch=None,
        score=1.0,
        valid=True,
        seconds=0.0,
    )


def sealed(execution: str) -> RecordsSealed:
    return RecordsSealed(execution=execution, last_sequence=0, count=0, digest="0" * 64)


def built(execution: str) -> TreeBuilt:
    return TreeBuilt(execution=execution, digest="0" * 64, nodes=0, leaves=(), body=None)


def opened(*claims: int) -> ReductionOpened:
    named = tuple(Contribution(micro_step=place, cell=0, claim=claim) for place, claim in enumerate(claims))
    return ReductionOpened(step=1, epoch=1, members=(0,), instances=("i0",), contributions=named)


REDUCED = GradientReduced(step=1, epoch=1, members=(0,), micro_steps=1, gradient_norm=1.0, seconds=0.0)
STORY: list[Commit] = [
    (0, (run_started(),)),  # 1
    (1, (registered(0, "i0"),)),  # 2, by a cell
    (1, (GroupDispatched(group="g0", index=0, task="t", version=0, executions=2),)),
    (1, (dispatched("x0-0"),)),
    (1, (dispatched("x0-1"),)),  # 5
    (2, (LaunchGranted(execution="x0-0"),)),
    (4, (launched("x0-0"),)),
    (6, (LaunchGranted(execution="x0-1"),)),
    (5, (launched("x0-1"),)),
    (0, (RouteAssigned(execution="x0-0", cell=0),)),  # 10, by the proxy, which names nothing
    (7, (terminated("x0-0"),)),
    (9, (terminated("x0-1"),)),
    (11, (assessed("x0-0"), rewarded("x0-0"))),
    (12, (assessed("x0-1"), rewarded("x0-1"))),
    (0, (sealed("x0-0"),)),  # 15
    (0, (sealed("x0-1"),)),
    (15, (built("x0-0"),)),
    (16, (built("x0-1"),)),
    (18, (group_ready(0, 2),)),
    (19, (admitted(0, 0, (3,)),)),  # 20
    (19, (admitted(0, 1, (3,)),)),
    (2, (BatchOpened(step=1, version=0, groups=1),)),
    (22, (assigned("g0", 1),)),
    (23, (enqueued(1, 0),)),
    (23, (joined(1, 0, "i0"),)),  # 25, by a cell
    (25, (claimed(1, 0, 0, "i0"),)),
    (26, (completed(1, 0, 0, "i0", 26),)),
    (24, (StreamClosed(step=1, micro_steps=1),)),
    (28, (opened(26),)),
    (29, (REDUCED,)),  # 30
    (30, (stepped(1),)),
]


def test_a_step_goes_back_to_the_dispatch_of_the_group_that_it_trained_last() -> None:
    way = walked(STORY, "31").back()
    assert [str(link.id) for link in way] == [
        "31.0", "30.0", "29.0", "27.0", "26.0", "24.0", "23.0", "19.0", "18.0", "16.0", "12.0", "9.0", "8.0", "5.0",
        "3.0",
    ]  # fmt: skip
    assert (way[0].kind, way[-1].kind, way[0].time) == ("OptimizerStepped", "GroupDispatched", 310)


def test_each_link_says_by_what_it_is_named_and_what_else_led_to_it() -> None:
    way = {str(link.id): link for link in walked(STORY, "31").back()}
    assert way["31.0"].by == ""
    assert way["26.0"].by == "claim"
    assert way["24.0"].by == "1 0"
    assert way["23.0"].by == SAID_SO
    assert [str(each.cause) for each in way["19.0"].also] == ["17.0", "14.1", "13.1"]
    assert [str(each.cause) for each in way["3.0"].also] == ["1.0"]


def test_a_reward_goes_back_over_its_own_commit() -> None:
    assert [str(link.id) for link in walked(STORY, "13.1").back()] == [
        "13.1",
        "13.0",
        "11.0",
        "7.0",
        "6.0",
        "4.0",
        "3.0",
    ]


def test_a_later_assessment_that_gives_no_reward_is_not_its_cause() -> None:
    story = [*STORY[:13], (11, (assessed("x0-0", designated=False),)), (11, (rewarded("x0-0"),))]
    assert str(walked(story, "15").back()[1].id) == "13.0"


def test_the_dispatch_itself_goes_back_to_what_made_it_due() -> None:
    assert [link.kind for link in walked(STORY, "3").back()] == ["GroupDispatched", "RunStarted"]


def test_a_loss_goes_back_to_the_process_that_was_lost_and_not_to_the_one_that_took_its_place() -> None:
    story = [STORY[0], (1, (registered(0, "i0"),)), (1, (registered(0, "i1"),)), (0, (lost(0, "i0"),))]
    assert [str(link.id) for link in walked(story, "4").back()] == ["4.0", "2.0", "1.0"]


def test_what_a_cell_had_heard_is_named_so_and_leads_nowhere_forward() -> None:
    walk = walked(STORY, "2")
    assert [(link.kind, link.by) for link in walk.back()] == [("CellRegistered", ""), ("RunStarted", HEARD)]
    assert all(fan.kind != "CellRegistered" for fan in walked(STORY, "1").forward())


def test_the_way_back_is_cut_where_it_was_told_to_be() -> None:
    assert [str(link.id) for link in walked(STORY, "31").back(most=3)] == ["31.0", "30.0", "29.0"]


def test_the_way_forward_counts_by_hop_and_type() -> None:
    fans = walked(STORY, "3", hops=3, shown=1).forward()
    assert [(fan.hop, fan.kind, fan.count, len(fan.first)) for fan in fans] == [
        (1, "ExecutionDispatched", 2, 1),
        (2, "LaunchGranted", 2, 1),
        (3, "ExecutionLaunched", 2, 1),
    ]
    assert str(fans[0].first[0][0]) == "4.0"


def test_an_execution_leads_to_its_step() -> None:
    fans = walked(STORY, "4", hops=20).forward()
    assert fans[-1].kind == "OptimizerStepped"
    assert [fan.hop for fan in fans if fan.kind == "ExecutionTerminated"] == [3]
    assert "x0-1" not in {thread.by for fan in fans for _, thread in fan.first}


def test_no_hops_are_no_way_forward() -> None:
    assert walked(STORY, "3", hops=0).forward() == ()


def test_a_route_that_moved_goes_back_to_the_cell_that_left() -> None:
    asked = RoleTransitionRequested(transition="t1", cell=0, instance="i0", to="train")
    moved = RouteMoved(execution="x0-0", from_cell=0, to_cell=1, reason="the cell left rollout")
    walk = walked([*STORY[:10], (10, (asked,)), (0, (moved,))], "12")
    assert [link.kind for link in walk.back()][:2] == ["RouteMoved", "RoleTransitionRequested"]
    assert [str(each.cause) for each in walk.back()[0].also] == ["10.0"]


def test_an_event_that_is_not_there_has_no_ways() -> None:
    walk = walked(STORY, "99")
    assert (walk.found, walk.back(), walk.forward()) == (False, (), ())


def test_every_event_of_a_run_has_a_way_back_that_ends() -> None:
    commits = [(max(0, place - 1), (event,)) for place, (_, event) in enumerate(a_run(), start=1)]
    for sequence in range(1, len(commits) + 1):
        way = walked(commits, str(sequence)).back()
        assert way[-1].kind in {"GroupDispatched", "RunStarted"}
        assert [link.id for link in way] == sorted((link.id for link in way), reverse=True)


@pytest.mark.parametrize("text", ["", "x", "0", "1.", "1.x", "-1", "1.2.3", "+1"])
def test_what_names_no_event_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"give SEQUENCE or SEQUENCE\.INDEX"):
        EventId.parse(text)


def test_events_are_written_as_they_are_read() -> None:
    assert str(EventId.parse("17.1")) == "17.1"
    assert str(EventId.parse("17")) == "17.0"


def test_a_fan_is_told_in_the_order_of_the_log() -> None:
    fans = walked(STORY, "3", hops=20).forward()
    assert [fan.hop for fan in fans] == sorted(fan.hop for fan in fans)
    assert all(isinstance(fan, Fan) for fan in fans)
