"""What went wrong elsewhere between a workspace and an advantage: one test each, real processes where they count."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gyre.core import groups
from gyre.core import tree as trees
from gyre.rl.advantages import rule
from gyre.rl.packing import Shape, segments
from schemas.base import pack_floats, pack_ints
from schemas.calls import ModelCallRecorded, RecordsSealed, VersionSpan
from schemas.dispatch import ExecutionTerminated, GroupDispatched, Reason, Stage
from schemas.envelope import Event
from schemas.refs import WeightsRef
from schemas.rewards import (
    AssessmentRecorded,
    GroupReady,
    RegradeCompleted,
    RewardAssigned,
    RewardChange,
    RewardUnresolved,
)
from schemas.runs import RunStarted
from schemas.training import TrajectoriesAdmitted
from services import admission, builder, evaluator, runner
from tests.core.facts import WEIGHTS
from tests.core.test_groups import BODY, CALL, PARAMS, admissions, closed, dispatched, load, scored, unresolved
from tests.services.work.test_evaluator import kept

HALF = 'n=0; for check in a b; do [ -f $check ] && n=$((n+1)); done; echo "0.$((n*5))" >"$REWARD_FILE"'
"""Two checks; what passes of them is the score: 0.0, 0.5 or (which no test below reaches) 0.10."""
MEAN = rule("mean", shuffle=False)


@asynccontextmanager
async def training(run: Any, weights: WeightsRef = WEIGHTS) -> AsyncIterator[None]:
    """Everything between a dispatch and an admission, but the proxy, whose records are said here."""
    begin = RunStarted(
        config=run.config.table(), config_digest=run.config.digest(), seed=0, code_version="0",
        weights=weights, tasks=("job",), heldout=("job",),
    )  # fmt: skip
    await run.say("control", "run", event=begin)
    async with AsyncExitStack() as stack:
        for name, serve in (
            ("runner", runner.serve),
            ("evaluator", evaluator.serve),
            ("builder", builder.serve),
            ("admission", admission.serve),
        ):
            await stack.enter_async_context(run.serving(serve, name))
        yield


async def work_through(run: Any, *tasks: str) -> tuple[GroupReady, list[TrajectoriesAdmitted]]:
    """A group from its dispatch to its admission, an execution a task; each made one call of three targets."""
    group = GroupDispatched(group="g0", index=0, task=tasks[0], version=0, executions=len(tasks))
    await run.say("scheduler", "group", "g0", event=group)
    for index, task in enumerate(tasks):
        name = f"x0-{index}"
        await run.dispatch(name, task, index)
        await seal(run, name)
        await run.grant(name)
    ready = (await run.heard("ev.r.admission.group.g0", 1))[0].commit.events[0]
    said = await run.heard("ev.r.admission.execution.*", len(tasks))
    return ready, sorted((one.commit.events[0] for one in said), key=lambda event: event.execution)


async def seal(run: Any, execution: str) -> None:
    place = run.place("proxy")
    record = CALL.model_copy(update={"execution": execution})
    commit = place.commit((record,), as_of=0, correlation=execution)
    last = await run.bus.calls.append(f"call.r.{execution}", commit)
    digest = trees.records_digest([trees.record_digest(record)])
    sealed = RecordsSealed(execution=execution, last_sequence=last, count=1, digest=digest)
    await run.say("proxy", "execution", execution, event=sealed)


async def test_a_harness_timeout_with_half_the_tests_passing_trains_with_a_half(run: Any) -> None:
    run.task("job", HALF, seconds=0.5)
    run.harness("case $HOME in *x0-0*) touch a; sleep 300;; esac; exit 3")
    run.configure(objective={"advantage": "mean"})
    async with training(run):
        ready, (late, failed) = await work_through(run, "job", "job")
        ends = [one.commit.events[0] for one in await run.heard("ev.r.runner.execution.*.terminated", 2)]
    assert {end.execution: end.reason for end in ends} == {"x0-0": "timeout", "x0-1": "failed"}
    assert [(each.standing, each.reward) for each in ready.outcomes] == [("valid", 0.5), ("valid", 0.0)]
    assert (late.advantage, late.targets) == (0.25, 3)
    assert (failed.advantage, failed.targets) == (-0.25, 3)


@pytest.mark.parametrize(
    ("policy", "standing", "reward", "advantages"),
    [("placeholder", "placeholder", 0.0, [0.5, -0.5]), ("mask", "excluded", None, [0.0, 0.0])],
)
async def test_an_execution_that_never_got_a_workspace_counts_as_the_policy_says(
    run: Any, policy: str, standing: str, reward: float | None, advantages: list[float]
) -> None:
    run.task("job", "exit 0")
    run.harness("exit 0")
    run.configure(objective={"advantage": "mean"}, reward={"nothing_assessable": policy})
    async with training(run):
        ready, admitted = await work_through(run, "job", "nowhere")
    assert [(each.standing, each.reward) for each in ready.outcomes] == [("valid", 1.0), (standing, reward)]
    assert [each.advantage for each in admitted] == advantages
    assert [each.targets for each in admitted] == [3, 0]


@pytest.mark.parametrize(
    "test",
    ["kill -9 $$", "kill -SEGV $$", "exit 5", "no-such-checker", "exec /no/such/file", 'echo crash >"$REWARD_FILE"'],
)
async def test_an_evaluator_that_crashes_is_not_a_zero(run: Any, test: str) -> None:
    run.task("job", "exit 0")
    run.task("broken", test)
    run.harness("exit 0")
    run.configure(objective={"advantage": "mean"}, reward={"attempts": 2, "backoff_seconds": 0.0})
    async with training(run):
        ready, admitted = await work_through(run, "job", "job", "broken")
        said = await run.heard("ev.r.evaluator.execution.x0-2", 2)
    assert [each.reward for each in ready.outcomes] == [1.0, 1.0, None]
    assert [each.targets for each in admitted] == [3, 3, 0]
    assessments = [event for one in said for event in one.commit.events if isinstance(event, AssessmentRecorded)]
    assert [(each.attempt, each.score, each.valid) for each in assessments] == [(1, None, False), (2, None, False)]
    assert isinstance(said[-1].commit.events[-1], RewardUnresolved)


async def test_a_score_depends_on_nothing_but_the_state(run: Any) -> None:
    names = "s/x0-[0-9]/x/g; s/judge-[0-9a-f]*/judge/"  # its own and a random one
    run.task("job", f'env | grep -v "^PATH=\\|^PWD=\\|^_=" | sed "{names}" | cksum >&2; grep -q good out')
    state = kept(run, out="good")
    endings: list[tuple[Reason, Stage, int | None, float]] = [
        ("completed", "agent", 0, 0.1),
        ("failed", "agent", 137, 9.0),
        ("timeout", "agent", None, 86400.0),
    ]  # whoever was cancelled is not scored: its group has all it needs
    for index, (reason, stage, code, seconds) in enumerate(endings):
        event = ExecutionTerminated(
            execution=f"x0-{index}", group="g0", task="job", reason=reason, stage=stage, exit_code=code,
            seconds=seconds, state=state, detail="x" * 40 * index,
        )  # fmt: skip
        await run.say("runner", "execution", event.execution, "terminated", event=event)
    async with run.serving(evaluator.serve, "evaluator"):
        said = [one.commit.events for one in await run.heard("ev.r.evaluator.execution.*", len(endings))]
    assert {reward.reward for _, reward in said if isinstance(reward, RewardAssigned)} == {1.0}
    assert {(assessment.score, assessment.detail) for assessment, _ in said} == {(1.0, said[0][0].detail)}


def test_a_masked_execution_leaves_the_groups_statistics() -> None:
    rewards = [scored("x0-0", 1.0), scored("x0-1", 3.0), scored("x0-2", 2.0), unresolved("x0-3")]
    facts = [event for index in range(4) for event in closed(f"x0-{index}")]
    said = groups.decider(PARAMS, load, MEAN).given(*dispatched(0, 4), *facts, *rewards).said()
    assert isinstance(said[0], GroupReady)
    assert [each.standing for each in said[0].outcomes] == ["valid", "valid", "valid", "excluded"]
    assert [each.advantage for each in admissions(said)] == [-1.0, 1.0, 0.0, 0.0]
    assert [each.targets for each in admissions(said)] == [3, 3, 3, 0]


def test_no_later_assessment_moves_a_reward_that_was_assigned() -> None:
    admitting = groups.decider(PARAMS, load, MEAN)
    facts = [*closed("x0-0"), *closed("x0-1"), scored("x0-0", 1.0)]
    later = AssessmentRecorded(
        assessment="x0-0-tests-1-a1", execution="x0-0", designated=False, attempt=1, state=None, branch=None,
        score=0.0, valid=True, seconds=1.0,
    )  # fmt: skip
    completed = RegradeCompleted(
        regrade="tests-1", evaluator="tests", digest="0" * 64, states=1, valid=1,
        changed=(RewardChange(execution="x0-0", group="g0", old=1.0, new=0.0),),
    )  # fmt: skip
    story = admitting.given(*dispatched(0, 2), *facts).when(later, completed).when(scored("x0-1", 0.0))
    assert [each.advantage for each in admissions(story.said())] == [0.5, -0.5]
    assert story.settle().when(later, completed).said() == ()


def fork(number: int) -> ModelCallRecorded:
    """An answer of its own to the context of the first call."""
    return CALL.model_copy(
        update={
            "call": f"c{number}",
            "index": number,
            "parent": "c0",
            "prefix_tokens": 5,
            "output_ids": pack_ints(range(number, number + 1 + number)),
            "logprobs": pack_floats([-1.0] * (1 + number)),
            "versions": (VersionSpan(version=0, tokens=1 + number),),
        }
    )


def test_executions_with_three_leaves_and_with_one_weigh_the_same() -> None:
    nodes = {"c0": CALL, **{f"c{number}": fork(number) for number in (1, 2, 3)}}
    many = BODY.model_copy(update={"digest": "2" * 64})
    built: list[Event] = closed("x0-0", many)
    leaf = built[1].leaves[0]  # type: ignore[union-attr]
    leaves = tuple(leaf.model_copy(update={"leaf": f"c{number}"}) for number in (1, 2, 3))
    built[1] = built[1].model_copy(update={"leaves": leaves})
    admitting = groups.decider(groups.Params(seed=7), lambda body: nodes if body == many else load(body), MEAN)
    facts = [*built, scored("x0-0", 1.0), *closed("x0-1"), scored("x0-1", 0.0)]
    wide, narrow = admissions(admitting.given(*dispatched(0, 2), *facts).said())
    assert (len(wide.trajectories), len(narrow.trajectories)) == (3, 1)
    assert (wide.advantage, narrow.advantage) == (0.5, -0.5)
    shape = Shape(groups=1, group_size=2, row_tokens=64, micro_step_tokens=64)
    for each in (wide, narrow):
        weights = sum(part.weight * part.target.count(1) for part in segments(each, shape))
        assert weights == pytest.approx(0.5)
