"""What a cell does next, told as stories: what the log says against what the process holds."""

from dataclasses import replace

from gyre.core.cell import Held, View, batch_loss, choose, evolve, owes
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.roles import (
    CellLost,
    CellRegistered,
    RoleTransitionCompleted,
    RoleTransitionFailed,
    RoleTransitionRequested,
)
from schemas.runs import EvaluationScored, EvaluationStarted, RunStarted
from schemas.training import (
    BatchOpened,
    CellJoined,
    Contribution,
    ContributionDiscarded,
    ExecutionStats,
    GradientReduced,
    JoinWindowClosed,
    MicroStepClaimed,
    MicroStepCompleted,
    MicroStepEnqueued,
    OptimizerStepped,
    ReductionOpened,
    StreamClosed,
    WeightsPublished,
)

WEIGHTS = WeightsRef(digest="0" * 64, size=1, address="weights/x")
STARTED = RunStarted(
    config={}, config_digest="0" * 64, seed=0, code_version="0", weights=WEIGHTS, tasks=("t",), heldout=("h",)
)
CORE = Held(0, "i0", engine_version=0, trainer_version=-1)
SATELLITE = Held(1, "i1", engine_version=0, trainer_version=-1)


def registered(cell: int, instance: str | None = None) -> CellRegistered:
    return CellRegistered(cell=cell, instance=instance or f"i{cell}", url="http://h", capacity=1, version=0)


def asked(cell: int) -> RoleTransitionRequested:
    return RoleTransitionRequested(transition=f"t{cell}", cell=cell, instance=f"i{cell}", to="train")


def trains(cell: int) -> RoleTransitionCompleted:
    return RoleTransitionCompleted(transition=f"t{cell}", cell=cell, instance=f"i{cell}", to="train", version=0)


def joined(cell: int) -> CellJoined:
    return CellJoined(step=1, cell=cell, instance=f"i{cell}", version=0)


def stepped(step: int) -> OptimizerStepped:
    return OptimizerStepped(
        step=step,
        version=step,
        weights=WEIGHTS,
        optimizer=WEIGHTS,
        loss=0.0,
        gradient_norm=0.0,
        clip_coefficient=1.0,
        learning_rate=1e-6,
        seconds=0.0,
    )


def told(*events: Event, steps: int = 4, burst: int = 2) -> View:
    view = View(steps=steps, burst=burst)
    for sequence, event in enumerate(events, start=1):
        view = evolve(view, sequence, event)
    return view


BATCH = (STARTED, registered(0), registered(1), trains(0), BatchOpened(step=1, version=0, groups=1))
ENQUEUED = MicroStepEnqueued(step=1, micro_step=0, kind="train", rows=(), tokens=0)
CLAIMED = MicroStepClaimed(step=1, micro_step=0, cell=0, instance="i0")  # sequence 8 in the stories below
COMPLETED = MicroStepCompleted(step=1, micro_step=0, cell=0, instance="i0", claim=8, stats=(), seconds=0.0)
DRAINED = (*BATCH, joined(0), ENQUEUED, CLAIMED, COMPLETED, StreamClosed(step=1, micro_steps=1))
OPENED = ReductionOpened(
    step=1,
    epoch=1,
    members=(0,),
    instances=("i0",),
    contributions=(Contribution(micro_step=0, cell=0, claim=8),),
)
SUMMED = replace(CORE, accumulated={0: 8}, summed_epoch=1, tried_epoch=1)


def test_a_requested_transition_comes_before_everything_else() -> None:
    assert choose(told(STARTED, registered(0), asked(0)), CORE) == "move"


def test_a_request_to_an_earlier_instance_is_not_ones_own() -> None:
    view = told(STARTED, registered(0), asked(0), registered(0, "later"))
    assert choose(view, replace(CORE, instance="later")) == "wait"


def test_a_rollout_cell_takes_what_was_published() -> None:
    published = WeightsPublished(version=2, weights=WEIGHTS, seconds=0.0)
    assert choose(told(STARTED, registered(1), published), SATELLITE) == "serve"
    assert choose(told(STARTED, registered(1), published), replace(SATELLITE, engine_version=2)) == "wait"


EVALUATED = EvaluationStarted(evaluation="e0", version=0, episodes=1)
SCORED = EvaluationScored(evaluation="e0", version=0, scores=b"", mean=0.0, valid=0, seconds=0.0)


def test_no_update_is_published_nor_served_while_an_evaluation_measures_the_one_before() -> None:
    core = replace(CORE, trainer_version=2)
    measuring = (STARTED, registered(0), registered(1), trains(0), EVALUATED, stepped(1), stepped(2))
    assert choose(told(*measuring), core) == "wait"
    assert choose(told(*measuring), SATELLITE) == "wait"
    assert choose(told(*measuring, SCORED), core) == "publish"
    assert choose(told(*measuring, SCORED), SATELLITE) == "serve"


