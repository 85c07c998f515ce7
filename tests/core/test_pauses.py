"""When nothing of a run ran, told from who speaks: over hand-written words (second, process)."""

from gyre.core.pauses import Pauses, heard
from gyre.core.progress import Progress, evolve
from schemas.dispatch import ExecutionLaunched
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.runs import OfficeTaken, RunFinished, RunStarted
from schemas.training import BatchOpened, OptimizerStepped

SECOND = 1_000_000_000


def told(*words: tuple[int, str]) -> list[tuple[int, int]]:
    """The pauses of these words, told twice each as a commit of two events is."""
    state, last = Pauses(), 0
    for time, instance in words:
        for _ in range(2):
            state = heard(state, instance, last, time)
            last = max(last, time)
    return [(each.start, each.end) for each in state.found]


def test_what_lies_between_a_stop_and_a_resume_is_a_pause() -> None:
    first = [(1, "s1"), (2, "c1"), (3, "s1"), (4, "c1")]
    assert told(*first) == []
    assert told(*first, (100, "c2"), (103, "s2"), (104, "c2"), (110, "s2")) == [(4, 100)]


def test_each_stop_is_a_pause_of_its_own() -> None:
    words = [(1, "s1"), (2, "c1"), (3, "s1"), (50, "s2"), (53, "c2"), (54, "s2"), (90, "c3"), (91, "s3"), (92, "c3")]
    assert told(*words) == [(3, 50), (54, 90)]


def test_a_process_that_is_replaced_while_others_live_makes_no_pause() -> None:
    assert told((1, "s1"), (2, "c1"), (60, "c2"), (61, "s1")) == []
    assert told((1, "s1"), (2, "c1"), (3, "s1"), (60, "s2"), (61, "c1")) == []


def test_where_one_outlives_the_stop_the_time_counts() -> None:
    assert told((1, "far"), (2, "s1"), (60, "s2"), (70, "far"), (71, "s2")) == []


def test_a_clock_that_is_behind_makes_no_pause() -> None:
    assert told((5, "s1"), (3, "s2")) == []


def progress(*said: tuple[int, str, Event]) -> Progress:
    state = Progress()
    for second, instance, event in said:
        state = evolve(state, second * SECOND, event, instance)
    return state


WEIGHTS = WeightsRef(digest="0" * 64, size=1, address="weights/0.safetensors")
BEGIN = RunStarted(
    config={}, config_digest="0" * 64, seed=0, code_version="0", weights=WEIGHTS, tasks=("t",), heldout=("t",)
)  # fmt: skip
OPENED = BatchOpened(step=1, version=0, groups=1)


def taken(instance: str) -> OfficeTaken:
    return OfficeTaken(service="scheduler", instance=instance)


def stepped(step: int) -> OptimizerStepped:
    return OptimizerStepped(
        step=step, version=step, weights=WEIGHTS, optimizer=WEIGHTS, loss=0.5, gradient_norm=1.0, clip_coefficient=1.0,
        learning_rate=1e-3, seconds=1.0,
    )  # fmt: skip


def test_neither_a_run_nor_its_steps_count_the_time_in_which_nothing_ran() -> None:
    before = [(1, "control-1", BEGIN), (9, "s1", taken("s1")), (10, "p1", OPENED), (12, "s1", taken("s1"))]
    after = [(5000, "s2", taken("s2")), (5001, "c2", stepped(1)), (5002, "s2", taken("s2"))]
    state = progress(*before, *after)
    assert state.seconds == 5001 - 4988
    assert [step.seconds for step in state.done] == [4991 - 4988]
    ended = progress(*before, *after, (5003, "s2", RunFinished(steps=1, dispatched=0, launched=0, terminated=0)))
    later = evolve(ended, 9000 * SECOND, taken("e1"), "e1")
    assert (ended.seconds, later.seconds) == (14, 14)


def test_a_step_has_its_time_back_once_it_is_known_that_somebody_lived() -> None:
    launched = ExecutionLaunched(execution="x0-0", group="g0", runner="r", token_digest="0" * 64, deadline_seconds=1.0)
    said: list[tuple[int, str, Event]] = [(1, "r1", launched), (2, "p1", OPENED), (60, "c2", stepped(1))]
    assert [step.seconds for step in progress(*said).done] == [1e-9]
    state = progress(*said, (61, "r1", launched))
    assert (state.seconds, [step.seconds for step in state.done]) == (60, [58])
