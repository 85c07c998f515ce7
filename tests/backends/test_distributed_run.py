"""A whole run that saves in Megatron's distributed format, whose core is killed, and then whoever watches over it."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bus.archive_log import open_archive
from gyre.trainers.checkpoint import locate
from gyre.trainers.manifest import Manifest
from schemas.training import OptimizerStepped
from services.source import messages
from tests.backends.runs import agent, environment, gyre, write_run
from tests.e2e.living import Command, all_gone, processes

pytestmark = pytest.mark.timeout(600)
RUN = "kept"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@asynccontextmanager
async def training(config: Path) -> AsyncIterator[Command]:
    """`gyre train`, which is killed at the end without a word; what it started ends with it."""
    train = await Command.start("train", config, "--json")
    try:
        yield train
    finally:
        train.stop(signal.SIGKILL)
        await train.process.wait()


async def stepped(archive: Path) -> list[OptimizerStepped]:
    """Every update of a run."""
    with open_archive(archive) as log:
        said = [each.commit async for each in messages(log.ev)]
    return [event for each in said if each for event in each.events if isinstance(event, OptimizerStepped)]


async def test_a_run_goes_on_from_the_parts_that_its_ranks_wrote(tmp_path: Path) -> None:
    config = write_run(
        tmp_path,
        RUN,
        rollout={"max_tokens": 24},
        harness=agent(3, 24),
        trainer={"tensor": 2, "checkpoint": "distributed"},
    )
    folder = tmp_path / "runs" / RUN
    async with training(config) as train:
        await train.line(lambda line: line.startswith("step   1"))
        os.kill(processes(folder)["cell-0"], signal.SIGKILL)
        await train.line(lambda line: line.startswith("step   2"))
        left = processes(folder)
    assert await all_gone(list(left.values()), 60)
    result = gyre(tmp_path, "resume", RUN)
    assert result["dispatched"] == result["launched"] == result["terminated"] == 24
    assert result["micro_steps"] == result["micro_steps_committed"] > 0
    assert gyre(tmp_path, "replay", RUN, "--verify")["differences"] == []
    updates = await stepped(Path(result["archive"]))
    assert [each.version for each in updates] == [1, 2, 3]
    saved = locate(folder, updates[-1].optimizer)
    found = Manifest.read(saved)
    found.check(saved)
    assert found.updates == 3  # moments of two updates came out of the parts, each time
    assert {name for name in found.files if name.startswith("__")} == {"__0_0.distcp", "__1_0.distcp"}
    assert gyre(tmp_path, "restep", RUN, "3")["differences"] == []
