"""A whole training as a user starts it, and its log read again in every way."""

import asyncio
from pathlib import Path

import pytest

from services.replay import Verdict, verify
from services.source import open_source
from tests.e2e.living import RUN, Command, write_config
from tests.e2e.rules import check_hearing, check_log

pytestmark = pytest.mark.timeout(300)


async def test_a_training_runs_to_its_end_and_its_log_decides_itself_again(tmp_path: Path) -> None:
    train = await Command.start("train", write_config(tmp_path), "--json")
    result = await train.result()
    assert result["steps"] == 4
    assert result["dispatched"] == result["launched"] == result["terminated"] == 32
    assert result["micro_steps"] == result["micro_steps_committed"] > 0
    assert result["staleness_mean"] == result["staleness_expected"]
    archive = await _verified(result["archive"], tmp_path)
    served = await _verified(RUN, tmp_path / "runs")
    assert served.snapshots == 3
    for snapshot in (tmp_path / "runs" / RUN / "snapshots").iterdir():
        await asyncio.to_thread(snapshot.unlink)
    bare = await _verified(RUN, tmp_path / "runs")
    assert bare.snapshots == archive.snapshots == 0
    assert bare.decisions == archive.decisions == served.decisions > 0


async def _verified(target: str, runs: Path) -> Verdict:
    async with open_source(target, runs) as source:
        verdict = await verify(source)
        await check_log(source, steps=4)
        await check_hearing(source)
    assert verdict.differences == []
    assert verdict.trees == 32
    return verdict
