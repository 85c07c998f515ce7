"""The runner on the bus in memory, with the real reference harness and with hostile ones."""

import asyncio
import hashlib
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from bus.log import BusPort
from gyre.config import Config
from gyre.proxy.tokens import execution_token
from gyre.sandboxes.orphans import marked
from gyre.sandboxes.process import ProcessSandbox
from gyre.tasks.folder import load_tasks
from schemas.dispatch import CancellationRequested, ExecutionLaunched, ExecutionTerminated
from services import runner
from services.episode import Episodes
from services.place import Place
from services.presence import present
from services.workspace import MOST_BYTES, restore
from tests.core.test_groups import CALL
from tests.pipes import told
from tests.services.work.conftest import until

SAID = "ev.r.runner.execution.*.*"
FORK = "setsid sleep 300 & sleep 300 & echo forked"


async def ended(run: Any, execution: str) -> ExecutionTerminated:
    stored = (await run.heard(f"ev.r.runner.execution.{execution}.terminated", 1))[0]
    event = stored.commit.events[0]
    assert isinstance(event, ExecutionTerminated)
    return event


async def episode(run: Any, script: str, task: str = "job", **more: Any) -> ExecutionTerminated:
    """One execution with this harness, from its dispatch to its end."""
    run.task(task, seconds=more.pop("seconds", 30.0))
    run.harness(script, **more)
    async with run.serving(runner.serve, "runner"):
        await run.dispatch("x0-0", task)
        await run.grant("x0-0")
        event = await ended(run, "x0-0")
        await run.emptied("rollout")
    assert await run.count(SAID) == 2
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    assert not [pid for pid in pids if marked(pid, run.folder / "work/x0-0")]
    return event


def restored(run: Any, event: ExecutionTerminated) -> Path:
    assert event.state is not None
    place = run.folder / f"restored-{event.execution}"
    restore(run.bus.blobs.get(event.state), place)
    return Path(place)


async def test_an_execution_whose_earlier_launch_a_power_cut_took_from_the_log_is_not_run_again(run: Any) -> None:
    """Its tree would hold both episodes. The next one, of which CALL knows nothing, is run as ever."""
    run.configure(bus={"durability": "laptop"})
    run.task("job")
    run.harness("echo ran >out")
    record = CALL.model_copy(update={"execution": "x0-0"})
    commit = run.place("proxy").commit((record,), as_of=0, correlation="x0-0")
    await run.bus.calls.append("call.r.x0-0", commit)
    async with run.serving(runner.serve, "runner"):
        for name in ("x0-0", "x0-1"):
            await run.dispatch(name, "job")
            await run.grant(name)
        torn, whole = [await ended(run, name) for name in ("x0-0", "x0-1")]
        await run.emptied("rollout")
    assert (torn.reason, torn.stage, torn.state) == ("failed", "setup", None)
    assert torn.detail == "CALL holds records of an earlier launch, which a power cut took from EV"
    assert (restored(run, whole) / "out").read_text() == "ran\n"


async def test_the_reference_harness_works_on_its_task_and_its_work_is_kept(run: Any, model: Any) -> None:
    model.does(("write", {"path": "out.txt", "content": "hello"}))
    run.task("job")
    async with run.serving(runner.serve, "runner") as place:
        await run.dispatch("x0-0", "job")
        await run.grant("x0-0")
        event = await ended(run, "x0-0")
        await run.emptied("rollout")
    assert (event.reason, event.stage, event.exit_code, event.detail) == ("completed", "agent", 0, "done")
    kept = restored(run, event)
    assert sorted(path.name for path in kept.iterdir()) == ["out.txt", "start.txt"]
    assert (kept / "out.txt").read_text().strip() == "hello"
    token = execution_token(b"s" * 32, "x0-0")
    assert set(model.paths) == {f"/x/{token}/v1/chat/completions"}
    launched = (await run.heard(SAID, 1))[0].commit.events[0]
    assert isinstance(launched, ExecutionLaunched)
    assert (launched.runner, launched.deadline_seconds) == (place.instance, 30.0)
    assert launched.token_digest == hashlib.sha256(token.encode()).hexdigest()
    assert not (run.folder / "work/x0-0").exists()


