"""One cell as a process: meet, measure, meet, train, reduce.

The folder holds `batch.json`: the micro-steps of a batch, those of split executions twice, to measure and to train.
Cells share them by claiming a file each, as they come; what was measured lies in files that all read.
"""

import os
import time
from pathlib import Path

import torch
from pydantic import TypeAdapter

from gyre.trainers.reduction import Reducer
from schemas.training import MicroStepEnqueued, RatioMeasured, ReductionOpened
from tests.trainers import batch

BATCH = TypeAdapter(list[MicroStepEnqueued])
MEASURED = TypeAdapter(list[RatioMeasured])


def claims(folder: Path, steps: list[MicroStepEnqueued], cell: int) -> list[MicroStepEnqueued]:
    """Claim what nobody has claimed yet, each cell from another end."""
    mine = []
    for each in steps[cell:] + steps[:cell]:
        try:
            os.close(os.open(folder / f"{each.kind}-{each.micro_step}.claim", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        mine.append(each)
        time.sleep(0.01)  # let the others have some
    return mine


def main(folder: Path, cell: int, cells: int) -> None:
    """Leave the sum that this cell got in `sum-<cell>.pt`."""
    torch.set_num_threads(1)
    trainer = batch.trainer()
    reducer = Reducer(folder, cell, f"instance{cell}", timeout_seconds=200)
    members = tuple(range(cells))
    opened = ReductionOpened(
        step=1, epoch=1, members=members, instances=tuple(f"instance{each}" for each in members), contributions=()
    )
    reducer.sum(opened, torch.zeros(1))  # everyone is there
    steps = BATCH.validate_json((folder / "batch.json").read_bytes())
    measured = [trainer.micro_step(each) for each in claims(folder, [s for s in steps if s.kind == "measure"], cell)]
    found = [one for each in measured for one in each.measured]
    (folder / f"measured-{cell}.json").write_bytes(MEASURED.dump_json(found))
    reducer.sum(opened.model_copy(update={"step": 2}), torch.zeros(1))  # everything is measured
    every = [MEASURED.validate_json((folder / f"measured-{each}.json").read_bytes()) for each in members]
    decided = {each.execution: each for each in batch.masks([one for part in every for one in part])}
    for each in claims(folder, [s for s in steps if s.kind == "train"], cell):
        masks = tuple(decided[name] for name in sorted(executions(each)) if name in decided)
        trainer.micro_step(each.model_copy(update={"masks": masks}))
    torch.save(reducer.sum(opened.model_copy(update={"step": 3}), trainer.gradient), folder / f"sum-{cell}.pt")


def executions(enqueued: MicroStepEnqueued) -> set[str]:
    return {segment.execution for row in enqueued.rows for segment in row.segments}
