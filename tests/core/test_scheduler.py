"""One rule of design §6 a test: what happened, and exactly what the scheduler says to it."""

from collections.abc import Iterable
from dataclasses import replace

from gyre.core.decider import Story
from gyre.core.plan import Plan
from gyre.core.scheduler import scheduler
from gyre.core.scheduler_state import Scheduler, armed
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
    run_started,
    scored,
    stepped,
    terminated,
)

# 2 cells of 4; B = 2 groups of N = 2; 6 groups at the start, 4 at each publication but the last.
PLAN = Plan(
    steps=6,
    groups=2,
    executions=2,
    phi=1.0,
    mu=2,
    rho_min=0.5,
    tau_seconds=3.0,
    cells=2,
    tasks=("ape", "bee", "cat"),
    seed=7,
    order_seed=7,
)
CORE, SATELLITE = registered(0, "core"), registered(1, "sat")
SUPPLY = runs.TimerSet(timer="supply-1", seconds=3.0)
CORE_TRAINS = roles.RoleTransitionRequested(transition="t1", cell=0, instance="core", to="train")


def _executions(first: int, last: int) -> list[str]:
    return [f"x{group}-{index}" for group in range(first, last + 1) for index in (0, 1)]


def _done(groups: Iterable[int]) -> list[Event]:
    """These groups' executions launched and ended, the groups became ready."""
    events: list[Event] = []
    for group in groups:
        for execution in _executions(group, group):
            events += [launched(execution), terminated(execution)]
        events.append(ready(f"g{group}"))
    return events


def _started(plan: Plan = PLAN) -> Story[Scheduler]:
    return scheduler(plan).given(run_started(), CORE, SATELLITE).settle()


def _core_training() -> Story[Scheduler]:
    """Groups 0-3 done, the supply held, the core went to training; g4 and g5 are running."""
    story = _started().when(*_done(range(4))).settle()
    return story.when(runs.TimerFired(timer="supply-1")).then(CORE_TRAINS).when(completed(CORE_TRAINS)).settle()


def _said(story: Story[Scheduler], kind: type[Event]) -> list[Event]:
    return [event for event in story.said() if isinstance(event, kind)]


def test_nothing_is_said_before_the_run_starts() -> None:
    scheduler(PLAN).given(CORE, SATELLITE).then()


def test_a_run_starts_with_phi_plus_mu_batches_each_group_before_its_executions() -> None:
    said = scheduler(PLAN).given(run_started()).said()
    assert len(said) == 6 + 12
    assert said[0] == dispatch.GroupDispatched(group="g0", index=0, task=PLAN.task(0), version=0, executions=2)
    assert [event.execution for event in said[1:3]] == ["x0-0", "x0-1"]  # type: ignore[union-attr]


def test_nothing_is_launched_until_every_cell_has_come() -> None:
    story = scheduler(PLAN).given(run_started(), CORE)
    assert _said(story, dispatch.LaunchGranted) == []
    assert len(_said(story.when(SATELLITE), dispatch.LaunchGranted)) == 8


def test_launches_fill_the_capacity_oldest_first_and_go_on_as_executions_end() -> None:
    story = _started()
    granted = [event.execution for _, event in story.log if isinstance(event, dispatch.LaunchGranted)]
    assert granted == _executions(0, 3)
    one = launched("x0-0")
    story.when(one).then()  # a granted execution held its place already
    story.when(one, terminated("x0-0")).then(dispatch.LaunchGranted(execution="x4-0"))


def test_a_second_termination_frees_no_second_place() -> None:
    story = _started().when(launched("x0-0"), terminated("x0-0")).settle()
    story.when(terminated("x0-0")).then()


def test_the_dispatch_goes_on_where_it_was_interrupted() -> None:
    whole = scheduler(PLAN).given(run_started()).said()
    for said in range(len(whole)):
        scheduler(PLAN).given(run_started(), *whole[:said]).then(*whole[said:])


def test_the_supply_must_hold_for_tau_before_the_core_trains() -> None:
    story = _started().when(*_done(range(2)))
    assert _said(story, runs.TimerSet) == [SUPPLY]
    full = story.settle().when(*_done(range(2, 4))).settle()
    assert _said(full, roles.RoleTransitionRequested) == []
    full.when(runs.TimerFired(timer="supply-1")).then(CORE_TRAINS)


def test_a_cell_trains_only_when_the_rest_covers_the_waterlevel() -> None:
    story = _started().when(*_done(range(3))).settle().when(runs.TimerFired(timer="supply-1"))
    assert story.state.dispatch.waterlevel == 6  # 4 places would remain
    assert _said(story, roles.RoleTransitionRequested) == []
    five_left = story.settle().when(launched("x3-0"), terminated("x3-0"))
    assert _said(five_left, roles.RoleTransitionRequested) == []
    four_left = five_left.settle().when(launched("x3-1"), terminated("x3-1"))
    assert _said(four_left, roles.RoleTransitionRequested) == [CORE_TRAINS]


