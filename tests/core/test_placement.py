"""Schedules other than the elastic one, and what options change: one rule a test (design §6; paper §2.2, §6.1)."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gyre.core.decider import Story
from gyre.core.plan import Plan
from gyre.core.scheduler import scheduler
from gyre.core.scheduler_state import Scheduler
from schemas import dispatch, roles, runs, training
from schemas.envelope import Event
from tests.core.world import (
    assigned,
    completed,
    failed,
    launched,
    published,
    ready,
    registered,
    rewarded,
    run_started,
    scored,
    stepped,
    terminated,
)

# 2 cells of 4 and an engine of 4; B = 2 groups of N = 2.
PLAN = Plan(
    steps=4,
    groups=2,
    executions=2,
    phi=0.0,
    mu=2,
    rho_min=0.5,
    tau_seconds=3.0,
    cells=2,
    tasks=("ape", "bee", "cat"),
    seed=7,
    order_seed=7,
    standalone=1,
    kind="colocate",
)
ASYNC = replace(PLAN, kind="async", trainers=1, phi=1.0, mu=1)
CELLS = (registered(0, "core"), registered(1, "sat"), registered(2, "alone"))
CORE_TRAINS = roles.RoleTransitionRequested(transition="t1", cell=0, instance="core", to="train")
SATELLITE_TRAINS = roles.RoleTransitionRequested(transition="t2", cell=1, instance="sat", to="train")


def _done(groups: Iterable[int]) -> list[Event]:
    """These groups' executions launched and ended, the groups became ready."""
    events: list[Event] = []
    for group in groups:
        for place in (0, 1):
            events += [launched(f"x{group}-{place}"), terminated(f"x{group}-{place}")]
        events.append(ready(f"g{group}"))
    return events


def _started(plan: Plan) -> Story[Scheduler]:
    return scheduler(plan).given(run_started(), *CELLS).settle()


def _said(story: Story[Scheduler], kind: type[Event]) -> list[Event]:
    return [event for event in story.said() if isinstance(event, kind)]


def _fired(story: Story[Scheduler]) -> Story[Scheduler]:
    return story.settle().when(runs.TimerFired(timer=story.settle().state.supply.timer))


# colocate -------------------------------------------------------------------------------------------------------------


def test_a_pool_switches_as_one_once_the_engines_beside_it_cover_what_is_left() -> None:
    story = _fired(_started(PLAN).when(*_done([0]), launched("x1-0"), launched("x1-1")))
    assert story.state.dispatch.waterlevel == 6  # the standalone engine takes 4
    assert _said(story, roles.RoleTransitionRequested) == []
    both = story.settle().when(terminated("x1-0"), terminated("x1-1"))
    assert _said(both, roles.RoleTransitionRequested) == [CORE_TRAINS, SATELLITE_TRAINS]


def test_a_pool_alone_waits_until_nothing_runs() -> None:
    plan = replace(PLAN, standalone=0)
    story = scheduler(plan).given(run_started(), *CELLS[:2]).settle()
    story = _fired(story.when(*_done(range(3)), launched("x3-0"), launched("x3-1"), terminated("x3-0")))
    assert _said(story, roles.RoleTransitionRequested) == []
    last = story.settle().when(terminated("x3-1"))
    assert _said(last, roles.RoleTransitionRequested) == [CORE_TRAINS, SATELLITE_TRAINS]


def _pool_training() -> Story[Scheduler]:
    story = _fired(_started(PLAN).when(*_done(range(4))))
    return story.settle().when(completed(CORE_TRAINS), completed(SATELLITE_TRAINS)).settle()


def test_a_cell_of_the_pool_that_was_lost_goes_where_the_others_are() -> None:
    back = _pool_training().when(roles.CellLost(cell=1, instance="sat", reason="silent"), registered(1, "sat-2"))
    again = roles.RoleTransitionRequested(transition="t3", cell=1, instance="sat-2", to="train")
    assert _said(back, roles.RoleTransitionRequested) == [again]


