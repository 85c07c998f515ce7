"""Cells as real processes: they share a batch by claims and sum over gloo."""

import multiprocessing
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter

from schemas.training import MicroStepEnqueued
from tests.trainers import batch, member
from tests.trainers.batch import CASES, SPLIT, distance, micro_step


def steps() -> list[MicroStepEnqueued]:
    """Whole executions, then each part of the split ones, first to measure and then to train."""
    pieces = {each.name: batch.segments(each) for each in CASES}
    whole = [micro_step([pieces[each]], number) for number, each in enumerate(pieces) if each not in SPLIT]
    parts = [part for name in SPLIT for part in pieces[name]]
    return whole + [
        micro_step([[part]], 100 + number, kind=kind)
        for kind in ("measure", "train")
        for number, part in enumerate(parts)
    ]


@pytest.mark.timeout(300)  # of which nearly all is importing transformers beside other work
@pytest.mark.parametrize("cells", [2, 3])
def test_cells_that_claim_as_they_come_sum_to_the_gradient_of_the_formulas(cells: int, tmp_path: Path) -> None:
    (tmp_path / "batch.json").write_bytes(TypeAdapter(list[MicroStepEnqueued]).dump_json(steps()))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainers.member", "transformers.models.llama.modeling_llama"])  # slow
    running = [context.Process(target=member.main, args=(tmp_path, cell, cells)) for cell in range(cells)]
    for each in running:
        each.start()
    for each in running:
        each.join(250)
        assert each.exitcode == 0
    sums = [torch.load(tmp_path / f"sum-{cell}.pt") for cell in range(cells)]
    assert distance(sums[0], batch.expected().gradient) < 1e-5
    assert all(torch.equal(each, sums[0]) for each in sums)