def test_a_timer_that_another_has_replaced_changes_nothing() -> None:
    story = _core_training()
    story.when(runs.TimerFired(timer="supply-1")).then()


def test_a_leaving_cell_is_out_of_the_capacity_at_once() -> None:
    before = _started().when(*_done(range(4))).settle()
    assert before.state.cells.capacity == 8
    asked = before.when(runs.TimerFired(timer="supply-1")).settle()
    assert asked.state.cells.capacity == 4


def test_satellites_follow_the_core_after_a_supply_of_their_own() -> None:
    story = _core_training()
    assert story.state.supply.timer == "supply-2"  # g0..g3 are ready, none is in the batch
    story.when(runs.TimerFired(timer="supply-2")).then()  # 4 executions still need the satellite
    idle = story.when(runs.TimerFired(timer="supply-2"), *_done((4, 5)))
    assert _said(idle, roles.RoleTransitionRequested) == [
        roles.RoleTransitionRequested(transition="t2", cell=1, instance="sat", to="train")
    ]


def test_a_batch_that_needs_no_more_groups_draws_no_satellite() -> None:
    story = _core_training().when(*_done((4, 5)), assigned("g0", 1), assigned("g1", 1))
    assert story.state.supply.timer == ""
    story.when(runs.TimerFired(timer="supply-2")).then()


def test_the_supply_is_counted_afresh_when_a_batch_starts() -> None:
    story = _core_training()
    opened = story.when(training.BatchOpened(step=1, version=0, groups=2))
    opened.then(runs.TimerSet(timer="supply-3", seconds=3.0))


def _first_burst_trained() -> Story[Scheduler]:
    """Both steps of the first burst done by core and satellite; g4 and g5 are ready and in no batch."""
    story = _core_training().when(*_done((4, 5)), runs.TimerFired(timer="supply-2")).settle()
    joined = roles.RoleTransitionRequested(transition="t2", cell=1, instance="sat", to="train")
    story = story.when(completed(joined), assigned("g0", 1), assigned("g1", 1), stepped(1)).settle()
    return story.when(assigned("g2", 2), assigned("g3", 2), stepped(2))


BACK = roles.RoleTransitionRequested(transition="t3", cell=1, instance="sat", to="rollout")


def test_satellites_return_after_the_last_update_of_a_burst_and_not_before() -> None:
    story = _first_burst_trained()
    assert [event for _, event in story.log if event == BACK] == []
    story.then(BACK).when(completed(BACK)).then()