async def test_nothing_is_launched_before_it_is_granted(run: Any) -> None:
    run.task("job")
    run.harness("exit 0")
    async with run.serving(runner.serve, "runner"):
        for name in ("x0-0", "x0-1"):
            await run.dispatch(name, "job")
        await run.grant("x0-1")
        assert (await ended(run, "x0-1")).reason == "completed"
        assert await run.count("ev.r.runner.execution.x0-0.*") == 0
        await run.grant("x0-0")
        assert (await ended(run, "x0-0")).reason == "completed"


async def test_a_harness_that_fails_at_once_is_recorded_and_its_state_kept(run: Any) -> None:
    event = await episode(run, "echo half >half.txt; echo broken >&2; exit 9")
    assert (event.reason, event.stage, event.exit_code, event.detail) == ("failed", "agent", 9, "broken")
    assert (restored(run, event) / "half.txt").read_text() == "half\n"


async def test_a_harness_that_hangs_ends_at_its_deadline_and_its_state_is_kept(run: Any) -> None:
    event = await episode(run, "trap '' TERM; echo half >half.txt; while :; do sleep 1; done", seconds=0.5)
    assert (event.reason, event.stage) == ("timeout", "agent")
    assert "deadline of 0.5 s" in event.detail
    assert (restored(run, event) / "half.txt").exists()


async def test_the_shorter_of_two_deadlines_counts(run: Any) -> None:
    event = await episode(run, "sleep 300", seconds=30.0, timeout_seconds=0.3)
    assert event.reason == "timeout"
    assert event.seconds < 10


async def test_a_harness_that_floods_its_output_is_recorded_in_one_line(run: Any) -> None:
    event = await episode(run, "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the end")
    assert (event.reason, event.detail) == ("completed", "the end")


async def test_a_token_that_a_harness_prints_stays_out_of_the_log(run: Any) -> None:
    event = await episode(run, 'echo "key $OPENAI_API_KEY"')
    assert event.detail == "key <token>"


async def test_a_harness_sees_its_instruction_but_not_where_its_tests_are(run: Any) -> None:
    script = 'cat "$GYRE_INSTRUCTION_FILE" >seen; ls "${GYRE_INSTRUCTION_FILE%/*}" >>seen; env | grep tasks >>seen'
    seen = (restored(run, await episode(run, script)) / "seen").read_text().splitlines()
    assert seen == ["Do job.", "home", "instruction.md", "tmp", "ws"]


async def test_children_that_outlive_a_harness_are_gone_when_its_end_is_said(run: Any) -> None:
    event = await episode(run, FORK)
    assert (event.reason, event.detail) == ("completed", "forked")


async def test_a_missing_task_fails_in_setup_after_its_launch(run: Any) -> None:
    run.harness("exit 0")
    async with run.serving(runner.serve, "runner"):
        await run.dispatch("x0-0", "nowhere")
        await run.grant("x0-0")
        event = await ended(run, "x0-0")
    assert (event.reason, event.stage, event.state) == ("failed", "setup", None)
    assert "nowhere" in event.detail
    assert await run.count(SAID) == 2


async def test_a_workspace_too_large_to_keep_leaves_no_state_but_a_reason(run: Any) -> None:
    event = await episode(run, f"head -c {MOST_BYTES + 1} /dev/zero >big")
    assert (event.reason, event.state) == ("completed", None)
    assert f"more than {MOST_BYTES} bytes" in event.detail


async def test_a_link_by_the_tasks_own_name_for_its_workspace_is_kept_whoever_ends_it(run: Any) -> None:
    run.task("job")
    run.named("job", "/app")
    os.mkfifo(run.folder / "up")
    run.harness(f"ln -s /app/start.txt current; case $HOME in *x0-1*) echo up >{run.folder}/up; sleep 300;; esac")
    for name in ("x0-0", "x0-1"):
        await run.dispatch(name, "job")
        await run.grant(name)
    async with run.serving(runner.serve, "runner", "first"):
        events = [await ended(run, "x0-0")]
        await told(run.folder / "up")
    async with run.serving(runner.serve, "runner", "second"):
        events.append(await ended(run, "x0-1"))
        await run.emptied("rollout")
    assert [event.reason for event in events] == ["completed", "failed"]
    assert [(restored(run, event) / "current").read_text() for event in events] == ["start\n", "start\n"]


