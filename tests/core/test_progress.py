"""The fold behind displays and summaries, over a hand-written run."""

from gyre.core.progress import Progress, evolve
from schemas.dispatch import ExecutionDispatched, ExecutionLaunched, ExecutionTerminated
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.rewards import GroupReady, Outcome
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import RunFinished
from schemas.training import (
    BatchOpened,
    Contribution,
    ExecutionStats,
    ExpertAgreement,
    GroupAssigned,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    ReductionOpened,
)

SECOND = 1_000_000_000
WEIGHTS = WeightsRef(digest="0" * 64, size=1, address="weights/x")


def told(*events: Event) -> Progress:
    state = Progress()
    for second, event in enumerate(events, start=1):
        state = evolve(state, second * SECOND, event)
    return state


def stats(execution: str, mask: int) -> ExecutionStats:
    return ExecutionStats(
        execution=execution,
        targets=3,
        ratio=1.0,
        mask=1 if mask else 0,
        loss=0.5,
        max_delta_log_p=0.25,
        k3=0.0,
        experts=ExpertAgreement(choices=8, overlap=0.75, top=0.5),
    )


def completed(place: int, claim: int) -> MicroStepCompleted:
    found = (stats("x0-0", 1), stats("x0-1", 0))
    return MicroStepCompleted(step=1, micro_step=place, cell=0, instance="i", claim=claim, stats=found, seconds=1.0)


def test_what_is_said_of_a_run_that_ended_does_not_make_it_longer() -> None:
    cell = CellRegistered(cell=0, instance="i", url="http://c", capacity=1, version=0)
    ended = told(cell, RunFinished(steps=1, dispatched=0, launched=0, terminated=0))
    later = evolve(ended, 500 * SECOND, CellLost(cell=0, instance="i", reason="silent"))
    assert (ended.seconds, later.seconds) == (1.0, 1.0)


def test_the_waterlevel_is_what_was_dispatched_and_has_not_terminated() -> None:
    dispatched = [
        ExecutionDispatched(execution=f"x0-{i}", group="g0", task="t", index=i, version=0, seed=1) for i in range(3)
    ]
    launched = ExecutionLaunched(execution="x0-0", group="g0", runner="r", token_digest="0" * 64, deadline_seconds=1.0)
    ended = ExecutionTerminated(
        execution="x0-0", group="g0", task="t", reason="timeout", stage="agent", exit_code=None, seconds=1.0, state=None
    )
    state = told(*dispatched, launched, ended)
    assert (state.dispatched, state.launched, state.terminated, state.waterlevel) == (3, 1, 1, 2)
    assert state.reasons == {"timeout": 1}


def test_a_cell_is_shown_moving_between_its_roles() -> None:
    registered = CellRegistered(cell=0, instance="i", url="http://h", capacity=1, version=0)
    asked = RoleTransitionRequested(transition="t1", cell=0, instance="i", to="train")
    done = RoleTransitionCompleted(transition="t1", cell=0, instance="i", to="train", version=0)
    assert told(registered).roles == {0: "rollout"}
    assert told(registered, asked).roles == {0: "moving"}
    assert told(registered, asked, done).roles == {0: "train"}


def test_a_cell_whose_move_was_rolled_back_is_shown_in_its_former_role() -> None:
    registered = CellRegistered(cell=0, instance="i", url="http://h", capacity=1, version=0)
    there = RoleTransitionRequested(transition="t1", cell=0, instance="i", to="train")
    done = RoleTransitionCompleted(transition="t1", cell=0, instance="i", to="train", version=0)
    back = RoleTransitionRequested(transition="t2", cell=0, instance="i", to="rollout")
    failed = RoleTransitionFailed(transition="t", cell=0, instance="i", phase="restore", reason="no room")
    assert told(registered, there, failed).roles == {0: "rollout"}
    assert told(registered, there, done, back, failed).roles == {0: "train"}
    assert told(registered, there, failed.model_copy(update={"instance": "other"})).roles == {0: "moving"}


def test_a_late_word_about_a_process_that_was_replaced_or_lost_says_nothing_about_its_cell() -> None:
    former, later = (CellRegistered(cell=0, instance=each, url="http://h", capacity=1, version=0) for each in "fl")
    asked = RoleTransitionRequested(transition="t1", cell=0, instance="f", to="train")
    done = RoleTransitionCompleted(transition="t1", cell=0, instance="f", to="train", version=0)
    lost = CellLost(cell=0, instance="f", reason="silent")
    for word in (asked, done, lost):
        assert told(former, later, word).roles == {0: "rollout"}
    assert told(former, lost, asked, done).roles == {0: "lost"}
    assert told(former, lost, later).roles == {0: "rollout"}


def test_a_step_sums_up_its_groups_and_counts_each_micro_step_once() -> None:
    outcomes = (
        Outcome(execution="x0-0", standing="valid", reward=1.0),
        Outcome(execution="x0-1", standing="valid", reward=0.0),
        Outcome(execution="x0-2", standing="excluded", reward=None),
    )
    state = told(
        GroupReady(group="g0", index=0, version=0, outcomes=outcomes),
        BatchOpened(step=1, version=0, groups=1),
        GroupAssigned(step=1, group="g0", version=0, staleness=0),
        MicroStepEnqueued(step=1, micro_step=0, kind="train", rows=(), tokens=0),
        completed(0, 7),
        completed(0, 9),
        ReductionOpened(
            step=1,
            epoch=1,
            members=(0,),
            instances=("i",),
            contributions=(Contribution(micro_step=0, cell=0, claim=9),),
        ),
        OptimizerStepped(
            step=1,
            version=1,
            weights=WEIGHTS,
            optimizer=WEIGHTS,
            loss=0.1,
            gradient_norm=2.0,
            clip_coefficient=0.5,
            learning_rate=1e-6,
            seconds=1.0,
        ),
    )
    (step,) = state.done
    assert (step.reward, step.enqueued, step.committed, step.targets, step.masked, step.executions) == (
        0.5,
        1,
        1,
        6,
        1,
        2,
    )
    assert step.seconds == 6.0
    assert state.ready == {}
    assert (state.valid, state.scored) == (2, 3)


def test_agreement_at_equal_weights_leaves_out_what_older_weights_sampled() -> None:
    ready = [
        GroupReady(group=group, index=0, version=0, outcomes=(Outcome(execution=name, standing="valid", reward=1.0),))
        for group, name in (("g0", "x0-0"), ("g1", "x0-1"))
    ]
    state = told(
        *ready,
        BatchOpened(step=1, version=1, groups=2),
        GroupAssigned(step=1, group="g0", version=1, staleness=0),
        GroupAssigned(step=1, group="g1", version=0, staleness=1),
        completed(0, 7),
    )
    (step,) = state.steps
    assert step.current == {"x0-0"}
    assert (step.targets, step.current_targets, step.current_max_delta_log_p) == (6, 3, 0.25)
    assert (step.current_choices, step.current_overlap, step.current_top) == (8, 6.0, 4.0)
