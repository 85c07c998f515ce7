"""A run whose weights travel as what changed, through an object store, while its core dies at every turn."""

from pathlib import Path

import pytest

from schemas.runs import RunStarted
from schemas.training import OptimizerStepped, WeightsPublished
from services.failpoints import VARIABLE, marks
from services.replay import verify
from services.source import Source, messages, open_source
from tests.e2e.living import Command, opened_run
from tests.e2e.rules import check_log

pytestmark = pytest.mark.timeout(300)
POINTS = ("stepped", "committed", "half_published")
STORE = ("weights.transport=store", "weights.delta=true")


async def test_deltas_through_a_store_outlive_the_core_that_offered_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, ",".join(POINTS))
    async with opened_run(tmp_path, overrides=STORE) as (opened, _):
        train = await Command.start("resume", opened.run, "--runs", opened.folder.parent, "--json")
        result = await train.result()
        assert {each.name for each in marks(opened.folder).iterdir()} == set(POINTS)
        cached = list((opened.folder / "cells" / "1" / "weights").iterdir())
    async with open_source(result["archive"], tmp_path) as source:
        assert (await verify(source)).differences == []
        await check_log(source, steps=4)
        begun, updates, published = await told(source)
    assert [each.version for each in published] == [2, 4]
    for each in published:
        assert each.weights == updates[each.version].weights
        assert each.transport == "store"
        assert each.sent is not None
        assert 0 < each.sent < 0.9 * each.weights.size
        assert each.changed is not None
        assert 0 < each.changed <= 1
    assert [each.name for each in cached] == [f"{published[-1].weights.digest}.safetensors"]
    assert begun.weights.size == published[-1].weights.size


async def told(source: Source) -> tuple[RunStarted, dict[int, OptimizerStepped], list[WeightsPublished]]:
    """The run's first word, its updates by version, and what it published."""
    every = [event async for each in messages(source.ev) if each.commit for event in each.commit.events]
    (begun,) = (each for each in every if isinstance(each, RunStarted))
    updates = {each.version: each for each in every if isinstance(each, OptimizerStepped)}
    return begun, updates, [each for each in every if isinstance(each, WeightsPublished)]