async def test_a_cancelled_execution_ends_once_wherever_it_stands(run: Any) -> None:
    run.task("job")
    os.mkfifo(run.folder / "up")
    run.harness(f"echo up >{run.folder}/up; sleep 300")
    async with run.serving(runner.serve, "runner"):
        for name in ("x0-0", "x0-1"):
            await run.dispatch(name, "job")
        await run.grant("x0-0")
        await told(run.folder / "up")
        for name in ("x0-0", "x0-1"):
            event = CancellationRequested(execution=name)
            await run.say("scheduler", "execution", name, "cancel", event=event)
        running, queued = await ended(run, "x0-0"), await ended(run, "x0-1")
    assert (running.reason, running.stage) == ("cancelled", "agent")
    assert running.state is not None
    assert (queued.reason, queued.stage, queued.state) == ("cancelled", "setup", None)
    assert await run.count(SAID) == 4


async def test_what_a_lost_runner_launched_ends_as_failed_exactly_once_with_what_it_left(run: Any) -> None:
    run.task("job")
    os.mkfifo(run.folder / "up")
    run.harness(f"echo half >half.txt; echo up >{run.folder}/up; sleep 300")
    async with run.serving(runner.serve, "runner", "first"):
        await run.dispatch("x0-0", "job")
        await run.grant("x0-0")
        await told(run.folder / "up")
    assert await run.count(SAID) == 1
    for instance in ("second", "third"):
        async with run.serving(runner.serve, "runner", instance):
            event = await ended(run, "x0-0")
            await run.emptied("rollout")
    assert (event.reason, event.exit_code) == ("failed", None)
    assert "first" in event.detail
    assert (restored(run, event) / "half.txt").exists()
    assert await run.count(SAID) == 2


async def test_a_box_that_its_agent_has_closed_ends_with_its_lost_runner(run: Any) -> None:
    run.task("job")
    os.mkfifo(run.folder / "up")
    run.harness(f'chmod 0 "$HOME/.."; echo up >{run.folder}/up; sleep 300')
    async with run.serving(runner.serve, "runner", "first"):
        await run.dispatch("x0-0", "job")
        await run.grant("x0-0")
        await told(run.folder / "up")
    if os.access(run.folder / "work/x0-0/ws", os.F_OK):
        pytest.skip("this user looks into every folder")
    async with run.serving(runner.serve, "runner", "second"):
        event = await ended(run, "x0-0")
        await run.emptied("rollout")
    assert (event.reason, event.state, "first" in event.detail) == ("failed", None, True)


async def test_what_a_runner_launched_is_left_to_it_while_it_lives_and_ended_by_another_once_it_is_silent(
    run: Any,
) -> None:
    run.task("job")
    os.mkfifo(run.folder / "up")
    run.harness(f"echo up >{run.folder}/up; sleep 300")
    run.configure(cells={"heartbeat_seconds": 0.02, "lost_after_seconds": 0.3})
    async with run.serving(runner.serve, "runner", "first"):
        await run.dispatch("x0-0", "job")
        await run.grant("x0-0")
        await told(run.folder / "up")
        async with run.serving(runner.serve, "runner", "second"):
            queue, state = run.broker.run("r").queues["rollout"], run.broker.run("r").ev
            queue.offer(1, "ev.r.scheduler.execution.x0-0.dispatched", state.messages[0][1])
            await beats(run, "second", 40)
            assert await run.count(SAID) == 1
    async with run.serving(hanging, "runner", "first"), run.serving(runner.serve, "runner", "third"):
        event = await ended(run, "x0-0")
        await beats(run, "third", 20)
    assert event.reason == "failed"
    assert await run.count(SAID) == 2


async def hanging(place: Any, bus: Any) -> None:
    """A runner's process that is there and does nothing."""
    with present(place.folder, place.instance):
        await asyncio.Event().wait()


async def beats(run: Any, instance: str, count: int) -> None:
    """Wait for so many heartbeats of a runner."""
    async with asyncio.timeout(30), aclosing(run.bus.listen("hint.r.heartbeat.runner")) as heard:
        async for _, body in heard:
            count -= body.decode().startswith(instance)
            if not count:
                return


