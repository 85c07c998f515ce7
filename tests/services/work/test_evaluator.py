"""The evaluator on the bus in memory: real tests in restored states."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from bus.log import QueueName
from bus.memory import MemoryBus
from bus.streams import Limits
from gyre.evaluators.command import verdict
from schemas.dispatch import ExecutionTerminated
from schemas.refs import StateRef
from schemas.rewards import AssessmentRecorded, RewardAssigned, RewardUnresolved
from services import evaluator
from services.workspace import preserve
from tests.pipes import told
from tests.services.work.conftest import until

SAID = "ev.r.evaluator.execution.x0-0"


def kept(run: Any, **files: str) -> StateRef:
    """A preserved workspace with these files."""
    place = Path(run.folder) / "left"
    place.mkdir()
    for name, text in files.items():
        (place / name).write_text(text)
    blob = run.bus.blobs.put(preserve(place))
    return StateRef(digest=blob.digest, size=blob.size, address=blob.address)


async def end(run: Any, state: StateRef | None, task: str = "job") -> None:
    event = ExecutionTerminated(
        execution="x0-0", group="g0", task=task, reason="timeout", stage="agent", exit_code=None, seconds=1, state=state
    )
    await run.say("runner", "execution", "x0-0", "terminated", event=event)


async def judged(run: Any, commits: int = 1) -> list[tuple[Any, ...]]:
    """The events of each commit about the execution, once its entry is off the queue."""
    async with run.serving(evaluator.serve, "evaluator"):
        stored = await run.heard(SAID, commits)
        await run.emptied("eval")
    assert await run.count(SAID) == commits
    return [one.commit.events for one in stored]


async def test_a_preserved_state_is_scored_by_the_tasks_own_tests(run: Any) -> None:
    run.task("job", 'grep -q done out && [ -f "$TESTS_DIR/test.sh" ] && echo 0.75 >"$REWARD_FILE"')
    state = kept(run, out="done")
    await end(run, state)
    ((assessment, reward),) = await judged(run)
    assert isinstance(assessment, AssessmentRecorded)
    assert (assessment.score, assessment.valid, assessment.attempt, assessment.designated) == (0.75, True, 1, True)
    assert assessment.state == state
    assert assessment.provenance is not None
    assert (assessment.provenance.evaluator, assessment.provenance.sandbox) == ("tests", "process")
    assert reward == RewardAssigned(execution="x0-0", group="g0", reward=0.75)
    assert list((run.folder / "work").iterdir()) == []


async def test_exit_codes_speak_where_no_reward_is_written(run: Any) -> None:
    run.task("job", "[ -f out ]")
    await end(run, kept(run))
    ((_, reward),) = await judged(run)
    assert reward.reward == 0.0


async def test_a_failing_evaluator_is_asked_again_and_then_the_reward_is_unresolved(run: Any) -> None:
    run.task("job", "echo broken; exit 5")
    run.configure(reward={"attempts": 3, "backoff_seconds": 0.02})
    await end(run, kept(run))
    first, second, third = await judged(run, 3)
    assert [commit[0].attempt for commit in (first, second, third)] == [1, 2, 3]
    assert [commit[0].valid for commit in (first, second, third)] == [False, False, False]
    assert (len(first), len(second)) == (1, 1)
    assert isinstance(third[1], RewardUnresolved)
    assert (third[1].attempts, "exit code 5" in third[1].reason) == (3, True)


async def test_a_later_attempt_may_succeed_on_the_same_state(run: Any) -> None:
    count = run.folder / "count"
    run.task("job", f"echo x >>{count}; [ $(wc -l <{count}) -ge 2 ] || exit 5; exit 0")
    run.configure(reward={"backoff_seconds": 0.02})
    await end(run, kept(run))
    first, second = await judged(run, 2)
    assert (first[0].valid, second[0].valid, second[1].reward) == (False, True, 1.0)


async def test_a_budget_that_is_used_up_ends_the_attempts(run: Any) -> None:
    run.task("job", "sleep 300")
    run.configure(reward={"attempts": 7, "budget_seconds": 0.2})
    await end(run, kept(run))
    ((assessment, unresolved),) = await judged(run)
    assert "ended after 0.2 s" in assessment.detail
    assert isinstance(unresolved, RewardUnresolved)


async def test_nothing_to_assess_is_a_placeholder_or_left_out_as_configured(run: Any) -> None:
    run.task("job")
    await end(run, None)
    assert await judged(run) == [(RewardAssigned(execution="x0-0", group="g0", reward=0.0, placeholder=True),)]


async def test_nothing_to_assess_may_be_masked(run: Any) -> None:
    run.task("job")
    run.configure(reward={"nothing_assessable": "mask"})
    await end(run, None)
    ((unresolved,),) = await judged(run)
    assert isinstance(unresolved, RewardUnresolved)
    assert unresolved.attempts == 0


async def test_a_state_that_is_lost_is_unresolved_and_not_zero(run: Any) -> None:
    run.task("job")
    run.configure(reward={"attempts": 1})
    state = kept(run)
    run.bus.blobs.path(state.digest).unlink()
    await end(run, state)
    ((assessment, unresolved),) = await judged(run)
    assert (assessment.valid, assessment.score) == (False, None)
    assert isinstance(unresolved, RewardUnresolved)


async def test_an_entry_that_is_delivered_again_is_scored_once(run: Any) -> None:
    run.task("job")
    await end(run, kept(run))
    before = await judged(run)
    run.broker.run("r").queues["eval"].offer(
        1, "ev.r.runner.execution.x0-0.terminated", run.broker.run("r").ev.messages[0][1]
    )
    assert await judged(run) == before


async def test_an_entry_that_comes_again_while_its_state_is_judged_waits_and_disturbs_nothing(run: Any) -> None:
    for name in ("up", "on"):
        os.mkfifo(run.folder / name)
    run.task("job", f"echo x >>{run.folder}/begun; echo up >{run.folder}/up; read on <{run.folder}/on; exit 0")
    await end(run, kept(run))
    async with run.serving(evaluator.serve, "evaluator"):
        await told(run.folder / "up")
        queue = run.broker.run("r").queues["eval"]
        queue.offer(1, *run.broker.run("r").ev.messages[0])
        await until(lambda: all(entry.attempts for entry in queue._entries))
        for _ in range(100):  # whoever has it has every chance to begin
            await asyncio.sleep(0.005)
        assert (run.folder / "begun").read_text() == "x\n"
        await asyncio.to_thread((run.folder / "on").write_text, "on\n")
        ((assessment, reward),) = [each.commit.events for each in await run.heard(SAID, 1)]
        await run.emptied("eval")
    assert (assessment.score, assessment.attempt, reward.reward) == (1.0, 1, 1.0)
    assert await run.count(SAID) == 1


async def park(run: Any, queue: QueueName) -> int:
    """Take an entry up until the queue gives it up; how often that was."""
    taken = 0
    while found := await run.bus.queue(queue).pull(1, 0):
        await found[0].nak()
        taken += 1
    return taken


async def test_an_entry_that_nobody_lived_to_settle_is_unresolved_and_off_the_queue(run: Any) -> None:
    run.task("job")
    await end(run, kept(run))
    assert await park(run, "eval") == 8
    ((unresolved,),) = await judged(run)
    assert isinstance(unresolved, RewardUnresolved)
    assert (unresolved.group, unresolved.attempts, "8 deliveries" in unresolved.reason) == ("g0", 0, True)


async def test_a_parked_entry_keeps_the_reward_that_was_said(run: Any) -> None:
    await end(run, None)
    said = RewardAssigned(execution="x0-0", group="g0", reward=0.5)
    await run.say("evaluator", "execution", "x0-0", event=said)
    await park(run, "eval")
    assert await judged(run) == [(said,)]


async def test_what_another_queue_parked_is_an_error_that_names_it(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(max_deliver=2)
    run.broker.provision("strict", limits)
    bus = await MemoryBus.connect(run.broker, "strict", "evaluator", "one", run.folder)
    subject = "ev.strict.scheduler.execution.x0-0.dispatched"
    run.broker.store("strict", subject, b"no commit")
    for _ in range(limits.deliveries("rollout")):
        await (await bus.queue("rollout").pull(1, 0))[0].nak()
    task = asyncio.ensure_future(evaluator.serve(run.place("evaluator"), bus))
    await until(lambda: bool(caplog.records))
    task.cancel()
    await asyncio.wait([task])
    assert f"{subject}: parked in queue rollout after 2 deliveries" in caplog.text
    assert run.broker.run("strict").queues["rollout"].poison()


async def test_what_is_dispatched_or_enqueued_comes_back_however_often_it_was_given_back(run: Any) -> None:
    await run.dispatch("x0-0", "job")
    run.broker.store("r", "ev.r.packer.step.0.0", b"no commit")
    for queue in ("rollout", "step"):
        for attempt in range(1, 101):
            (delivery,) = await run.bus.queue(queue).pull(1, 0)
            assert delivery.attempts == attempt
            await delivery.nak()


@pytest.mark.parametrize("written", ["", "1.5", "-0.1", "nan", "inf", "good", "0.5 0.6"])
def test_what_is_no_number_from_zero_to_one_is_no_score(written: str) -> None:
    score, detail = verdict(0, written)
    assert score is None
    assert "REWARD_FILE" in detail


def test_a_written_reward_counts_whatever_the_exit_code() -> None:
    assert verdict(5, "0.25")[0] == 0.25
    assert [verdict(code, None)[0] for code in (0, 1, 2, -9)] == [1.0, 0.0, None, None]


async def test_what_was_cancelled_is_left_out_unscored(run: Any) -> None:
    run.task("job", "echo 1 >$REWARD_FILE")
    event = ExecutionTerminated(
        execution="x0-0",
        group="g0",
        task="job",
        reason="cancelled",
        stage="agent",
        exit_code=None,
        seconds=1,
        state=kept(run),
    )
    await run.say("runner", "execution", "x0-0", "terminated", event=event)
    ((reward,),) = await judged(run)
    assert isinstance(reward, RewardUnresolved)
    assert (reward.attempts, "cancelled" in reward.reason) == (0, True)