def test_the_whole_pool_returns_after_the_burst_and_only_then_is_dispatched() -> None:
    story = _pool_training().when(*(assigned(f"g{group}", 1) for group in range(4)), stepped(1))
    story.then()  # in mid-burst everybody stays
    satellite = roles.RoleTransitionRequested(transition="t3", cell=1, instance="sat", to="rollout")
    core = roles.RoleTransitionRequested(transition="t4", cell=0, instance="core", to="rollout")
    story = story.when(stepped(2)).then(satellite).when(completed(satellite), published(2))
    said = story.said()
    assert said[:2] == (training.BurstEnded(burst=1, version=2, retained=False), core)
    assert len([event for event in said if isinstance(event, dispatch.GroupDispatched)]) == 4
    assert _said(story.settle().when(completed(core)), roles.RoleTransitionRequested) == []


# async ----------------------------------------------------------------------------------------------------------------


def test_trainers_go_to_training_before_anything_else_and_never_serve() -> None:
    story = scheduler(ASYNC).given(run_started(), CELLS[0])
    assert story.due() == (CORE_TRAINS,)
    whole = story.when(*CELLS[1:]).settle()
    assert whole.state.cells.capacity == 8  # cell 1 and the standalone engine
    assert len([event for _, event in whole.log if isinstance(event, dispatch.LaunchGranted)]) == 8


def test_a_trainer_stays_after_the_publication_and_the_next_groups_are_dispatched() -> None:
    story = _started(ASYNC).when(completed(CORE_TRAINS), *_done(range(2)), assigned("g0", 1), assigned("g1", 1))
    said = story.settle().when(stepped(1)).settle().when(published(1)).said()
    assert said[0] == training.BurstEnded(burst=1, version=1, retained=True)
    groups = [event for event in said if isinstance(event, dispatch.GroupDispatched)]
    assert [(group.index, group.version) for group in groups] == [(4, 1), (5, 1)]


def test_several_trainers_are_sent_at_once_and_a_burst_ends_while_they_train() -> None:
    plan = replace(ASYNC, trainers=2)
    story = scheduler(plan).given(run_started(), *CELLS)
    assert _said(story, roles.RoleTransitionRequested) == [CORE_TRAINS, SATELLITE_TRAINS]
    story = story.settle().when(completed(CORE_TRAINS), completed(SATELLITE_TRAINS), *_done(range(2)))
    story = story.settle().when(assigned("g0", 1), assigned("g1", 1), stepped(1), published(1))
    assert training.BurstEnded(burst=1, version=1, retained=True) in story.said()


def test_a_trainer_that_starts_anew_trains_again_and_one_that_could_not_rests_first() -> None:
    story = _started(ASYNC).when(completed(CORE_TRAINS), registered(0, "core-2"))
    again = roles.RoleTransitionRequested(transition="t2", cell=0, instance="core-2", to="train")
    story = story.then(again).when(failed(again)).then(runs.TimerSet(timer="retry-t2", seconds=2.0))
    third = again.model_copy(update={"transition": "t3"})
    story.when(runs.TimerFired(timer="retry-t2")).then(third)


def test_an_evaluation_under_a_fixed_split_leaves_the_trainers_where_they_are() -> None:
    plan = replace(ASYNC, evaluation_episodes=4, steps=1)
    story = scheduler(plan).given(run_started(), *CELLS).then(CORE_TRAINS).when(completed(CORE_TRAINS))
    story = story.then(runs.EvaluationStarted(evaluation="e0", version=0, episodes=4)).when(scored("e0", 0))
    story = story.settle().when(*_done(range(2)), assigned("g0", 1), assigned("g1", 1), stepped(1), published(1))
    last = runs.EvaluationStarted(evaluation="e1", version=1, episodes=4)
    story = story.then(training.BurstEnded(burst=1, version=1, retained=True), last).when(scored("e1", 1))
    story.then(runs.RunFinished(steps=1, dispatched=4, launched=4, terminated=4))


# streaming and dispatch -----------------------------------------------------------------------------------------------


def test_without_streaming_a_burst_waits_for_all_of_its_groups() -> None:
    plan = replace(PLAN, kind="elastic", stream=False, rho_min=0.1)
    story = _started(plan).when(*_done(range(3)))
    assert _said(story, runs.TimerSet) == []
    whole = story.when(*_done([3]))
    assert _said(whole, runs.TimerSet) == [runs.TimerSet(timer="supply-1", seconds=3.0)]
    assert _said(_fired(whole), roles.RoleTransitionRequested) == [CORE_TRAINS]