def test_an_evaluation_that_is_begun_once_an_update_is_durable_comes_after_its_publication() -> None:
    late = (STARTED, registered(0), registered(1), trains(0), stepped(1), stepped(2), EVALUATED)
    assert choose(told(*late), replace(CORE, trainer_version=2)) == "publish"
    assert choose(told(*late), SATELLITE) == "serve"
    published = WeightsPublished(version=2, weights=WEIGHTS, seconds=0.0)
    after = told(*late, published, stepped(3), stepped(4))
    assert choose(after, replace(CORE, trainer_version=4)) == "wait"


def test_the_core_joins_first_and_satellites_after_it() -> None:
    assert choose(told(*BATCH), CORE) == "join"
    assert choose(told(*BATCH, trains(1)), SATELLITE) == "wait"
    assert choose(told(*BATCH, trains(1), joined(0)), SATELLITE) == "join"


def test_satellites_join_in_their_order_and_wait_for_nobody_who_leaves_or_is_lost() -> None:
    third = Held(2, "i2", engine_version=0, trainer_version=-1)
    both = (*BATCH, registered(2), trains(1), trains(2), joined(0))
    assert choose(told(*both), third) == "wait"
    assert choose(told(*both, joined(1)), third) == "join"
    assert choose(told(*both, asked(1)), third) == "join"
    assert choose(told(*both, CellLost(cell=1, instance="i1", reason="silent")), third) == "join"


def test_nobody_joins_once_the_window_is_closed() -> None:
    view = told(*BATCH, trains(1), joined(0), JoinWindowClosed(step=1, members=(0,)))
    assert choose(view, SATELLITE) == "wait"


def test_a_member_claims_what_is_ready() -> None:
    assert choose(told(*BATCH, joined(0), ENQUEUED), CORE) == "claim"
    assert choose(told(*BATCH, joined(0), ENQUEUED, CLAIMED), CORE) == "wait"


def test_what_is_in_hand_is_drained_when_the_stream_is_closed_and_nothing_is_left_to_claim() -> None:
    held = replace(CORE, in_hand={0: 8})
    claimed = (*BATCH, joined(0), ENQUEUED, CLAIMED)
    assert choose(told(*claimed), held) == "wait"  # more may come: the pipeline rests
    assert choose(told(*claimed), replace(held, moving=True)) == "advance"
    another = ENQUEUED.model_copy(update={"micro_step": 1})
    assert choose(told(*claimed, another), held) == "claim"
    assert choose(told(*claimed, another, StreamClosed(step=1, micro_steps=2)), held) == "claim"
    assert choose(told(*claimed, StreamClosed(step=1, micro_steps=1)), held) == "drain"


def test_a_drain_waits_for_what_was_lost_elsewhere() -> None:
    other = MicroStepClaimed(step=1, micro_step=1, cell=1, instance="i1")
    both = (*BATCH, joined(0), ENQUEUED, CLAIMED, trains(1), joined(1), ENQUEUED.model_copy(update={"micro_step": 1}))
    closed = told(*both, other, StreamClosed(step=1, micro_steps=2))
    lost = told(*both, other, StreamClosed(step=1, micro_steps=2), CellLost(cell=1, instance="i1", reason="silent"))
    assert choose(closed, replace(CORE, in_hand={0: 8})) == "drain"
    assert choose(lost, replace(CORE, in_hand={0: 8})) == "wait"  # it comes to the queue again


def test_a_claim_in_hand_that_the_ledger_counts_no_more_is_discarded_with_the_rest() -> None:
    held = replace(CORE, step=1, in_hand={0: 8})
    dropped = (
        *BATCH,
        joined(0),
        ENQUEUED,
        CLAIMED,
        ContributionDiscarded(step=1, cell=0, instance="i0", reason="nan", broken=True),
    )
    assert choose(told(*dropped), held) == "discard"
    assert choose(told(*BATCH), held) == "discard"
    assert owes(told(*BATCH, joined(0), ENQUEUED, CLAIMED), held)


def test_the_core_alone_opens_the_reduction_of_a_drained_stream() -> None:
    assert choose(told(*DRAINED), replace(CORE, accumulated={0: 8})) == "reduce"


def test_a_member_takes_part_once_and_the_core_opens_again_after_a_failed_sum() -> None:
    held = replace(CORE, accumulated={0: 8})
    assert choose(told(*DRAINED, OPENED), held) == "sum"
    assert choose(told(*DRAINED, OPENED), replace(held, tried_epoch=1)) == "reduce"
    assert choose(told(*DRAINED, OPENED), SUMMED) == "wait"


def test_the_core_updates_only_with_the_sum_that_was_recorded() -> None:
    reduced = GradientReduced(step=1, epoch=1, members=(0,), micro_steps=1, gradient_norm=1.0, seconds=0.0)
    assert choose(told(*DRAINED, OPENED, reduced), SUMMED) == "step"
    assert choose(told(*DRAINED, OPENED, reduced), replace(SUMMED, summed_epoch=0)) == "wait"


def test_a_gradient_that_the_ledger_does_not_count_is_discarded() -> None:
    assert choose(told(*DRAINED), replace(CORE, accumulated={0: 5})) == "discard"
    assert choose(told(*BATCH), replace(CORE, accumulated={0: 8})) == "discard"


