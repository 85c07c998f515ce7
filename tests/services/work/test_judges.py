"""[evaluator] at work: a judge that supplies the reward, others that are heard beside it, and regrades by either."""

import json
from pathlib import Path
from typing import Any

import pytest

from gyre.config import Config
from gyre.errors import ConfigError
from gyre.evaluators.port import EvaluatorError
from gyre.tasks.folder import TaskError, load_tasks
from schemas.dispatch import ExecutionDispatched, ExecutionTerminated, GroupDispatched
from schemas.refs import StateRef
from schemas.rewards import AssessmentRecorded, RewardAssigned, RewardUnresolved
from services import evaluator
from services.grading import Scorer
from services.judges import check_evaluators, judges_of
from services.regrade import Wish, regrade
from services.regrading import RegradeError
from services.setup import copy_tasks, sandboxes_of
from services.workspace import preserve
from tests.evaluators.judge_server import judging

SAID = "ev.r.evaluator.execution.x0-0"


async def left(run: Any, said: str, reward: float | None = None) -> StateRef:
    """An execution that ended with `said` in out; `reward` if it is settled."""
    place = run.folder / "left"
    place.mkdir()
    (place / "out").write_text(said)
    blob = run.bus.blobs.put(preserve(place))
    state = StateRef(digest=blob.digest, size=blob.size, address=blob.address)
    group = GroupDispatched(group="g0", index=0, task="job", version=0, executions=1)
    await run.say("scheduler", "group", "g0", event=group)
    entry = ExecutionDispatched(execution="x0-0", group="g0", task="job", index=0, version=0, seed=1)
    await run.say("scheduler", "execution", "x0-0", "dispatched", event=entry)
    ended = ExecutionTerminated(
        execution="x0-0", group="g0", task="job", reason="completed", stage="agent", exit_code=0, seconds=1, state=state
    )
    await run.say("runner", "execution", "x0-0", "terminated", event=ended)
    if reward is not None:
        settled = RewardAssigned(execution="x0-0", group="g0", reward=reward)
        await run.say("evaluator", "execution", "x0-0", event=settled)
    return state


async def scored(run: Any, subject: str = SAID) -> tuple[Any, ...]:
    """The events of the first commit on a subject, once the entry is off the queue."""
    async with run.serving(evaluator.serve, "evaluator"):
        (stored,) = await run.heard(subject, 1)
        await run.emptied("eval")
    return stored.commit.events


def by_judge(url: str, **more: Any) -> dict[str, Any]:
    return {"kind": "judge", "judge": {"url": f"{url}/v1", "model": "wise"}, **more}


async def test_a_judge_may_supply_the_reward_and_its_transcript_is_kept(run: Any) -> None:
    run.task("job", "exit 1")
    async with judging() as server:
        run.configure(evaluator=by_judge(server.url))
        state = await left(run, "4")
        assessment, reward = await scored(run)
    assert reward == RewardAssigned(execution="x0-0", group="g0", reward=1.0)
    assert isinstance(assessment, AssessmentRecorded)
    assert (assessment.designated, assessment.state, assessment.detail) == (True, state, "as tested")
    by = assessment.provenance
    assert by is not None
    assert (by.evaluator, by.model, by.url, by.sandbox) == ("judge", "wise", f"{server.url}/v1", "process")
    assert by.transcript is not None
    lines = run.bus.blobs.get(by.transcript).decode().splitlines()
    assert json.loads(lines[-1]) == {"verdict": {"score": 1.0, "valid": True, "reasons": "as tested"}}
    assert list((run.folder / "work").iterdir()) == []


async def test_tests_that_are_gone_are_the_evaluators_failure(run: Any) -> None:
    run.task("job", "exit 0")
    state = await left(run, "4")
    tasks = {task.name: task for task in load_tasks(run.folder / "tasks/train")}
    (run.folder / "tasks/train/job/tests/test.sh").unlink()
    (run.folder / "tasks/train/job/tests").rmdir()
    judges = judges_of(run.config, run.folder)
    found = await Scorer(run.bus.blobs, tasks, judges.designated).verdict("job", state, run.folder / "work/x", 9.0)
    await judges.close()
    assert (found.score, found.valid, "No such file" in found.detail) == (None, False, True)


async def test_a_judge_without_a_verdict_is_tried_again_and_then_unresolved(run: Any) -> None:
    run.task("job")
    async with judging(lambda _: []) as server:
        judge = {**by_judge(server.url)["judge"], "turns": 1}
        run.configure(evaluator=by_judge(server.url, judge=judge), reward={"attempts": 2, "backoff_seconds": 0.01})
        await left(run, "4")
        async with run.serving(evaluator.serve, "evaluator"):
            said = await run.heard(SAID, 2)
            await run.emptied("eval")
    unresolved = said[-1].commit.events[-1]
    assert isinstance(unresolved, RewardUnresolved)
    assert (unresolved.attempts, unresolved.reason) == (2, "the judge gave no verdict in 1 answers")


