"""A whole run whose cells train in pipelines of two real megatron-core ranks, which stay filled over each batch."""

import json
from pathlib import Path

import pytest

from bus.archive_log import open_archive
from schemas.training import MicroStepCompleted, MicroStepEnqueued, Passage
from services.source import messages
from tests.backends.test_training import gyre

pytestmark = pytest.mark.timeout(600)
HARNESS = ["{python}", "-I", "-S", "{reference}", "--max-turns", "4", "--max-tokens", "48"]
CONFIG = f"""
[run]
name = "pipelined"
steps = 3
[schedule]
groups = 4
executions = 4
mu = 1
phi = 0.5
rho_min = 0.25
tau_seconds = 0.05
[cells]
count = 2
concurrency = 8
lost_after_seconds = 60
[tasks]
train = "words:12:train"
heldout = "words:4:heldout"
[evaluation]
episodes = 0
[rollout]
max_tokens = 48
context_tokens = 384
[harness]
command = {json.dumps(HARNESS)}
[packing]
row_tokens = 384
micro_step_tokens = 384
share_prefixes = false
[trainer]
kind = "megatron"
pipeline = 2
backend = "gloo"
"""


async def test_each_cell_starts_up_and_drains_once_a_batch(tmp_path: Path) -> None:
    (tmp_path / "pipelined.toml").write_text(CONFIG)
    result = gyre(tmp_path, "train", "pipelined.toml")
    assert result["micro_steps"] == result["micro_steps_committed"] > 3
    assert result["targets_at_equal_weights"] > 50
    assert result["max_delta_log_p_at_equal_weights"] <= 1e-4
    passages: dict[tuple[int, int], Passage | None] = {}
    rows: dict[int, int] = {}
    with open_archive(Path(result["archive"])) as archive:
        async for stored in messages(archive.ev):
            for event in stored.commit.events if stored.commit else ():
                if isinstance(event, MicroStepCompleted):
                    passages[event.step, event.cell] = event.passage
                elif isinstance(event, MicroStepEnqueued) and event.kind == "train":
                    rows[event.step] = rows.get(event.step, 0) + len(event.rows)
    assert {step for step, _ in passages} == {1, 2, 3}
    for passage in passages.values():
        assert passage is not None
        assert (passage.startups, passage.drains) == (1, 1)
    for step, count in rows.items():
        assert sum(each.rows for (of, _), each in passages.items() if of == step and each is not None) == count
    assert gyre(tmp_path, "replay", "pipelined", "--verify")["differences"] == []
