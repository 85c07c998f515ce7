"""A whole run whose cells train in pipelines of two real megatron-core ranks, which stay filled over each batch."""

from pathlib import Path

import pytest

from bus.archive_log import open_archive
from schemas.training import MicroStepCompleted, MicroStepEnqueued, Passage
from services.source import messages
from tests.backends.runs import agent, gyre, write_run

pytestmark = pytest.mark.timeout(600)


async def test_each_cell_starts_up_and_drains_once_a_batch(tmp_path: Path) -> None:
    write_run(
        tmp_path,
        "pipelined",
        schedule={"groups": 4, "mu": 1, "rho_min": 0.25, "tau_seconds": 0.05},
        tasks={"train": "words:12:train", "heldout": "words:4:heldout"},
        rollout={"context_tokens": 384},
        harness=agent(4, 48),
        packing={"row_tokens": 384, "micro_step_tokens": 384},
        trainer={"pipeline": 2},
    )
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
