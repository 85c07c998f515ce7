"""What became of groups, executions and steps; and what two states or two runs differ in."""

from collections import Counter

from gyre.core.chronicle import Chronicle
from gyre.core.difference import (
    Account,
    Row,
    Solved,
    alike,
    changes,
    counters,
    endings,
    said,
    settings,
    solved,
    steps,
)
from gyre.core.progress import Progress
from gyre.core.progress import evolve as evolve_progress
from schemas.dispatch import ExecutionDispatched, GroupDispatched, LaunchGranted
from schemas.envelope import Event
from schemas.rewards import RewardAssigned, RewardUnresolved
from schemas.training import BatchOpened, ContributionDiscarded, MicroStepReissued, StreamClosed
from tests.core.facts import admitted, claimed, completed, enqueued, group_ready, stepped
from tests.core.world import assigned, launched, rewarded, run_started, terminated


def group(index: int, task: str = "t") -> tuple[Event, ...]:
    """A group of two, dispatched."""
    opened = GroupDispatched(group=f"g{index}", index=index, task=task, version=0, executions=2)
    return (opened, *(dispatched(index, place, task) for place in range(2)))


def dispatched(index: int, place: int, task: str = "t") -> ExecutionDispatched:
    name = f"x{index}-{place}"
    return ExecutionDispatched(execution=name, group=f"g{index}", task=task, index=place, version=0, seed=0)


def book(*events: Event) -> Chronicle:
    made = Chronicle()
    for time, event in enumerate(events, start=1):
        made.add(time, event)
    return made


def test_an_execution_goes_from_queued_to_scored() -> None:
    story = [*group(0), LaunchGranted(execution="x0-0"), launched("x0-0"), terminated("x0-0"), rewarded("x0-0")]
    found = [book(*story[:length]).executions["x0-0"].standing for length in range(2, len(story) + 1)]
    assert found == ["queued", "queued", "granted", "running", "ended", "valid"]
    assert book(*story).executions["x0-0"].reason == "completed"


def test_what_comes_late_about_an_earlier_standing_changes_nothing() -> None:
    story = (*group(0), rewarded("x0-0"), launched("x0-0"), LaunchGranted(execution="x0-0"))
    assert book(*story).executions["x0-0"].standing == "valid"
    assert book(*group(0), *group(0)).groups["g0"].executions == ["x0-0", "x0-1"]
    assert book(rewarded("x9-9"), assigned("g9", 1), stepped(9), claimed(9, 0, 0, "i")).executions == {}


def test_a_group_goes_from_open_to_trained_and_keeps_its_rewards() -> None:
    opened = BatchOpened(step=1, version=0, groups=1)
    story = [*group(0), group_ready(0, 2), opened, assigned("g0", 1), stepped(1)]
    found = [book(*story[:length]).groups["g0"].standing for length in range(3, len(story) + 1)]
    assert found == ["open", "ready", "ready", "assigned", "trained"]
    done = book(*story).groups["g0"]
    assert (done.step, done.rewards, done.executions) == (1, [0.5, 0.5], ["x0-0", "x0-1"])


def test_a_batch_counts_its_micro_steps_claims_and_losses() -> None:
    dropped = ContributionDiscarded(step=1, cell=1, instance="i1", reason="lost", broken=True)
    again = MicroStepReissued(step=1, micro_step=1, enqueued=1, reissue=1, reason="lost")
    made = book(
        BatchOpened(step=1, version=0, groups=1),
        enqueued(1, 0),
        enqueued(1, 1, "measure"),
        claimed(1, 0, 0, "i0"),
        claimed(1, 1, 1, "i1"),
        completed(1, 0, 0, "i0", 4),
        dropped,
        again,
        claimed(1, 1, 0, "i0"),
        StreamClosed(step=1, micro_steps=2),
        stepped(1),
    ).batches[1]
    assert (made.enqueued, made.measuring, made.claimed) == (1, 1, {0: 2, 1: 1})
    assert (made.completed, made.closed) == (1, True)
    assert (made.opened, made.updated, made.gradient_norm) == (1, 11, 1.0)


