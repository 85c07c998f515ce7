"""The examiner on the bus in memory."""

import math
import resource
from typing import Any

import pytest

from gyre.proxy.tokens import MOST_ATTEMPTS, episode, execution_token
from gyre.sandboxes.make import make_sandbox
from gyre.tasks.folder import load_tasks
from schemas.base import floats
from schemas.runs import EvaluationScored, EvaluationStarted
from schemas.training import WeightsPublished
from services import examiner
from services.episode import Episodes, Outcome
from services.judges import judges_of
from services.proxy.world import World
from services.workspace import MOST_BYTES, make
from tests.core.facts import WEIGHTS, stepped
from tests.services.work.conftest import SECRET

SAID = "ev.r.examiner.evaluation.*"


async def start(run: Any, name: str, episodes: int) -> None:
    event = EvaluationStarted(evaluation=name, version=3, episodes=episodes)
    await run.say("scheduler", "evaluation", name, event=event)


def with_heldout(run: Any, **tests: str) -> None:
    for path in (run.folder / "tasks/heldout").iterdir():
        path.rename(run.folder / path.name)
    for name, test in tests.items():
        run.task(name, test, split="heldout")


async def scored(run: Any) -> EvaluationScored:
    async with run.serving(examiner.serve, "examiner"):
        event = (await run.heard(SAID, 1))[0].commit.events[0]
    assert isinstance(event, EvaluationScored)
    assert list((run.folder / "work").iterdir()) == []
    return event


async def test_held_out_tasks_are_worked_on_in_turn_and_the_valid_scores_averaged(run: Any, model: Any) -> None:
    model.does(("write", {"path": "out", "content": "x"}))
    with_heldout(run, a="[ -f out ]", b="[ ! -f out ]", c="exit 7")
    await start(run, "e3", 5)
    event = await scored(run)
    scores = floats(event.scores)
    assert scores[:2] == [1.0, 0.0]
    assert math.isnan(scores[2])
    assert scores[3:] == [1.0, 0.0]
    assert (event.version, event.valid, event.mean) == (3, 4, 0.5)
    assert len(set(model.keys)) == 5


async def test_no_more_episodes_run_at_a_time_than_configured(run: Any) -> None:
    with_heldout(run, a="[ $(cat most) -le 2 ]")
    peers = run.folder / "peers"
    peers.mkdir()
    run.harness(f"touch {peers}/$$; sleep 0.05; ls {peers} | wc -l >most; rm {peers}/$$")
    run.configure(evaluation={"concurrency": 2})
    await start(run, "e0", 6)
    assert (await scored(run)).mean == 1.0


async def test_what_was_scored_is_not_scored_again(run: Any) -> None:
    with_heldout(run, a="exit 0")
    run.harness("exit 0")
    await start(run, "e0", 1)
    await scored(run)
    await start(run, "e1", 1)
    async with run.serving(examiner.serve, "examiner"):
        said = await run.heard(SAID, 2)
    assert [one.commit.events[0].evaluation for one in said] == ["e0", "e1"]


async def test_an_evaluation_without_any_valid_score_has_mean_zero(run: Any) -> None:
    with_heldout(run, a="exit 7")
    run.harness("exit 0")
    await start(run, "e0", 2)
    event = await scored(run)
    assert (event.valid, event.mean) == (0, 0.0)


@pytest.mark.parametrize(("policy", "score"), [("placeholder", 0.0), ("mask", math.nan)])
@pytest.mark.parametrize(
    "script",
    [
        f"truncate -s {MOST_BYTES + 1} big",
        "mv ../ws ../moved; ln -s moved ../ws",
        "rm -r ../ws",
    ],
)
async def test_an_episode_that_leaves_nothing_to_assess_counts_as_an_execution_does(
    run: Any, script: str, policy: str, score: float
) -> None:
    with_heldout(run, a="exit 0")
    run.harness(f"case $HOME in *e0-0*) {script};; esac")
    run.configure(reward={"nothing_assessable": policy})
    await start(run, "e0", 2)
    event = await scored(run)
    assert floats(event.scores) == pytest.approx([score, 1.0], nan_ok=True)
    assert (event.mean, event.valid) == ((0.5, 2) if policy == "placeholder" else (1.0, 1))