def test_the_core_is_kept_when_ready_groups_wait_and_the_rest_has_room_for_the_next_dispatch() -> None:
    roomy = replace(PLAN, executions=2, steps=6)
    story = scheduler(roomy).given(run_started(), CORE, registered(1, "sat", capacity=16)).settle()
    story = story.when(*_done(range(6))).settle().when(runs.TimerFired(timer="supply-1")).settle()
    story = story.when(completed(CORE_TRAINS)).settle()
    story = story.when(*(assigned(f"g{group}", 1 + group // 2) for group in range(4)), stepped(1), stepped(2))
    ended = training.BurstEnded(burst=1, version=2, retained=True)
    said = story.settle().when(published(2)).said()
    assert said[0] == ended
    assert isinstance(said[1], dispatch.GroupDispatched)


def test_a_core_that_is_not_kept_returns_before_the_next_groups_are_dispatched() -> None:
    story = _first_burst_trained().then(BACK).when(completed(BACK), published(2))
    said = story.said()
    assert said[:2] == (
        training.BurstEnded(burst=1, version=2, retained=False),  # w + mu N B = 0 + 8 > 4
        roles.RoleTransitionRequested(transition="t4", cell=0, instance="core", to="rollout"),
    )
    groups = [event for event in said if isinstance(event, dispatch.GroupDispatched)]
    assert [(group.index, group.version) for group in groups] == [(6, 2), (7, 2), (8, 2), (9, 2)]


def test_no_satellite_joins_a_core_that_has_still_to_leave() -> None:
    story = _first_burst_trained().then(BACK).when(completed(BACK), published(2)).settle()
    leaving = roles.RoleTransitionRequested(transition="t4", cell=0, instance="core", to="rollout")
    rested = story.when(failed(leaving)).then(runs.TimerSet(timer="retry-t4", seconds=2.0))
    rested.when(*_done(range(6, 10))).then()  # supply and room are there, but not for a batch of this core
    again = leaving.model_copy(update={"transition": "t5"})
    assert rested.when(runs.TimerFired(timer="retry-t4")).due() == (again,)


def test_a_failed_transition_is_asked_again_after_a_pause() -> None:
    story = _started().when(*_done(range(4))).settle().when(runs.TimerFired(timer="supply-1")).then(CORE_TRAINS)
    resting = story.when(failed(CORE_TRAINS)).then(runs.TimerSet(timer="retry-t1", seconds=2.0))
    again = resting.when(runs.TimerFired(timer="retry-t1")).then(runs.TimerSet(timer="supply-2", seconds=3.0))
    again.when(runs.TimerFired(timer="supply-2")).then(CORE_TRAINS.model_copy(update={"transition": "t2"}))


def test_a_lost_cell_counts_nowhere_until_it_comes_back_under_a_new_instance() -> None:
    story = _started().when(roles.CellLost(cell=1, instance="sat", reason="silent"))
    assert story.state.cells.capacity == 4
    late = roles.CellLost(cell=1, instance="sat", reason="silent")
    back = story.when(registered(1, "sat-2"), late)
    assert back.state.cells.capacity == 8


def test_a_satellite_gives_up_training_when_a_dead_cell_leaves_too_few_engines_for_what_runs() -> None:
    plan = replace(PLAN, cells=3)
    third = registered(2, "third")
    story = scheduler(plan).given(run_started(), CORE, SATELLITE, third).settle().when(*_done(range(4))).settle()
    story = story.when(runs.TimerFired(timer="supply-1")).then(CORE_TRAINS).when(completed(CORE_TRAINS)).settle()
    satellite = roles.RoleTransitionRequested(transition="t2", cell=1, instance="sat", to="train")
    story = story.when(satellite, completed(satellite))
    running = [launched(execution) for execution in _executions(4, 4)]
    lost = roles.CellLost(cell=2, instance="third", reason="no heartbeat")
    back = roles.RoleTransitionRequested(transition="t3", cell=1, instance="sat", to="rollout")
    assert back not in story.when(*running).said()
    assert back in story.when(*running, lost).said()


def test_a_core_that_died_in_training_trains_again_and_its_batch_is_its_supply() -> None:
    story = _core_training().when(*_done((4, 5)), assigned("g0", 1), assigned("g1", 1)).settle()
    reborn = story.when(roles.CellLost(cell=0, instance="core", reason="silent"), registered(0, "core-2"))
    timed = reborn.then(runs.TimerSet(timer="supply-3", seconds=3.0))
    timed.when(runs.TimerFired(timer="supply-3")).then(
        roles.RoleTransitionRequested(transition="t2", cell=0, instance="core-2", to="train")
    )


def test_an_overtaken_instance_says_nothing_that_counts() -> None:
    story = _started().when(*_done(range(4))).settle().when(runs.TimerFired(timer="supply-1")).then(CORE_TRAINS)
    reborn = story.when(registered(0, "core-2")).settle()
    assert reborn.when(completed(CORE_TRAINS)).state.cells == reborn.state.cells


EVALUATED = replace(PLAN, steps=2, evaluation_episodes=4)
FIRST = runs.EvaluationStarted(evaluation="e0", version=0, episodes=4)


def test_version_zero_is_evaluated_before_anything_is_dispatched() -> None:
    scheduler(EVALUATED).given(run_started(), CORE).then()
    story = scheduler(EVALUATED).given(run_started(), CORE, SATELLITE).then(FIRST)
    assert isinstance(story.when(scored("e0", 0)).due()[0], dispatch.GroupDispatched)


def test_a_run_ends_with_the_core_back_in_rollout_and_the_last_version_evaluated() -> None:
    story = scheduler(EVALUATED).given(run_started(), CORE, SATELLITE, FIRST, scored("e0", 0)).settle()
    story = story.when(*_done(range(4))).settle().when(runs.TimerFired(timer="supply-1")).then(CORE_TRAINS)
    story = story.when(completed(CORE_TRAINS), stepped(1), stepped(2), published(2))
    back = roles.RoleTransitionRequested(transition="t2", cell=0, instance="core", to="rollout")
    story = story.then(training.BurstEnded(burst=1, version=2, retained=False), back)
    last = runs.EvaluationStarted(evaluation="e2", version=2, episodes=4)
    story = story.when(completed(back)).then(last).when(scored("e2", 2))
    story.then(runs.RunFinished(steps=2, dispatched=8, launched=8, terminated=8)).then()


def test_without_evaluation_a_run_ends_as_soon_as_the_last_burst_has() -> None:
    story = scheduler(replace(PLAN, steps=2)).given(run_started(), CORE, SATELLITE).settle()
    story = story.when(*_done(range(4))).settle().when(runs.TimerFired(timer="supply-1")).then(CORE_TRAINS)
    story.when(completed(CORE_TRAINS), stepped(1), stepped(2), published(2)).then(
        training.BurstEnded(burst=1, version=2, retained=False),
        runs.RunFinished(steps=2, dispatched=8, launched=8, terminated=8),
    )


def test_a_burst_is_ended_before_its_version_is_evaluated_also_after_the_core_died() -> None:
    story = scheduler(EVALUATED).given(run_started(), CORE, SATELLITE, FIRST, scored("e0", 0)).settle()
    story = story.when(*_done(range(4))).settle().when(runs.TimerFired(timer="supply-1")).then(CORE_TRAINS)
    story = story.when(completed(CORE_TRAINS), stepped(1), stepped(2), registered(0, "core-2"), published(2))
    story.then(
        training.BurstEnded(burst=1, version=2, retained=False),
        runs.EvaluationStarted(evaluation="e2", version=2, episodes=4),
    )


def test_an_evaluation_in_between_takes_the_core_back_and_holds_the_next_dispatch() -> None:
    plan = replace(PLAN, evaluation_episodes=4, evaluation_every=2)
    story = scheduler(plan).given(run_started(), CORE, SATELLITE, FIRST, scored("e0", 0)).settle()
    story = story.when(*_done(range(6))).settle().when(runs.TimerFired(timer="supply-1")).then(CORE_TRAINS)
    story = story.when(completed(CORE_TRAINS), stepped(1), stepped(2), published(2))
    back = roles.RoleTransitionRequested(transition="t2", cell=0, instance="core", to="rollout")
    story = story.then(training.BurstEnded(burst=1, version=2, retained=False), back)
    story = story.when(completed(back)).then(runs.EvaluationStarted(evaluation="e2", version=2, episodes=4))
    assert isinstance(story.when(scored("e2", 2)).due()[0], dispatch.GroupDispatched)


def test_an_aborted_step_ends_all_deciding() -> None:
    story = scheduler(PLAN).given(run_started(), training.StepAborted(step=1, micro_step=0, reason="poison"))
    story.then()


def test_timers_that_still_matter_are_named_for_a_new_shell() -> None:
    story = _started().when(*_done(range(2))).settle()
    assert armed(PLAN, story.state) == (("supply-1", 3.0),)
    fired = story.when(runs.TimerFired(timer="supply-1"))
    assert armed(PLAN, fired.state) == ()


def test_a_decision_names_what_made_it_due() -> None:
    story = _started().when(launched("x0-0"), terminated("x0-0"))
    decision = story.decider.decide(story.state)[0]
    assert (decision.subject, decision.correlation) == (("execution", "x4-0", "granted"), "x4-0")
    assert decision.causation == story.sequence


def _overtaken(plan: Plan) -> list[dispatch.GroupDispatched]:
    """What is dispatched after a burst's end, when the next burst is published as soon as the first group is said."""
    late = replace(plan, steps=4, mu=1, phi=0.0)
    story = _started(late).when(*_done(range(2)), stepped(1), published(1))
    while not isinstance(first := story.due()[0], dispatch.GroupDispatched):
        story = story.when(first)
    later = story.when(first, stepped(2), published(2)).said()
    return [first, *(event for event in later if isinstance(event, dispatch.GroupDispatched))]


def test_a_dispatch_goes_by_its_bursts_version_even_if_the_next_one_is_published_meanwhile() -> None:
    assert [(event.group, event.version) for event in _overtaken(PLAN)] == [("g2", 1), ("g3", 1), ("g4", 2), ("g5", 2)]


def test_recorded_runs_without_the_choice_go_by_the_newest_version_as_they_did() -> None:
    before = _overtaken(replace(PLAN, group_version="published"))
    assert [(event.group, event.version) for event in before] == [("g2", 1), ("g3", 2), ("g4", 2), ("g5", 2)]


def test_a_cell_that_is_none_of_this_runs_changes_nothing_whatever_its_number() -> None:
    """An engine beyond the configured ones would be launched on, and a huge number would fill the memory."""
    whole = scheduler(PLAN)
    known: tuple[Event, ...] = (run_started(), CORE, SATELLITE)
    state = whole.initial
    for sequence, event in enumerate(known, 1):
        state = whole.evolve(state, sequence, event)
    for index in (2, 3, 2**62):
        assert whole.evolve(state, 4, registered(index, "stray")) == state
    wider = scheduler(replace(PLAN, standalone=1))
    assert wider.evolve(state, 4, registered(2, "spare")).cells.capacity == state.cells.capacity + 4