async def test_others_are_heard_beside_the_reward_which_stays(run: Any) -> None:
    run.task("job", "exit 0")
    async with judging() as server:
        run.configure(evaluator={**by_judge(server.url), "kind": "tests", "beside": ["judge", "command"],
                                 "command": "sh -c 'echo 0.25 >$REWARD_FILE'"})  # fmt: skip
        await left(run, "5")
        (judged,) = await scored(run, "ev.r.evaluator.beside.x0-0.judge")
    assert (judged.score, judged.designated, judged.assessment) == (0.0, False, "x0-0-judge")
    (commanded,) = (await run.heard("ev.r.evaluator.beside.x0-0.command", 1))[0].commit.events
    assert (commanded.score, commanded.designated, commanded.provenance.evaluator) == (0.25, False, "command")
    (commit,) = await run.heard(SAID, 1)
    assert commit.commit.events[-1] == RewardAssigned(execution="x0-0", group="g0", reward=1.0)
    assert await run.count("ev.r.evaluator.beside.>") == 2


async def test_who_was_not_heard_beside_a_settled_reward_is_heard_when_its_entry_comes_again(run: Any) -> None:
    run.task("job", "exit 0")
    run.configure(evaluator={"beside": ["command"], "command": "true"})
    await left(run, "4", reward=0.5)
    (beside,) = await scored(run, "ev.r.evaluator.beside.x0-0.command")
    assert (beside.score, await run.count(SAID)) == (1.0, 1)


async def test_a_run_is_regraded_by_a_judge_and_by_its_own_evaluator(run: Any) -> None:
    run.task("job", "exit 1")
    await left(run, "4", reward=0.0)
    async with judging() as server:
        settings = ("evaluator.kind=judge", f"evaluator.judge.url={server.url}/v1", "evaluator.judge.model=wise")
        place = run.place("evaluator")
        first = await regrade(place, run.bus, Wish(settings=settings))
        again = await regrade(place, run.bus, Wish(settings=settings))
        other = await regrade(place, run.bus, Wish(settings=(*settings, "evaluator.judge.model=other")))
    assert (first.found, first.evaluator) == ({"x0-0": 1.0}, f"wise at {server.url}/v1")
    assert first.regrade == f"judge-{first.digest[:12]}"
    assert (again.regrade, again.new, other.regrade != first.regrade) == (first.regrade, 0, True)
    own = await regrade(place, run.bus, Wish())
    assert (own.evaluator, own.found) == ("tests", {"x0-0": 0.0})
    with pytest.raises(RegradeError, match="--set objective: "):
        await regrade(place, run.bus, Wish(settings=("objective.name=grpo",)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "judge"}, "evaluator.judge.url = ''"),
        ({"kind": "judge", "judge": {"url": "http://h"}}, "evaluator.judge.model = ''"),
        ({"kind": "command"}, "evaluator.command = ''"),
        ({"beside": ["tests"]}, "name each once"),
        ({"judge": {"url": "http://user:password@h"}}, "evaluator.judge.url"),
        ({"judge": {"key_env": "sk-this is a key"}}, "evaluator.judge.key_env"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config.of({"evaluator": settings})
    assert words in str(error.value)


def test_a_key_that_is_not_there_is_missed_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = {"url": "http://h", "model": "wise", "key_env": "A_JUDGES_KEY"}
    config = Config.of({"evaluator": {"beside": ["judge"], "judge": judge}})
    monkeypatch.delenv("A_JUDGES_KEY", raising=False)
    with pytest.raises(EvaluatorError, match="A_JUDGES_KEY"):
        judges_of(config, tmp_path)
    monkeypatch.setenv("A_JUDGES_KEY", "of the judge")
    check_evaluators(config)
    assert "of the judge" not in json.dumps(config.table())


def test_a_command_that_cannot_be_one_is_missed_before_the_run() -> None:
    config = Config.of({"evaluator": {"kind": "command", "command": "sh {nowhere}"}})
    with pytest.raises(EvaluatorError, match="nowhere"):
        check_evaluators(config)


def test_a_task_that_its_graders_sandbox_cannot_run_is_refused(run: Any, tmp_path: Path) -> None:
    run.task("job")
    file = run.folder / "tasks/train/job/task.toml"
    file.write_text(f'{file.read_text()}[environment]\ndocker_image = "an-image"\n')
    config = Config.of({"evaluator": {"sandbox": "process"}, "sandbox": {"kind": "docker"}})
    source = str(run.folder / "tasks/train")
    with pytest.raises(TaskError, match=r"job: needs image an-image, which evaluator\.sandbox = process"):
        copy_tasks(source, tmp_path / "copy", 0, sandboxes_of(config))


async def test_tests_may_run_elsewhere_than_agents(tmp_path: Path) -> None:
    config = Config.of({"evaluator": {"sandbox": "process", "image": "an-image"}, "sandbox": {"kind": "process"}})
    judges = judges_of(config, tmp_path)
    assert (judges.designated.kind, judges.designated.title, judges.beside) == ("tests", "tests", ())
    await judges.close()