async def test_an_episode_that_never_began_counts_as_an_execution_does(run: Any) -> None:
    with_heldout(run, a="exit 0", b="exit 0")
    run.named("a", "/no/such/folder")
    with (run.folder / "tasks/heldout/a/task.toml").open("a") as file:
        file.write("[gyre]\nfrom_image = true\n")
    run.harness("exit 0")
    await start(run, "e0", 2)
    event = await scored(run)
    assert (floats(event.scores), event.valid) == ([0.0, 1.0], 2)


async def test_a_link_by_the_tasks_own_name_for_its_workspace_is_part_of_the_work(run: Any) -> None:
    with_heldout(run, a="[ -f current ]")
    run.named("a", "/app")
    run.harness("ln -s /app/start.txt current")
    await start(run, "e0", 1)
    assert (await scored(run)).mean == 1.0


async def test_episodes_that_are_started_again_have_ids_of_their_own(run: Any) -> None:
    with_heldout(run, a="exit 0")
    (run.folder / "work" / "e0-1").mkdir(parents=True)  # what one that was killed leaves
    await start(run, "e0", 2)
    run.harness(f'printf %s "$OPENAI_API_KEY" >{run.folder}/key-$$')
    assert (await scored(run)).valid == 2
    keys = {path.read_text() for path in run.folder.glob("key-*")}
    assert keys == {execution_token(SECRET, name) for name in ("e0-0r2", "e0-1r2")}
    world = World(run.bus, SECRET, 0)
    world.fold(EvaluationStarted(evaluation="e0", version=3, episodes=2))
    assert {await world.execution(key) for key in keys} == {"e0-0r2", "e0-1r2"}


async def test_an_evaluation_that_was_begun_as_often_as_it_may_be_has_no_score(run: Any) -> None:
    """A further attempt would be under ids of one that was begun: two episodes in one tree."""
    with_heldout(run, a="exit 0")
    run.harness("exit 0")
    for attempt in range(1, MOST_ATTEMPTS + 1):
        (run.folder / "work" / episode("e0", 0, attempt)).mkdir(parents=True)
    await start(run, "e0", 2)
    assert (await scored(run)).valid == 0


async def test_an_evaluation_that_was_begun_while_a_publication_was_under_way_measures_what_is_published(
    run: Any,
) -> None:
    with_heldout(run, a="exit 0")
    run.harness("exit 0")
    run.configure(schedule={"mu": 2})
    await run.say("cell", "core", event=stepped(1))
    await run.say("cell", "core", event=stepped(2))
    await run.say("scheduler", "evaluation", "e0", event=EvaluationStarted(evaluation="e0", version=0, episodes=1))
    published = WeightsPublished(version=2, weights=WEIGHTS, seconds=0.0)
    before = await run.say("cell", "core", event=published)
    async with run.serving(examiner.serve, "examiner"):
        (said,) = await run.heard(SAID, 1)
    assert said.commit.events[0].version == 2
    assert said.commit.as_of >= before


async def test_a_fault_of_ours_is_no_score(run: Any) -> None:
    """No descriptor is free while the work is read: that says nothing about the policy."""
    with_heldout(run, a="exit 0")
    tasks = load_tasks(run.folder / "tasks/heldout")
    sandbox = make_sandbox(run.config.sandbox, run.folder)
    judges = judges_of(run.config, run.folder)
    place = run.place("examiner")
    episodes = Episodes(run.folder, run.config, {task.name: task for task in tasks}, sandbox)
    mine = examiner.Examiner(place, run.bus, tasks, episodes, judges.designated)
    left = make(tasks[0], episodes.box("e0-0"))
    outcome = Outcome("completed", "agent", 0, 0.0, "", left)
    box = episodes.box("e0-0.eval")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        score = await mine._judged("e0-0", tasks[0], outcome, box)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert math.isnan(score)
    assert await mine._judged("e0-0", tasks[0], outcome, box) == 1.0
    await judges.close()
    await sandbox.close()
