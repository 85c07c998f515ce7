"""A regrade in memory: real states, real tests, and a log in which no reward changes."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from gyre.evaluators.template import EvaluatorError, Template, digest
from gyre.tasks.folder import load_tasks
from schemas.dispatch import ExecutionDispatched, ExecutionTerminated, GroupDispatched
from schemas.refs import StateRef
from schemas.rewards import (
    AssessmentRecorded,
    RegradeCompleted,
    RegradeStarted,
    RewardAssigned,
    RewardChange,
    RewardUnresolved,
)
from services.regrade import Report, Wish, regrade
from services.regrading import RegradeError
from services.workspace import preserve
from tests.sandboxes.stand import lacking

SAID = "ev.r.evaluator.regrade.>"
WHY = lacking("bubblewrap")


class Graded:
    """A run with one group, its rewards settled."""

    def __init__(self, run: Any) -> None:
        self.run = run

    async def group(self, size: int, task: str = "job") -> None:
        event = GroupDispatched(group="g0", index=0, task=task, version=0, executions=size)
        await self.run.say("scheduler", "group", "g0", event=event)

    async def execution(self, index: int, said: str | None, reward: float | None, task: str = "job") -> str:
        """One that left `said` in a file out (None: nothing), with this reward (None: unresolved)."""
        name = f"x0-{index}"
        entry = ExecutionDispatched(execution=name, group="g0", task=task, index=index, version=0, seed=1)
        await self.run.say("scheduler", "execution", name, "dispatched", event=entry)
        end = ExecutionTerminated(
            execution=name, group="g0", task=task, reason="completed", stage="agent", exit_code=0, seconds=1,
            state=None if said is None else self.state(name, said),
        )  # fmt: skip
        await self.run.say("runner", "execution", name, "terminated", event=end)
        word = RewardUnresolved(execution=name, group="g0", attempts=3, reason="broken")
        settled = word if reward is None else RewardAssigned(
            execution=name, group="g0", reward=reward, placeholder=said is None
        )  # fmt: skip
        await self.run.say("evaluator", "execution", name, event=settled)
        return name

    def state(self, name: str, said: str) -> StateRef:
        place = self.run.folder / "left" / name
        place.mkdir(parents=True)
        (place / "out").write_text(said)
        blob = self.run.bus.blobs.put(preserve(place))
        return StateRef(digest=blob.digest, size=blob.size, address=blob.address)

    async def regrade(self, **wish: Any) -> Report:
        return await regrade(self.run.place("evaluator"), self.run.bus, Wish(**wish))

    async def said(self) -> list[Any]:
        """All that regrades said, in order."""
        stored = await self.run.heard(SAID, await self.run.count(SAID))
        return [event for one in stored for event in one.commit.events]


@pytest.fixture
def graded(run: Any) -> Graded:
    return Graded(run)


async def test_false_zeros_are_found_and_said_beside_the_rewards(graded: Graded, run: Any) -> None:
    run.task("job", "exit 1")
    await graded.group(3)
    for index, (said, reward) in enumerate([("good", 0.0), ("bad", 0.0), ("good", None)]):
        await graded.execution(index, said, reward)
    before = await run.bus.ev.head()
    (run.folder / "tasks/train/job/tests/test.sh").write_text("grep -q good out\n")
    report = await graded.regrade()
    changed = (
        RewardChange(execution="x0-0", group="g0", old=0.0, new=1.0),
        RewardChange(execution="x0-2", group="g0", old=None, new=1.0),
    )
    assert report.changed == changed
    started, *assessments, completed = await graded.said()
    assert isinstance(started, RegradeStarted)
    assert isinstance(completed, RegradeCompleted)
    assert (completed.states, completed.valid, completed.changed) == (3, 3, changed)
    assert {each.execution: each.score for each in assessments} == {"x0-0": 1.0, "x0-1": 0.0, "x0-2": 1.0}
    assert not any(each.designated for each in assessments)
    assert await run.bus.ev.head() == before + 5
    assert not (run.folder / "scoring").exists()


async def test_statistics_and_advantages_are_told_as_they_would_be(graded: Graded, run: Any) -> None:
    run.task("job", "grep -q good out")
    await graded.group(4)
    for index, (said, reward) in enumerate([("good", 1.0), ("bad", 1.0), ("bad", 0.0), (None, 0.0)]):
        await graded.execution(index, said, reward)
    (group,) = (await graded.regrade()).groups
    assert (group.before.mean, group.before.std) == (0.5, 0.5)
    assert group.before.advantages == (1.0, 1.0, -1.0, -1.0)
    assert group.after.rewards == (1.0, 0.0, 0.0, 0.0)
    assert group.after.mean == 0.25
    assert group.after.advantages == pytest.approx((3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)))


async def test_regrading_twice_scores_and_says_nothing_twice(graded: Graded, run: Any) -> None:
    run.task("job", "grep -q good out")
    await graded.group(2)
    await graded.execution(0, "good", 1.0)
    await graded.execution(1, "good", 0.0)
    first = await graded.regrade()
    head = await run.bus.ev.head()
    second = await graded.regrade()
    assert (first.new, second.new) == (2, 0)
    assert second.changed == first.changed
    assert await run.bus.ev.head() == head
    again = await graded.regrade(again=True)
    assert (again.new, again.regrade) == (2, f"{first.regrade}-2")
    assert (await graded.regrade()).regrade == again.regrade
    assert [event.type for event in await graded.said()].count("RegradeCompleted") == 2


async def test_other_tests_are_another_scoring(graded: Graded, run: Any) -> None:
    run.task("job", "exit 0")
    await graded.group(1)
    await graded.execution(0, "good", 1.0)
    first = await graded.regrade()
    (run.folder / "tasks/train/job/tests/test.sh").write_text("exit 1\n")
    second = await graded.regrade()
    assert second.regrade != first.regrade
    assert [change.new for change in second.changed] == [0.0]


async def test_an_interrupted_regrade_is_taken_up_where_it_ended(graded: Graded, run: Any) -> None:
    gate = run.folder / "gate"
    os.mkfifo(gate)
    run.task("job", f'case "$(cat out)" in first) exit 0;; *) cat {gate}; exit 0;; esac')
    await graded.group(2)
    await graded.execution(0, "first", 1.0)
    await graded.execution(1, "second", 1.0)
    working = asyncio.ensure_future(graded.regrade(jobs=1))
    await run.heard(SAID, 2)
    with await asyncio.to_thread(gate.open, "w"):  # opens once the second state is being scored
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
    assert [event.type for event in await graded.said()] == ["RegradeStarted", "AssessmentRecorded"]
    assert not (run.folder / "scoring").exists()
    resumed = asyncio.ensure_future(graded.regrade())
    with await asyncio.to_thread(gate.open, "w"):
        pass
    report = await resumed
    assert (report.new, len(report.found)) == (1, 2)
    said = await graded.said()
    assert [event.type for event in said] == [
        "RegradeStarted", "AssessmentRecorded", "AssessmentRecorded", "RegradeCompleted",
    ]  # fmt: skip


async def test_a_command_scores_under_the_contract_of_tests(graded: Graded, run: Any) -> None:
    run.task("job", "exit 1")
    await graded.group(1)
    await graded.execution(0, "good", 0.0)
    judge = run.folder / "judge.sh"
    judge.write_text(
        '[ -f "$1/test.sh" ] && [ "$TESTS_DIR" = "$1" ] && grep -q good out && echo 0.25 >"$REWARD_FILE"\n'
    )
    report = await graded.regrade(command=f"/bin/sh {judge} {{tests}}")
    assert report.found == {"x0-0": 0.25}
    assert report.regrade.startswith("command-")
    judge.write_text("exit 0\n")
    assert (await graded.regrade(command=f"/bin/sh {judge} {{tests}}")).found == {"x0-0": 1.0}


async def test_an_evaluator_that_fails_is_tried_as_in_the_run_and_is_no_zero(graded: Graded, run: Any) -> None:
    run.task("job", "echo broken; exit 5")
    run.configure(reward={"attempts": 3, "backoff_seconds": 0.0})
    await graded.group(1)
    await graded.execution(0, "good", 1.0)
    report = await graded.regrade()
    assert report.found == {"x0-0": None}
    assert "broken" in report.reasons["x0-0"]
    assert (report.changed, report.groups) == ((), ())
    assert [event.attempt for event in await graded.said() if isinstance(event, AssessmentRecorded)] == [1, 2, 3]
    assert (await graded.regrade()).new == 0


async def test_no_valid_score_leaves_a_reward_as_it_is_among_its_peers(graded: Graded, run: Any) -> None:
    run.task("job", "grep -q broken out && exit 5; grep -q good out")
    run.configure(reward={"attempts": 1})
    await graded.group(3)
    for index, said in enumerate(("broken", "good", "bad")):
        await graded.execution(index, said, 1.0)
    report = await graded.regrade()
    assert report.changed == (RewardChange(execution="x0-2", group="g0", old=1.0, new=0.0),)
    assert [group.after.rewards for group in report.groups] == [(1.0, 1.0, 0.0)]


@pytest.mark.parametrize(
    ("command", "absent"),
    [
        ("no-such-program {tests}", "no-such-program: no such program here"),
        ("/no/such/program", "/no/such/program: no such program here"),
        ("sh ./nope.sh {tests}", r"\./nope\.sh: no such file here"),
        ("timeout 9 sh ../nope.sh", r"\.\./nope\.sh: no such file here"),
        ("sh /no/such/script", "/no/such/script: no such file here"),
    ],
)
async def test_a_command_that_is_not_here_is_refused_before_anything_is_said(
    graded: Graded, run: Any, command: str, absent: str
) -> None:
    run.task("job", "exit 0")
    await graded.group(1)
    await graded.execution(0, "good", 1.0)
    before = await run.bus.ev.head()
    with pytest.raises(RegradeError, match=f"--evaluator {absent}"):
        await graded.regrade(command=command)
    assert await run.bus.ev.head() == before


@pytest.mark.parametrize(
    "command", ["sh -c '/bin/true && exit 0'", "sh -c /bin/true", "sh /dev/null -o /no/such/report"]
)
async def test_text_of_a_shell_and_files_to_write_are_not_looked_for(graded: Graded, run: Any, command: str) -> None:
    run.task("job", "exit 1")
    await graded.group(1)
    await graded.execution(0, "good", 0.0)
    assert (await graded.regrade(command=command)).found == {"x0-0": 1.0}


async def test_a_command_of_the_workspace_or_the_tests_is_not_looked_for_here(graded: Graded, run: Any) -> None:
    run.task("job", "exit 0")
    await graded.group(1)
    await graded.execution(0, "good", 0.0)
    run.configure(reward={"attempts": 1})
    report = await graded.regrade(command="{tests}/nowhere")
    assert report.found == {"x0-0": None}
    assert "nowhere" in report.reasons["x0-0"]


@pytest.mark.parametrize("command", ["sh ./out", "sh ./out /no/such/place"])
async def test_the_command_that_graded_the_run_is_looked_for_only_where_it_runs(
    graded: Graded, run: Any, command: str
) -> None:
    run.task("job", "exit 1")
    run.configure(evaluator={"kind": "command", "command": command})
    await graded.group(1)
    await graded.execution(0, "exit 0", 0.0)
    assert (await graded.regrade()).found == {"x0-0": 1.0}


@pytest.mark.skipif(bool(WHY), reason=WHY)
async def test_what_only_the_sandbox_has_is_not_looked_for_here(graded: Graded, run: Any) -> None:
    run.task("job", "exit 1")
    run.named("job", "/workplace")
    run.configure(sandbox={"kind": "bubblewrap"}, reward={"attempts": 1})
    await graded.group(1)
    await graded.execution(0, "exit 0", 0.0)
    assert (await graded.regrade(command="sh /workplace/out")).found == {"x0-0": 1.0}
    report = await graded.regrade(command="/workplace/out")
    assert report.found == {"x0-0": None}
    assert "/workplace/out" in report.reasons["x0-0"]
    with pytest.raises(RegradeError, match="--evaluator /workplaces/out: no such program here"):
        await graded.regrade(command="/workplaces/out")


async def test_what_a_live_run_has_not_settled_is_left_alone(graded: Graded, run: Any) -> None:
    run.task("job", "exit 1")
    await graded.group(3)
    await graded.execution(0, "good", 1.0)
    await graded.execution(1, None, 0.0)
    entry = ExecutionDispatched(execution="x0-2", group="g0", task="job", index=2, version=0, seed=1)
    await run.say("scheduler", "execution", "x0-2", "dispatched", event=entry)
    report = await graded.regrade()
    assert (list(report.found), report.unassessable, report.waiting) == (["x0-0"], 1, 1)
    assert (len(report.changed), report.groups) == (1, ())


async def test_one_task_is_scored_alone_and_the_rest_later(graded: Graded, run: Any) -> None:
    for name in ("job", "other"):
        run.task(name, "exit 0")
    await graded.group(2)
    await graded.execution(0, "good", 1.0)
    await graded.execution(1, "good", 1.0, task="other")
    alone = await graded.regrade(task="other")
    assert list(alone.found) == ["x0-1"]
    rest = await graded.regrade()
    assert (rest.regrade, rest.new, list(rest.found)) == (alone.regrade, 1, ["x0-0", "x0-1"])
    with pytest.raises(RegradeError, match=r"--task nowhere: .* it had job, other"):
        await graded.regrade(task="nowhere")


async def test_the_tests_of_another_folder_score_instead_of_the_runs_copy(graded: Graded, run: Any) -> None:
    run.task("job", "exit 1")
    await graded.group(1)
    await graded.execution(0, "good", 0.0)
    mended = run.folder / "mended"
    (run.folder / "tasks/heldout").rename(mended)
    (run.folder / "tasks/train/job").rename(mended / "job")
    (mended / "job/tests/test.sh").write_text("exit 0\n")
    assert (await graded.regrade(tasks=mended)).found == {"x0-0": 1.0}


async def test_two_at_once_do_not_speak_over_each_other(graded: Graded, run: Any) -> None:
    run.task("job", "exit 0")
    await graded.group(1)
    await graded.execution(0, "good", 1.0)
    both = await asyncio.gather(graded.regrade(), graded.regrade(), return_exceptions=True)
    assert sorted(type(each).__name__ for each in both) == ["RegradeError", "Report"]
    assert [event.type for event in await graded.said()].count("AssessmentRecorded") == 1


@pytest.mark.parametrize(
    ("line", "words"), [("", "is empty"), ("sh 'half", "quote it"), ("sh {where}", "{where} stands for nothing")]
)
def test_a_command_that_cannot_be_one_is_refused(line: str, words: str) -> None:
    with pytest.raises(EvaluatorError, match=words):
        Template.parse(line, Path.cwd())


def test_a_digest_covers_the_command_its_files_and_every_test(run: Any) -> None:
    run.task("job", "exit 0")
    judge = run.folder / "judge.sh"
    judge.write_text("exit 0\n")
    seen = []
    test = run.folder / "tasks/train/job/tests/test.sh"
    for change in (lambda: None, lambda: judge.write_text("exit 1\n"), lambda: test.chmod(0o755), test.unlink):
        tasks = load_tasks(run.folder / "tasks/train")
        change()
        seen.append(digest(Template.parse("sh ./judge.sh", run.folder), tasks))
        seen.append(digest(Template.parse("sh  ./judge.sh", run.folder), tasks))
    assert seen[::2] == seen[1::2]
    assert len(set(seen)) == 4


def test_a_digest_covers_instructions_where_the_command_names_them(run: Any) -> None:
    run.task("job", "exit 0")
    seen = []
    for words in ("Say yes.", "Say no."):
        (run.folder / "tasks/train/job/instruction.md").write_text(words)
        tasks = load_tasks(run.folder / "tasks/train")
        seen.append([digest(Template.parse(line, run.folder), tasks) for line in ("judge {instruction}", "judge")])
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] == seen[1][1]
