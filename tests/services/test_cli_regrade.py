"""gyre regrade and gyre assess on a run that is stopped: its server serves for the while, and its log has the words."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bus.archive import export_run
from bus.jetstream import Bus
from bus.server import NatsServer
from gyre.config import Config
from schemas.dispatch import ExecutionDispatched, ExecutionTerminated, GroupDispatched
from schemas.envelope import Event
from schemas.refs import StateRef, WeightsRef
from schemas.rewards import RewardAssigned
from schemas.runs import RunStarted
from services.cli.app import app
from services.place import Note, Place
from services.workspace import preserve

Gyre = Callable[..., Result]


def facts(config: Config, states: list[StateRef]) -> list[tuple[str, tuple[str, ...], Event]]:
    """A group of two, both scored 0 by tests that were wrong about the first."""
    weights = WeightsRef(digest="0" * 64, size=1, address="weights/0.safetensors")
    begin = RunStarted(
        config=config.table(), config_digest=config.digest(), seed=0, code_version="0",
        weights=weights, tasks=("job",), heldout=("job",),
    )  # fmt: skip
    group = GroupDispatched(group="g0", index=0, task="job", version=0, executions=2)
    found: list[tuple[str, tuple[str, ...], Event]] = [
        ("control", ("run",), begin),
        ("scheduler", ("group", "g0"), group),
    ]
    for index, state in enumerate(states):
        name = f"x0-{index}"
        entry = ExecutionDispatched(execution=name, group="g0", task="job", index=index, version=0, seed=1)
        end = ExecutionTerminated(
            execution=name, group="g0", task="job", reason="completed", stage="agent", exit_code=0, seconds=1,
            state=state,
        )  # fmt: skip
        found.append(("scheduler", ("execution", name, "dispatched"), entry))
        found.append(("runner", ("execution", name, "terminated"), end))
        found.append(("evaluator", ("execution", name), RewardAssigned(execution=name, group="g0", reward=0.0)))
    return found


def make_run(folder: Path) -> None:
    task = folder / "tasks/train/job"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text('version = "1.0"\n')
    (task / "instruction.md").write_text("Do it.\n")
    (task / "tests/test.sh").write_text("grep -q good out\n")
    server = NatsServer(folder / "nats").start()

    async def write() -> None:
        bus = await Bus.connect(server.url, "r", "control", "control-1", folder, create=True)
        states = []
        for said in ("good", "bad"):
            left = folder / "left" / said
            left.mkdir(parents=True)
            (left / "out").write_text(said)
            blob = bus.blobs.put(preserve(left))
            states.append(StateRef(digest=blob.digest, size=blob.size, address=blob.address))
        config = Config()
        for service, entity, event in facts(config, states):
            place = Place(service, f"{service}-1", "r", folder, "", config)
            await bus.ev.append(place.subject(*entity), place.commit([event], as_of=0, correlation="r"))
        await bus.close()
        await export_run(server.url, "r", folder, folder / "r.jsonl.zst")

    try:
        asyncio.run(write())
    finally:
        server.stop()
    Note("r", server.url, "always").write(folder)


@pytest.fixture
def gyre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gyre:
    (tmp_path / "runs/r").mkdir(parents=True)
    make_run(tmp_path / "runs/r")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def told(result: Result) -> Any:
    return json.loads(result.stdout)


def test_a_stopped_run_is_regraded_once_and_told_as_often_as_asked(gyre: Gyre, tmp_path: Path) -> None:
    first = gyre("regrade", "r", "--json")
    assert first.exit_code == 0, first.output
    found = told(first)
    assert found["changed"] == [{"execution": "x0-0", "group": "g0", "old": 0.0, "new": 1.0}]
    assert (found["states"], found["valid"], found["new_assessments"], found["unresolved"]) == (2, 2, 2, {})
    (group,) = found["groups"]
    assert (group["before"]["advantages"], group["after"]["advantages"]) == ([0.0, 0.0], [1.0, -1.0])
    assert told(gyre("regrade", "r", "--json")) == {**found, "new_assessments": 0}
    page = gyre("regrade", "r").stdout
    assert "2 states, 2 scored (0 assessments are new), 1 changed" in page
    assert "x0-0 +0.000 -> +1.000" in page
    counts = told(gyre("log", "stats", "r", "--json"))["events"]
    assert counts["RegradeCompleted evaluator"] == 1
    assert counts["RewardAssigned evaluator"] == 2
    assert not _serves(tmp_path / "runs/r/nats")


def test_states_without_a_valid_score_are_named_and_the_exit_code_says_so(gyre: Gyre) -> None:
    result = gyre("regrade", "r", "--evaluator", "sh -c 'echo no idea; exit 7'")
    assert result.exit_code == 1
    assert "2 states, 0 scored (6 assessments are new), 0 changed" in result.stdout
    reason = "tests ended with exit code 7 and no REWARD_FILE: no idea"
    assert f"x0-1: no valid score: {reason}" in result.stdout
    assert f"2 without a valid score, 2 of them as: {reason}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("regrade", "runs/r/r.jsonl.zst"), "gyre log import runs/r/r.jsonl.zst"),
        (("regrade", "r", "--task", "nowhere"), "--task nowhere"),
        (("regrade", "r", "--tasks", "absent"), "no such folder of tasks"),
        (("regrade", "r", "--evaluator", "sh 'half"), "quote it"),
        (("assess", "r", "x0-0"), "gyre regrade r"),
        (("assess", "r", "x7-7"), "never launched"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_what_cannot_be_scored_is_one_line(gyre: Gyre, arguments: tuple[str, ...], words: str) -> None:
    result = gyre(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert "\n" not in result.stderr.rstrip("\n")


def _serves(store: Path) -> bool:
    pid = json.loads((store / "server.json").read_bytes())["pid"]
    return Path(f"/proc/{pid}").exists()