async def test_an_entry_that_is_delivered_again_launches_nothing_again(run: Any) -> None:
    event = await episode(run, "exit 0")
    queue = run.broker.run("r").queues["rollout"]
    sequence, subject = 1, "ev.r.scheduler.execution.x0-0.dispatched"
    queue.offer(sequence, subject, run.broker.run("r").ev.messages[0][1])
    async with run.serving(runner.serve, "runner"):
        await run.emptied("rollout")
    assert event.reason == "completed"
    assert await run.count(SAID) == 2


async def test_the_box_of_a_runner_killed_after_its_last_word_goes_with_the_entry(run: Any) -> None:
    """Workspaces are large, and nobody else looks for them."""
    await episode(run, "exit 0")
    box = run.folder / "work" / "x0-0"
    (box / "ws").mkdir(parents=True)
    (box / "ws" / "large.bin").write_bytes(b"0" * 1024)
    run.broker.run("r").queues["rollout"].offer(1, *run.broker.run("r").ev.messages[0])
    async with run.serving(runner.serve, "runner"):
        await run.emptied("rollout")
    assert not box.exists()
    assert await run.count(SAID) == 2


async def test_an_entry_that_comes_again_to_the_runner_that_ended_it_holds_nothing(run: Any) -> None:
    run.task("job")
    run.harness("exit 0")
    async with run.serving(runner.serve, "runner"):
        await run.dispatch("x0-0", "job")
        await run.grant("x0-0")
        await ended(run, "x0-0")
        await run.emptied("rollout")
        state = run.broker.run("r")
        state.queues["rollout"].offer(1, *state.ev.messages[0])
        await run.emptied("rollout")
    assert await run.count(SAID) == 2


async def test_a_dead_runners_entries_are_not_kept_out_by_later_ones(run: Any) -> None:
    run.task("job")
    run.harness("exit 0")
    run.configure(cells={"count": 1, "concurrency": 1})
    names = [f"x0-{index}" for index in range(8)]
    for name in names:
        await run.dispatch(name, "job")
    dead = await run.bus.queue("rollout").pull(2, 10)
    async with run.serving(runner.serve, "runner"):
        await until(lambda: held(run) >= 4)
        for delivery in dead:
            await delivery.nak()  # as the end of its lease would
        for name in names:
            await run.grant(name)
            assert (await ended(run, name)).reason == "completed"
        await run.emptied("rollout")


def held(run: Any) -> int:
    """Entries of the queue that somebody holds."""
    return sum(entry.attempts > 0 for entry in run.broker.run("r").queues["rollout"]._entries)


def test_a_runner_can_hold_all_that_may_be_open() -> None:
    config = Config.of({"schedule": {"groups": 4, "executions": 8, "phi": 0.5, "mu": 2}, "cells": {"count": 2}})
    assert runner.most_open(config) == (2 + 16) * 8 + 2 * 16


async def test_a_runner_remembers_no_orders_for_executions_that_ended(run: Any) -> None:
    await episode(run, "exit 0")
    runners: list[runner.Runner] = []

    async def serve(place: Place, bus: BusPort) -> None:
        tasks = {task.name: task for task in load_tasks(place.folder / "tasks/train")}
        runners.append(runner.Runner(place, bus, Episodes(place.folder, place.config, tasks, ProcessSandbox())))
        await runners[0].run()

    async with run.serving(serve, "runner"):
        await run.dispatch("x0-1", "job")
        await run.grant("x0-1")
        await ended(run, "x0-1")
        await run.say("scheduler", "execution", "x0-1", "cancel", event=CancellationRequested(execution="x0-1"))
        await run.dispatch("x0-2", "job")
        await run.grant("x0-2")
        await ended(run, "x0-2")
        await run.emptied("rollout")
        assert runners[0]._orders == {}


async def test_what_is_no_execution_is_taken_off_the_queue(run: Any) -> None:
    run.broker.store("r", "ev.r.scheduler.execution.x0-0.dispatched", b"no commit")
    run.task("job")
    async with run.serving(runner.serve, "runner"):
        await run.emptied("rollout")
    assert await run.count(SAID) == 0
