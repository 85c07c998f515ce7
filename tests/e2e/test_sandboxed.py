"""A training whose agents and tests run in namespaces of their own."""

from pathlib import Path

import pytest

from services.replay import verify
from services.source import open_source
from tests.e2e.living import Command, write_config
from tests.sandboxes.stand import lacking

WHY = lacking("bubblewrap")
pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(bool(WHY), reason=WHY or "it works here")]


async def test_a_training_in_bubblewrap_learns_from_what_its_agents_did(tmp_path: Path) -> None:
    train = await Command.start(
        "train", write_config(tmp_path, steps=2), "--json", "--set", "sandbox.kind=bubblewrap", "--set", "run.steps=2"
    )
    result = await train.result()
    assert result["steps"] == 2
    assert result["dispatched"] == result["launched"] == result["terminated"] == 16
    assert result["micro_steps"] == result["micro_steps_committed"] > 0
    async with open_source(result["archive"], tmp_path / "runs") as source:
        assert (await verify(source)).differences == []