def test_a_gradient_that_lacks_what_the_ledger_counts_is_discarded_too() -> None:
    assert choose(told(*DRAINED), CORE) == "discard"


def test_what_was_summed_already_needs_no_discard() -> None:
    reduced = GradientReduced(step=1, epoch=1, members=(0,), micro_steps=1, gradient_norm=1.0, seconds=0.0)
    assert choose(told(*DRAINED, OPENED, reduced), replace(SUMMED, accumulated={})) == "step"


def test_a_dropped_gradient_is_owed_a_word_until_its_step_is_reduced() -> None:
    held = replace(CORE, step=1, accumulated={0: 8})
    reduced = GradientReduced(step=1, epoch=1, members=(0,), micro_steps=1, gradient_norm=1.0, seconds=0.0)
    assert owes(told(*DRAINED), held)
    assert owes(told(*DRAINED), replace(held, accumulated={}))
    assert owes(told(*BATCH), held)
    assert not owes(told(*BATCH), replace(held, accumulated={}))
    assert not owes(told(*DRAINED, OPENED, reduced), held)
    assert not owes(told(*BATCH, stepped(1)), held)


def test_a_late_word_of_a_lost_instance_settles_nothing_that_was_asked_of_the_next_one() -> None:
    request = RoleTransitionRequested(transition="t9", cell=1, instance="reborn", to="train")
    late = RoleTransitionFailed(transition="t1", cell=1, instance="i1", phase="offload", reason="late")
    reborn = replace(SATELLITE, instance="reborn")
    for word in (trains(1), late):
        assert choose(told(*BATCH, registered(1, "reborn"), request, word), reborn) == "move"
    done = RoleTransitionCompleted(transition="t9", cell=1, instance="reborn", to="train", version=0)
    assert choose(told(*BATCH, registered(1, "reborn"), request, trains(1), done), reborn) != "move"


def test_a_request_to_an_instance_that_was_replaced_or_lost_keeps_nobody_waiting() -> None:
    burst = (*BATCH, stepped(1), stepped(2))
    assert choose(told(*burst, registered(1, "reborn")), CORE) == "publish"
    assert choose(told(*burst, registered(1, "reborn"), asked(1)), CORE) == "publish"
    lost = CellLost(cell=1, instance="i1", reason="silent")
    assert choose(told(*burst, lost, asked(1)), CORE) == "publish"


def test_a_late_loss_of_an_instance_settles_nothing_that_was_asked_of_the_next_one() -> None:
    request = RoleTransitionRequested(transition="t9", cell=1, instance="reborn", to="train")
    late = CellLost(cell=1, instance="i1", reason="silent")
    reborn = replace(SATELLITE, instance="reborn")
    assert choose(told(*BATCH, registered(1, "reborn"), request, late), reborn) == "move"
    own = CellLost(cell=1, instance="reborn", reason="silent")
    assert told(*BATCH, registered(1, "reborn"), request, own).requests == {}


def test_weights_are_published_once_every_satellite_is_home() -> None:
    burst = (*BATCH, trains(1), stepped(1), stepped(2))
    home = RoleTransitionCompleted(transition="t9", cell=1, instance="i1", to="rollout", version=0)
    assert choose(told(*burst), CORE) == "wait"
    assert choose(told(*burst, home), CORE) == "publish"


def test_weights_are_not_published_while_a_satellite_is_on_its_way_to_training() -> None:
    burst = (*BATCH, asked(1), stepped(1), stepped(2))
    assert choose(told(*burst), CORE) == "wait"


def test_a_rollout_cell_takes_a_bursts_last_update_before_it_is_published() -> None:
    assert choose(told(*BATCH, stepped(1)), SATELLITE) == "wait"
    assert choose(told(*BATCH, stepped(1), stepped(2)), SATELLITE) == "serve"
    assert choose(told(*BATCH, stepped(1), stepped(2)), replace(SATELLITE, engine_version=2)) == "wait"


def test_the_batch_loss_is_the_mean_over_all_executions_of_the_mean_over_their_targets() -> None:
    def found(execution: str, targets: int, loss: float) -> ExecutionStats:
        return ExecutionStats(
            execution=execution, targets=targets, ratio=1.0, mask=1, loss=loss, max_delta_log_p=0.0, k3=0.0
        )

    completions = ((found("a", 2, 4.0), found("b", 1, 3.0)), (found("a", 2, 0.0),))
    assert batch_loss(completions, groups=1, executions=4) == (4.0 / 4 + 3.0) / 4


def test_a_core_publishes_while_the_cells_that_train_for_good_do_so() -> None:
    events = (STARTED, registered(0), registered(1), registered(2), trains(0), trains(1), stepped(1), stepped(2))
    held = replace(CORE, trainer_version=2)
    assert choose(told(*events), held) == "wait"  # satellites have to come home
    split = replace(told(*events), trainers=2)
    assert choose(split, held) == "publish"
    assert choose(replace(told(*events, trains(2)), trainers=2), held) == "wait"