def test_without_streaming_satellites_come_while_the_burst_has_groups_that_nobody_took() -> None:
    plan = replace(PLAN, kind="elastic", stream=False)
    story = _fired(_started(plan).when(*_done(range(4)))).settle().when(completed(CORE_TRAINS))
    assert _said(story, runs.TimerSet) == [runs.TimerSet(timer="supply-2", seconds=3.0)]
    taken = story.settle().when(*(assigned(f"g{group}", 1 + group // 2) for group in range(2)), stepped(1))
    assert taken.settle().state.supply.timer != ""  # the next step's groups wait
    spent = taken.settle().when(assigned("g2", 2), assigned("g3", 2))
    assert spent.settle().state.supply.timer == ""


def test_continuous_dispatch_replaces_each_group_that_became_ready() -> None:
    plan = replace(ASYNC, dispatching="continuous")  # Q_c = 4 of 8 groups
    story = _started(plan).when(completed(CORE_TRAINS))
    assert story.state.dispatch.groups == 4
    story = story.when(*_done([1])).settle()
    assert story.state.dispatch.groups == 5
    story = story.when(assigned("g1", 1)).settle()
    assert story.state.dispatch.groups == 5  # it was replaced already
    assert story.when(*_done([0, 2, 3, 4])).settle().state.dispatch.groups == 8  # S B, and no more


# launch order ---------------------------------------------------------------------------------------------------------


ONE_TASK_EACH = replace(PLAN, kind="elastic", standalone=0, cells=1, launch_order="longest_predicted", steps=8, phi=1.0)


def _granted(story: Story[Scheduler]) -> list[str]:
    return [event.execution for event in story.said() if isinstance(event, dispatch.LaunchGranted)]


def test_a_group_that_shows_to_be_long_goes_on_first_and_one_that_is_short_waits_for_those_unknown() -> None:
    one_place = registered(0, "core", capacity=1)
    story = scheduler(ONE_TASK_EACH).given(run_started(), one_place).settle()
    granted = []
    for name, seconds in (("x0-0", 10), ("x1-0", 90), ("x1-1", 90), ("x2-0", 50)):
        story = story.when(launched(name))
        ended = story.when(terminated(name, seconds=seconds))
        granted += _granted(ended)
        story = ended.settle()
    # g0: 10 is not above the mean of 10. g1: (50 + 90) / 2 is above 50. g2: (60 + 50) / 2 is not above 60.
    assert granted == ["x1-0", "x1-1", "x2-0", "x3-0"]


def test_what_is_dispatched_later_goes_before_by_what_its_task_took() -> None:
    plan = replace(ONE_TASK_EACH, tasks=("ape", "bee"), groups=1, steps=6, phi=0.0, mu=2)
    durations = {plan.task_number(0): 10.0, plan.task_number(1): 90.0}
    story = scheduler(plan).given(run_started(), CELLS[0]).settle()
    for group in (0, 1):
        for place in (0, 1):
            name = f"x{group}-{place}"
            story = story.when(launched(name), terminated(name, seconds=durations[plan.task_number(group)]))
        story = story.when(ready(f"g{group}")).settle()
    full = registered(0, "core-2", capacity=1)  # one place only
    story = story.when(assigned("g0", 1), assigned("g1", 2), stepped(1), stepped(2), full, published(2)).settle()
    slower = next(index for index in (2, 3) if plan.task_number(index) == plan.task_number(1))
    granted = [event.execution for _, event in story.log if isinstance(event, dispatch.LaunchGranted)]
    assert granted[-1] == f"x{slower}-0"


def test_what_was_cancelled_or_never_began_says_nothing_about_durations() -> None:
    story = scheduler(ONE_TASK_EACH).given(run_started(), CELLS[0]).settle()
    story = story.when(launched("x0-0"), terminated("x0-0", reason="cancelled", seconds=99))
    assert story.state.dispatch.pace.count == 0


# oversampling ---------------------------------------------------------------------------------------------------------


OVER = replace(PLAN, kind="elastic", standalone=0, cells=1, oversample=2, mu=1, phi=0.0)  # 2 groups of 2 + 2


def test_a_surplus_is_dispatched_and_the_group_says_so() -> None:
    said = scheduler(OVER).given(run_started()).said()
    group = said[0]
    assert isinstance(group, dispatch.GroupDispatched)
    assert (group.executions, group.surplus) == (2, 2)
    assert [event.execution for event in said[1:5]] == ["x0-0", "x0-1", "x0-2", "x0-3"]  # type: ignore[union-attr]


def _over() -> Story[Scheduler]:
    """The four executions of g0 are granted, those of g1 wait."""
    return scheduler(OVER).given(run_started(), CELLS[0]).settle()


def test_what_is_left_of_a_group_is_cancelled_once_n_are_validly_scored() -> None:
    story = _over().when(*(launched(f"x0-{place}") for place in range(4)))
    story = story.when(terminated("x0-1"), rewarded("x0-1"), rewarded("x0-1")).settle()  # said twice: counts once
    assert _said(story, dispatch.CancellationRequested) == []
    enough = story.when(terminated("x0-3"), rewarded("x0-3"))
    wanted = [dispatch.CancellationRequested(execution=each) for each in ("x0-0", "x0-2")]
    assert _said(enough, dispatch.CancellationRequested) == wanted


def test_a_placeholder_is_no_reason_to_cancel_anything() -> None:
    story = _over().when(*(launched(f"x0-{place}") for place in range(4)))
    story = story.when(terminated("x0-1"), rewarded("x0-1"), terminated("x0-3"), rewarded("x0-3", placeholder=True))
    assert _said(story, dispatch.CancellationRequested) == []


def test_a_queued_surplus_is_cancelled_without_a_grant_and_still_counts_once_in_p_and_f() -> None:
    plan = replace(OVER, executions=2, groups=1)
    one = registered(0, "core", capacity=2)
    story = scheduler(plan).given(run_started(), one).settle()
    for name in ("x0-0", "x0-1"):
        story = story.when(launched(name), terminated(name))
    # both places are free again and granted before the scores are there, unless the scores come first
    story = story.when(rewarded("x0-0"), rewarded("x0-1"))
    wanted = tuple(dispatch.CancellationRequested(execution=each) for each in ("x0-2", "x0-3"))
    story = story.then(*wanted)
    for name in ("x0-2", "x0-3"):
        story = story.when(launched(name), launched(name)).settle().when(terminated(name, reason="cancelled"))
    counts = story.when(terminated("x0-3")).state.dispatch
    assert (counts.dispatched, counts.launched, counts.terminated) == (4, 4, 4)


def test_a_granted_surplus_that_is_cancelled_holds_its_place_until_it_has_ended() -> None:
    story = _over().when(launched("x0-0"), launched("x0-1"), launched("x0-2"))  # x0-3 is granted
    story = story.when(terminated("x0-0"), rewarded("x0-0"), terminated("x0-1"), rewarded("x0-1")).settle()
    taken = story.state.dispatch.granted + story.state.dispatch.running
    assert taken == 4  # x0-2 ending, x0-3 about to, two of g1 in the places that were freed
    ended = story.when(launched("x0-3"), terminated("x0-3", reason="cancelled"))
    assert _granted(ended) == ["x1-2"]


def test_a_run_with_a_surplus_ends_when_the_last_of_it_has_ended() -> None:
    plan = replace(OVER, steps=1, groups=1)
    story = scheduler(plan).given(run_started(), CELLS[0]).settle()
    story = story.when(*(launched(f"x0-{place}") for place in range(4)))
    for name in ("x0-0", "x0-1"):
        story = story.when(terminated(name), rewarded(name))
    story = _fired(story.settle().when(ready("g0"), terminated("x0-2", reason="cancelled")))
    story = story.when(terminated("x0-3", reason="cancelled")).settle().when(completed(CORE_TRAINS), assigned("g0", 1))
    story = story.when(stepped(1), published(1)).settle()
    assert story.log[-1][1] == runs.RunFinished(steps=1, dispatched=4, launched=4, terminated=4)


@pytest.mark.parametrize("kind", ["elastic", "colocate", "async"])
def test_scores_change_nothing_where_nothing_is_dispatched_beyond_n(kind: str) -> None:
    plan = replace(PLAN, kind=kind, trainers=int(kind == "async"))  # type: ignore[arg-type]
    story = _started(plan)
    assert story.when(rewarded("x0-0")).state == story.state
