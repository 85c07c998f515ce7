"""What a step was made of, read back from the log."""

from functools import reduce

from gyre.core.recorded import RecordedGroup, RecordedStep, Recording, evolve, merged
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.runs import RunStarted
from schemas.training import (
    Contribution,
    ExecutionStats,
    GradientReduced,
    GroupAssigned,
    MicroStepCompleted,
    Moments,
    ReductionOpened,
)
from tests.core.facts import WEIGHTS, admitted, enqueued, group_ready, stepped

FIRST = WeightsRef(digest="1" * 64, size=1, address="weights/first")
STARTED = RunStarted(
    config={}, config_digest="0" * 64, seed=0, code_version="0", weights=FIRST, tasks=("t",), heldout=("h",)
)


def found(execution: str, targets: int, loss: float) -> ExecutionStats:
    return ExecutionStats(
        execution=execution, targets=targets, ratio=1.0, mask=1, loss=loss, max_delta_log_p=loss / 10, k3=1.0
    )


def completed(micro_step: int, claim: int, *stats: ExecutionStats) -> MicroStepCompleted:
    return MicroStepCompleted(
        step=1, micro_step=micro_step, cell=0, instance="i0", claim=claim, stats=stats, seconds=0.0
    )


def opened(epoch: int, *claims: int) -> ReductionOpened:
    named = tuple(Contribution(micro_step=place, cell=0, claim=claim) for place, claim in enumerate(claims))
    return ReductionOpened(step=1, epoch=epoch, members=(0,), instances=("i0",), contributions=named)


def reduced(epoch: int) -> GradientReduced:
    return GradientReduced(step=1, epoch=epoch, members=(0,), micro_steps=2, gradient_norm=1.0, seconds=0.0)


STORY = (
    STARTED,
    enqueued(1, 0),
    enqueued(1, 2, "measure"),
    enqueued(1, 1),
    completed(0, 21, found("a", 3, 1.0)),  # of a cell that was lost
    opened(1, 21, 23),
    reduced(1),  # of a core that was lost
    completed(0, 22, found("a", 3, 1.0)),
    completed(1, 23, found("a", 1, 2.0), found("b", 2, 4.0)),
    opened(2, 22, 23),
    reduced(2),
    stepped(1),
)


def recording(*events: Event) -> tuple[RecordedStep, ...]:
    return reduce(lambda state, item: evolve(state, *item), enumerate(events, 1), Recording()).steps


def test_a_step_knows_its_weights_its_micro_steps_and_what_was_summed_in_the_end() -> None:
    (step,) = recording(*STORY)
    assert (step.step, step.weights, step.optimizer) == (1, FIRST, None)
    assert (step.trained, step.measured) == ({0: 2, 1: 4}, {2: 3})
    assert (step.reduced.epoch, [each.claim for each in step.contributions]) == (2, [22, 23])
    assert step.problems == ()


def test_the_next_step_begins_at_the_weights_that_the_last_one_came_to() -> None:
    more = (enqueued(2, 0), opened(1), reduced(1), stepped(2))
    _, second = recording(*STORY, *more)
    assert (second.weights, second.optimizer, second.trained) == (WEIGHTS, WEIGHTS, {0: 13})
    assert second.problems == ("micro-step 0 is missing from the sum",)


def test_what_micro_steps_found_is_added_up_by_execution() -> None:
    (step,) = recording(*STORY)
    whole = merged(step.stats)
    assert whole["a"] == found("a", 4, 3.0).model_copy(update={"max_delta_log_p": 0.2, "k3": 2.0})
    assert whole["b"] == found("b", 2, 4.0)


def test_moments_add_up_where_every_part_has_them() -> None:
    one = found("a", 2, 1.0).model_copy(update={"moments": moments(1.0)})
    other = found("a", 2, 1.0).model_copy(update={"moments": moments(2.0)})
    assert merged([(one,), (other,)])["a"].moments == moments(3.0)
    assert merged([(one,), (found("a", 2, 1.0),)])["a"].moments is None


def moments(value: float) -> Moments:
    return Moments(
        sum_rollout=-value, sum_train=-value, sum_rollout_squared=value, sum_train_squared=value, sum_product=value
    )


def test_a_step_knows_its_groups_with_their_rewards_and_where_their_trajectories_are() -> None:
    ready = (group_ready(0, 2), admitted(0, 0, (3,)), admitted(0, 1, (3,)), group_ready(1, 2), admitted(1, 0, (3,)))
    assigned = GroupAssigned(step=1, group="g0", version=0, staleness=0)
    (step,) = recording(STARTED, *ready, assigned, *STORY[1:])
    assert step.groups == (RecordedGroup("g0", {"x0-0": 0.5, "x0-1": 0.5}, {"x0-0": 3, "x0-1": 4}),)


def test_a_group_that_is_ready_early_waits_for_its_own_step() -> None:
    early = (group_ready(0, 2), admitted(0, 0, (3,)))
    assigned = GroupAssigned(step=2, group="g0", version=0, staleness=1)
    first, second = recording(STARTED, *early, *STORY[1:], assigned, enqueued(2, 0), opened(1), reduced(1), stepped(2))
    assert first.groups == ()
    assert [(each.group, each.admitted) for each in second.groups] == [("g0", {"x0-0": 3})]