def test_changes_name_the_place_the_old_and_the_new() -> None:
    before = {"a": 1, "b": [1, 2], "c": {"d": (1, 2)}, "e": "x"}
    after = {"a": 1, "b": [1, 3], "c": {"d": (1, 2, 3)}, "f": "x"}
    assert list(changes(before, after)) == [
        Row("b.1", 2, 3),
        Row("c.d", (1, 2), (1, 2, 3)),
        Row("e", "x", None),
        Row("f", None, "x"),
    ]
    assert list(changes(before, before)) == []


def test_settings_that_say_where_a_run_lies_make_no_other_run() -> None:
    one = run_started()
    elsewhere = one.model_copy(update={"config": {**one.config, "run": {"name": "b", "folder": "y"}}})
    rows = settings(one.model_copy(update={"config": {**one.config, "run": {"name": "a", "folder": "x"}}}), elsewhere)
    assert [row.what for row in rows] == ["run.name", "run.folder"]
    assert alike(rows)
    assert not alike(settings(one, one.model_copy(update={"code_version": "other"})))
    (tasks,) = settings(one, one.model_copy(update={"tasks": ("p", "q", "r", "s")}))
    assert tasks.what == "tasks"
    assert tasks.there == "4: p, q, r, ..."


def account(*events: Event) -> Account:
    made = Account("r", len(events), run_started())
    progress = Progress()
    for time, event in enumerate(events, start=1):
        progress = evolve_progress(progress, time, event)
        made.chronicle.add(time, event)
        made.counts[event.type] += 1
    made.progress = progress
    return made


def test_counters_steps_and_what_was_said_stand_side_by_side() -> None:
    short = account(*group(0), group_ready(0, 2), BatchOpened(step=1, version=0, groups=1), assigned("g0", 1))
    whole = account(
        *group(0), group_ready(0, 2), BatchOpened(step=1, version=0, groups=1), assigned("g0", 1), stepped(1)
    )
    found = {row.what: (row.here, row.there) for row in counters(short, whole)}
    assert found["dispatched"] == (2, 2)
    assert found["groups trained"] == (0, 1)
    assert found["steps"] == (0, 1)
    (pair,) = steps(short.progress, whole.progress)
    assert (pair.step, pair.here, pair.there and pair.there.reward) == (1, None, 0.5)
    assert said(short.counts, whole.counts) == (Row("OptimizerStepped", 0, 1),)
    assert said(Counter("aab"), Counter("ab")) == (Row("a", 2, 1),)


def scored(execution: str, reward: float) -> RewardAssigned:
    return rewarded(execution).model_copy(update={"reward": reward})


def test_endings_and_tasks_are_compared_the_largest_difference_first() -> None:
    lost = RewardUnresolved(execution="x0-1", group="g0", attempts=3, reason="crashed")
    ended = [terminated(f"x{index}-{place}") for index in range(2) for place in range(2)]
    begun = (*group(0, "a"), *group(1, "b"), *ended)
    rest = (scored("x0-0", 1.0), scored("x1-1", 1.0))
    mine = book(*begun, *rest, lost, scored("x1-0", 1.0))
    others = book(*begun, *rest, scored("x0-1", 1.0), scored("x1-0", 0.0))
    assert {row.what: (row.here, row.there) for row in endings(mine, others)} == {
        "completed in closing": (4, 4),
        "valid": (3, 4),
        "excluded": (1, 0),
    }
    assert solved(mine, others) == (
        Row("b", Solved(2, 1.0), Solved(2, 0.5)),
        Row("a", Solved(1, 1.0), Solved(2, 1.0)),
    )


def test_admission_adds_advantage_and_targets() -> None:
    found = book(*group(0), admitted(0, 0, (3,), advantage=2.0)).executions["x0-0"]
    assert (found.advantage, found.targets) == (2.0, 2)
